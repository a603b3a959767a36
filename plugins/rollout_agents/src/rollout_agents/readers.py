"""What agents' own logs tell: steps with tool calls, tokens, money. `read_...` are pure functions of bytes that never raise.

A line that is no JSON, or not of the shape that is expected, is passed over: a log's format is its agent's, and changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rollout import AgentLogs, AtifFinalMetrics, AtifTrajectory, Step, TrajectoryBuilder, Usage


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


class _Story:
    """Steps as they are told, with results that come after their calls."""

    def __init__(self) -> None:
        self.reading = Reading()
        self._calls: dict[str, Step] = {}
        self._tokens: dict[str, int] = {}
        self._cost: float | None = None

    def says(self, text: Any, thought: Any = "") -> None:
        words, thoughts = _text(text), _text(thought)
        if words or thoughts:
            self.reading.steps.append(Step(model_response=words, thought=thoughts))

    def ends_with(self, text: Any) -> None:
        """The agent's last words, which may have been told already."""
        if not any(step.model_response == text for step in self.reading.steps[-1:]):
            self.says(text)

    def calls(self, identity: Any, name: Any, arguments: Any) -> None:
        action = {"id": _text(identity), "name": _text(name), "arguments": arguments}
        step = Step(action=action)
        self._calls[_text(identity)] = step
        self.reading.steps.append(step)

    def results(self, identity: Any, result: Any) -> None:
        step = self._calls.get(_text(identity))
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


def read_claude(log: bytes) -> Reading:
    """`claude --print --output-format stream-json --verbose`."""
    story = _Story()
    for event in _objects(log):
        for block in _list(_at(event, "message", "content")):
            kind = _at(block, "type")
            if event.get("type") == "assistant" and kind == "text":
                story.says(_at(block, "text"))
            elif event.get("type") == "assistant" and kind == "thinking":
                story.says("", _at(block, "thinking"))
            elif event.get("type") == "assistant" and kind == "tool_use":
                story.calls(_at(block, "id"), _at(block, "name"), _at(block, "input"))
            elif event.get("type") == "user" and kind == "tool_result":
                story.results(_at(block, "tool_use_id"), _at(block, "content"))
        if event.get("type") == "result":
            usage = event.get("usage")
            cached = _number(_at(usage, "cache_read_input_tokens"))
            fresh = _number(_at(usage, "input_tokens")) + _number(_at(usage, "cache_creation_input_tokens"))
            story.used(input=fresh + cached, output=_at(usage, "output_tokens"), cached=cached, cost=event.get("total_cost_usd"))
            story.ends_with(event.get("result"))
    return story.end()


def read_codex(log: bytes) -> Reading:
    """`codex exec --json`."""
    story = _Story()
    for event in _objects(log):
        item = event.get("item")
        if event.get("type") == "item.completed" and isinstance(item, dict):
            kind, identity = item.get("type"), item.get("id")
            if kind == "agent_message":
                story.says(item.get("text"))
            elif kind == "reasoning":
                story.says("", item.get("text"))
            elif kind == "command_execution":
                story.calls(identity, "shell", {"command": item.get("command")})
                story.results(identity, {"output": item.get("aggregated_output"), "exit_code": item.get("exit_code")})
            elif isinstance(kind, str) and kind not in ("error", "todo_list"):
                rest = {key: value for key, value in item.items() if key not in ("id", "type", "status", "result")}
                story.calls(identity, kind, rest)
                story.results(identity, item.get("result", item.get("status")))
        elif event.get("type") == "turn.completed":
            usage = event.get("usage")
            story.used(
                input=_at(usage, "input_tokens"), output=_at(usage, "output_tokens"), cached=_at(usage, "cached_input_tokens")
            )
    return story.end()


def read_gemini(log: bytes) -> Reading:
    """`gemini --output-format stream-json`, and Qwen Code's likewise."""
    story = _Story()
    words: list[str] = []

    def flush() -> None:
        story.says("".join(words))
        words.clear()

    for event in _objects(log):
        kind = event.get("type")
        if kind == "message" and event.get("role") in ("assistant", "model"):
            words.append(_text(event.get("content")))
            continue
        flush()
        if kind == "tool_use":
            story.calls(event.get("tool_id"), event.get("tool_name"), event.get("parameters"))
        elif kind == "tool_result":
            story.results(event.get("tool_id"), event.get("output", event.get("error")))
        elif kind == "result":
            stats = event.get("stats")
            story.used(input=_at(stats, "input_tokens"), output=_at(stats, "output_tokens"), cached=_at(stats, "cached"))
    flush()
    return story.end()


