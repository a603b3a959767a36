"""Making trajectories: from what an agent says while it works, and from the logs that it left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from rollout.core.atif import (
    MAX_TRAJECTORY_BYTES,
    AtifAgent,
    AtifFinalMetrics,
    AtifMetrics,
    AtifObservation,
    AtifPart,
    AtifResult,
    AtifStep,
    AtifToolCall,
    AtifTrajectory,
    decode_atif,
)
from rollout.core.types import Struct, Usage

MAX_LINE_BYTES = 32 * 1024 * 1024

Trust = Literal["observed", "reported", "known"]
"""Where a trajectory comes from. observed: Rollout saw it pass between the agent and itself. reported: it was read from files
that the agent could have written as it liked. known: it says no more than what Rollout knows by itself."""

Content = str | list[AtifPart]


class TrajectoryReport(Struct, frozen=True, kw_only=True):
    """What an agent hands over when its work has ended."""

    trajectory: AtifTrajectory
    trust: Trust = "reported"
    native: str | None = None
    """The agent's own log in the trial's folder: `logs/agent/session.jsonl`."""


class AgentLogs:
    """What an agent left behind to be read: the host's copy of `/logs/agent`, and what it printed."""

    def __init__(self, folder: Path | None, printed: Path | bytes | None = None) -> None:
        """`printed`: what it wrote to its standard output, or the file that holds it."""
        self._folder = folder
        self._printed = printed
        self.native: str | None = None
        """The log that was read last, as a path in the trial's folder."""

    def file(self, name: str) -> Path | None:
        """A file below `/logs/agent`; None when there is none, or it is a link.

        Raises:
            ValueError: it is larger than 256 MiB.
        """
        found = _plain(self._folder / name) if self._folder is not None else None
        if found is not None:
            self.native = f"logs/agent/{name}"
        return found

    def files(self, pattern: str) -> list[Path]:
        """The files below `/logs/agent` that a pattern of `Path.glob` finds, sorted; no links.

        Raises:
            ValueError: one is larger than 256 MiB.
        """
        found = sorted(self._folder.glob(pattern)) if self._folder is not None else []
        return [file for file in found if _plain(file) is not None]

    def printed(self) -> bytes:
        """What the agent wrote to its standard output.

        Raises:
            ValueError: it is larger than 256 MiB.
        """
        if isinstance(self._printed, bytes):
            return self._printed
        found = _plain(self._printed) if self._printed is not None else None
        if found is None:
            return b""
        self.native = "agent/stdout.txt"
        return found.read_bytes()


def _plain(file: Path) -> Path | None:
    if file.is_symlink() or not file.is_file():
        return None
    if file.stat().st_size > MAX_TRAJECTORY_BYTES:
        raise ValueError(f"{file.name} is larger than {MAX_TRAJECTORY_BYTES >> 20} MiB")
    return file


TrajectoryReader = Callable[[AgentLogs], AtifTrajectory | None]
"""Makes a trajectory of the logs that an agent left. None: there is no log of this agent's. Its version and model may stay open
(`unknown`, None), and so may what it was told: whoever knows adds that. A reader reads and does nothing else; whatever it
raises costs the trajectory, never the trial."""


