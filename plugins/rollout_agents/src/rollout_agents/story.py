"""What a log told, collected: steps with their calls, tokens, money. And ways into JSON of foreign shape, which never raise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rollout import AtifFinalMetrics, Step, TrajectoryBuilder, Usage


@dataclass
class Reading:
    """What a log told."""

    steps: list[Step] = field(default_factory=list)
    usage: Usage | None = None

    def tell(self, made: TrajectoryBuilder) -> None:
        """Add the steps to a trajectory: words and thoughts begin a step, the calls that follow belong to it."""
        for number, step in enumerate(self.steps, 1):
            if step.action is None:
                made.agent(step.model_response, reasoning=step.thought or None)
                continue
            identity = step.action["id"] or f"call-{number}"
            made.call(identity, step.action["name"] or "unknown", step.action["arguments"])
            if step.observation is not None:
                made.result(identity, _words(step.observation))
        if self.usage is not None:
            made.totals = AtifFinalMetrics(
                total_prompt_tokens=self.usage.input_tokens,
                total_completion_tokens=self.usage.output_tokens,
                total_cached_tokens=self.usage.cached_tokens,
                total_cost_usd=self.usage.cost_usd,
                total_steps=len(made),
            )


class Story:
    """Steps as they are told, with results that come after their calls."""

    def __init__(self) -> None:
        self.reading = Reading()
        self._calls: dict[str, Step] = {}
        self._tokens: dict[str, int] = {}
        self._cost: float | None = None

    def says(self, text: Any, thought: Any = "") -> None:
        words, thoughts = as_text(text), as_text(thought)
        if words or thoughts:
            self.reading.steps.append(Step(model_response=words, thought=thoughts))

    def ends_with(self, text: Any) -> None:
        """The agent's last words, which may have been told already."""
        if not any(step.model_response == text for step in self.reading.steps[-1:]):
            self.says(text)

    def calls(self, identity: Any, name: Any, arguments: Any) -> None:
        action = {"id": as_text(identity), "name": as_text(name), "arguments": arguments}
        step = Step(action=action)
        self._calls[as_text(identity)] = step
        self.reading.steps.append(step)

    def results(self, identity: Any, result: Any) -> None:
        step = self._calls.get(as_text(identity))
        if step is not None:
            step.observation = result

    def used(self, *, input: Any = None, output: Any = None, cached: Any = None, cost: Any = None) -> None:
        """Add to what was used. What is no number is unknown."""
        for name, value in (("input", input), ("output", output), ("cached", cached)):
            if type(value) is int and value >= 0:
                self._tokens[name] = self._tokens.get(name, 0) + value
        if type(cost) in (int, float) and 0 <= cost < float("inf"):
            self._cost = (self._cost or 0.0) + cost

    def end(self) -> Reading:
        if self._tokens or self._cost is not None:
            self.reading.usage = Usage(
                input_tokens=self._tokens.get("input"),
                output_tokens=self._tokens.get("output"),
                cached_tokens=self._tokens.get("cached"),
                cost_usd=self._cost,
            )
        return self.reading


def objects(log: bytes) -> Iterator[dict[str, Any]]:
    """The objects of JSON lines, whatever stands between them."""
    for line in log.splitlines():
        if not line.lstrip().startswith(b"{"):
            continue
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def document(log: bytes) -> Any:
    """A whole log as JSON; None when it is none."""
    try:
        return msgspec.json.decode(log)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def at(value: Any, *path: str) -> Any:
    """What lies at these keys; None where something does not."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def as_number(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def _words(value: Any) -> str:
    """A result as text: itself, the texts of content blocks, or JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(at(block, "text"), str) for block in value):
        return "\n".join(block["text"] for block in value)
    return msgspec.json.encode(value).decode()


def arguments_of(value: Any) -> Any:
    """Arguments that are JSON in a string, as JSON."""
    if not isinstance(value, str):
        return value
    found = document(value.encode("utf-8", "replace"))
    return value if found is None else found