def read_opencode(log: bytes) -> Reading:
    """`opencode run --format json`."""
    story = _Story()
    for event in _objects(log):
        part = event.get("part")
        if event.get("type") == "text":
            story.says(_at(part, "text"))
        elif event.get("type") == "reasoning":
            story.says("", _at(part, "text"))
        elif event.get("type") == "tool_use":
            story.calls(_at(part, "callID"), _at(part, "tool"), _at(part, "state", "input"))
            story.results(_at(part, "callID"), _at(part, "state", "output"))
        elif event.get("type") == "step_finish":
            cached = _number(_at(part, "tokens", "cache", "read"))
            story.used(
                input=_number(_at(part, "tokens", "input")) + cached,
                output=_at(part, "tokens", "output"),
                cached=cached,
                cost=_at(part, "cost"),
            )
    return story.end()


def read_mini_swe_agent(log: bytes) -> Reading:
    """The trajectory that `mini --output FILE` writes."""
    story = _Story()
    try:
        document = msgspec.json.decode(log)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return story.reading
    for message in _list(_at(document, "messages")):
        if _at(message, "role") == "assistant":
            story.says(_at(message, "content"), _at(message, "reasoning_content"))
            for call in _list(_at(message, "tool_calls")):
                story.calls(_at(call, "id"), _at(call, "function", "name"), _arguments(_at(call, "function", "arguments")))
            usage = _at(message, "extra", "response", "usage")
            story.used(
                input=_at(usage, "prompt_tokens"),
                output=_at(usage, "completion_tokens"),
                cached=_at(usage, "prompt_tokens_details", "cached_tokens"),
            )
        elif _at(message, "role") == "tool":
            story.results(_at(message, "tool_call_id"), _at(message, "content"))
    story.used(cost=_at(document, "info", "model_stats", "instance_cost"))
    return story.end()


def read_aider(chat: bytes, events: bytes) -> Reading:
    """The history of its chat (`--chat-history-file`), and the events with its tokens (`--analytics-log`)."""
    story = _Story()
    words: list[str] = []
    edits = 0
    for line in chat.decode("utf-8", "replace").splitlines():
        if not line.startswith(("# aider chat started", "#### ", "> ")) and line != ">":
            words.append(line)
            continue
        story.says("\n".join(words).strip())
        words.clear()
        if line.startswith("> Applied edit to "):
            edits += 1
            story.calls(f"edit-{edits}", "edit", {"path": line.removeprefix("> Applied edit to ").strip()})
            story.results(f"edit-{edits}", line.removeprefix("> ").strip())
    story.says("\n".join(words).strip())
    for event in _objects(events):
        if event.get("event") == "message_send":
            tokens = event.get("properties")
            story.used(
                input=_at(tokens, "prompt_tokens"), output=_at(tokens, "completion_tokens"), cost=_at(tokens, "cost") or None
            )
    return story.end()


# What is registered in the group `rollout.readers`.


def claude(logs: AgentLogs) -> AtifTrajectory | None:
    """Claude Code's stream of JSON, and that of agents which print the same."""
    return _trajectory("claude", read_claude(logs.printed()))


def codex(logs: AgentLogs) -> AtifTrajectory | None:
    """What `codex exec --json` prints."""
    return _trajectory("codex", read_codex(logs.printed()))


def gemini(logs: AgentLogs) -> AtifTrajectory | None:
    """Gemini CLI's stream of JSON."""
    return _trajectory("gemini", read_gemini(logs.printed()))


def opencode(logs: AgentLogs) -> AtifTrajectory | None:
    """What `opencode run --format json` prints."""
    return _trajectory("opencode", read_opencode(logs.printed()))


def mini_swe_agent(logs: AgentLogs) -> AtifTrajectory | None:
    """mini-swe-agent's trajectory, as /logs/agent/mini.traj.json."""
    return _trajectory("mini-swe-agent", read_mini_swe_agent(_content(logs, "mini.traj.json")))


def aider(logs: AgentLogs) -> AtifTrajectory | None:
    """aider's /logs/agent/aider.chat.md and aider.events.jsonl."""
    events = _content(logs, "aider.events.jsonl")
    return _trajectory("aider", read_aider(_content(logs, "aider.chat.md"), events))


def _content(logs: AgentLogs, name: str) -> bytes:
    file = logs.file(name)
    return file.read_bytes() if file is not None else b""


def _trajectory(name: str, reading: Reading) -> AtifTrajectory | None:
    if not reading.steps:
        return None
    made = TrajectoryBuilder(name=name)
    reading.tell(made)
    return made.build()


def _objects(log: bytes) -> Iterator[dict[str, Any]]:
    for line in log.splitlines():
        if not line.lstrip().startswith(b"{"):
            continue
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def _at(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def _words(value: Any) -> str:
    """A result as text: itself, the texts of content blocks, or JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(_at(block, "text"), str) for block in value):
        return "\n".join(block["text"] for block in value)
    return msgspec.json.encode(value).decode()


def _arguments(value: Any) -> Any:
    """Arguments that are JSON in a string, as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return value