class TrajectoryBuilder:
    """Collects steps in their order, numbers them, and puts results beside their calls.

    An agent's step gathers text, thoughts, calls and results until the next one begins.
    """

    def __init__(self, *, name: str, version: str = "unknown", model: str | None = None, session_id: str | None = None) -> None:
        self.name = name
        self.version = version
        self.model = model
        self.session_id = session_id
        self.tool_definitions: list[dict[str, Any]] | None = None
        self.totals: AtifFinalMetrics | None = None
        """Set it when the agent tells totals; otherwise they are the sums over the steps."""
        self.notes: str | None = None
        self.extra: dict[str, Any] = {}
        self._steps: list[_Draft] = []
        self._calls: dict[str, _Draft] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def system(self, message: Content, *, timestamp: str | None = None, extra: dict[str, Any] | None = None) -> None:
        self._steps.append(_Draft("system", message, timestamp, extra))

    def user(self, message: Content, *, timestamp: str | None = None, extra: dict[str, Any] | None = None) -> None:
        self._steps.append(_Draft("user", message, timestamp, extra))

    def agent(
        self,
        message: Content = "",
        *,
        reasoning: str | None = None,
        timestamp: str | None = None,
        model: str | None = None,
        metrics: AtifMetrics | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Begin a step of the agent's."""
        step = _Draft("agent", message, timestamp, extra)
        step.reasoning = [reasoning] if reasoning else []
        step.model = model if model != self.model else None
        step.metrics = metrics
        self._steps.append(step)

    def say(self, text: str, *, timestamp: str | None = None) -> None:
        """More of the agent's text: a chunk of a stream."""
        self._next(timestamp).text.append(text)

    def think(self, text: str, *, timestamp: str | None = None) -> None:
        """More of the agent's thoughts."""
        self._next(timestamp).reasoning.append(text)

    def call(
        self,
        call_id: str,
        name: str,
        arguments: Any = None,
        *,
        extra: dict[str, Any] | None = None,
        timestamp: str | None = None,
    ) -> None:
        """A call of the agent's current step. Arguments that are no object become `{"input": ...}`. One that is known already is
        described anew."""
        step = self._calls.get(call_id)
        if step is None:
            step = self._calls[call_id] = self._current(timestamp)
        step.calls[call_id] = (name, _arguments(arguments), extra)

    def knows(self, call_id: str) -> bool:
        return call_id in self._calls

    def result(self, call_id: str | None, content: Content | None, *, extra: dict[str, Any] | None = None) -> None:
        """What a call gave; once more for the same call replaces it. Of an unknown call it is a result without one."""
        step = self._calls.get(call_id) if call_id is not None else None
        if step is None or call_id is None:
            self._current(None).loose.append((content, extra))
        else:
            step.results[call_id] = (content, extra)

    def measure(self, metrics: AtifMetrics, *, model: str | None = None) -> None:
        """What the agent's last step took."""
        step = next((step for step in reversed(self._steps) if step.source == "agent"), None) or self._current(None)
        step.metrics = metrics
        if model is not None and model != self.model:
            step.model = model

    def build(self) -> AtifTrajectory:
        """The trajectory so far.

        Raises:
            ValueError: there is no step, or one breaks the rules of the format.
        """
        steps = [step.build(number) for number, step in enumerate(self._steps, 1)]
        made = AtifTrajectory(
            session_id=self.session_id,
            agent=AtifAgent(name=self.name, version=self.version, model_name=self.model, tool_definitions=self.tool_definitions),
            steps=steps,
            notes=self.notes,
            extra=self.extra or None,
        )
        whole = msgspec.structs.replace(made, final_metrics=self.totals or totals(made.usage(), len(steps)))
        try:
            msgspec.json.encode(whole)
        except UnicodeEncodeError:
            return msgspec.convert(_well_formed_data(msgspec.to_builtins(whole)), AtifTrajectory)
        return whole

    def _next(self, timestamp: str | None) -> _Draft:
        """The step that words belong to: what is said after a call is said in another step."""
        if self._steps and self._steps[-1].calls:
            self._steps.append(_Draft("agent", "", timestamp, None))
        return self._current(timestamp)

    def _current(self, timestamp: str | None) -> _Draft:
        if not self._steps or self._steps[-1].source != "agent":
            self._steps.append(_Draft("agent", "", timestamp, None))
        return self._steps[-1]


class _Draft:
    def __init__(
        self, source: Literal["system", "user", "agent"], message: Content, timestamp: str | None, extra: dict[str, Any] | None
    ) -> None:
        self.source = source
        self.parts = message if isinstance(message, list) else None
        self.text = [message] if isinstance(message, str) and message else []
        self.timestamp = timestamp
        self.extra = extra
        self.reasoning: list[str] = []
        self.model: str | None = None
        self.metrics: AtifMetrics | None = None
        self.calls: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {}
        self.results: dict[str, tuple[Content | None, dict[str, Any] | None]] = {}
        self.loose: list[tuple[Content | None, dict[str, Any] | None]] = []

    def build(self, number: int) -> AtifStep:
        calls = [
            AtifToolCall(tool_call_id=call_id, function_name=name, arguments=arguments, extra=extra)
            for call_id, (name, arguments, extra) in self.calls.items()
        ]
        results = [
            AtifResult(source_call_id=call_id, content=content, extra=extra) for call_id, (content, extra) in self.results.items()
        ]
        results += [AtifResult(content=content, extra=extra) for content, extra in self.loose]
        text = "".join(self.text)
        message: Content = text
        if self.parts is not None:
            message = [*self.parts, AtifPart(type="text", text=text)] if text else self.parts
        return AtifStep(
            step_id=number,
            timestamp=self.timestamp,
            source=self.source,
            model_name=self.model,
            message=message,
            reasoning_content="".join(self.reasoning) or None,
            tool_calls=calls or None,
            observation=AtifObservation(results=results) if results else None,
            metrics=self.metrics,
            extra=self.extra,
        )


def totals(usage: Usage | None, steps: int) -> AtifFinalMetrics:
    """Final metrics of what is known."""
    usage = usage or Usage()
    return AtifFinalMetrics(
        total_prompt_tokens=usage.input_tokens,
        total_completion_tokens=usage.output_tokens,
        total_cached_tokens=usage.cached_tokens,
        total_cost_usd=usage.cost_usd,
        total_steps=steps,
    )


def read_atif(logs: AgentLogs) -> AtifTrajectory | None:
    """The reader `atif`: an agent that writes `/logs/agent/trajectory.json` itself.

    Raises:
        ValueError: it is there, and is no trajectory.
    """
    file = logs.file("trajectory.json")
    return decode_atif(file.read_bytes()) if file is not None else None


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines. What is no object (a torn last line, say) and lines beyond 32 MiB are left out."""
    decoder = msgspec.json.Decoder()
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            if not line.endswith(b"\n") and len(line) == MAX_LINE_BYTES:
                while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                    pass
                continue
            if not line.lstrip().startswith(b"{"):
                continue
            try:
                value = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            yield value


def well_formed(text: str) -> str:
    """The text without halves of characters, which agents leave that cut their streams anywhere; two halves become the whole."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _well_formed_data(value: Any) -> Any:
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {well_formed(key): _well_formed_data(item) for key, item in value.items()}
    return [_well_formed_data(item) for item in value] if isinstance(value, list) else value


def _arguments(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {str(key): item for key, item in value.items()}
    return {} if value is None else {"input": value}
