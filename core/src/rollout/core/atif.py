"""Trajectories in ATIF, the Agent Trajectory Interchange Format: what an agent did, step by step, as strict Structs.

The format is Harbor's, versions 1.0 to 1.8, and its rules are checked here when a record is made or decoded: steps are numbered
from 1 without a gap, a result names a call of its own step, only an agent's steps have calls and metrics. What is accepted here
is accepted by Harbor's own models.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from rollout.core.types import Usage

MAX_TRAJECTORY_BYTES = 256 * 1024 * 1024
"""A file beyond this is not read."""

AtifVersion = Literal[
    "ATIF-v1.0",
    "ATIF-v1.1",
    "ATIF-v1.2",
    "ATIF-v1.3",
    "ATIF-v1.4",
    "ATIF-v1.5",
    "ATIF-v1.6",
    "ATIF-v1.7",
    "ATIF-v1.8",
]
_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_SOUNDS = frozenset(
    f"audio/{kind}"
    for kind in (
        *("wav", "mpeg", "mp4", "aac", "ogg", "flac", "webm", "aiff"),
        *("mp3", "mpga", "x-mpeg", "x-wav", "wave", "vnd.wave", "x-m4a", "m4a", "x-aac", "x-flac", "x-aiff"),
    )
)
_OF_AGENTS = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")


class AtifRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of the parts of a trajectory: what is not known is left out of the file."""


class AtifMedia(AtifRecord, frozen=True, kw_only=True):
    """Where an image or a sound is."""

    media_type: str
    path: str
    """A path, relative to the trajectory's folder or absolute, or an address."""
    duration_sec: Annotated[float, Meta(ge=0)] | None = None
    """Of a sound."""

    def __post_init__(self) -> None:
        if self.media_type not in _IMAGES | _SOUNDS:
            raise ValueError(f"media type {self.media_type!r} is neither an image's nor a sound's")
        if self.duration_sec is not None and self.media_type in _IMAGES:
            raise ValueError("an image has no `duration_sec`")


class AtifPart(AtifRecord, frozen=True, kw_only=True):
    """A part of a message that is more than text."""

    type: Literal["text", "image", "audio"]
    text: str | None = None
    source: AtifMedia | None = None

    def __post_init__(self) -> None:
        if self.type == "text":
            if self.text is None or self.source is not None:
                raise ValueError("a part of type `text` has `text` and no `source`")
            return
        if self.source is None or self.text is not None:
            raise ValueError(f"a part of type `{self.type}` has a `source` and no `text`")
        if self.source.media_type not in (_IMAGES if self.type == "image" else _SOUNDS):
            raise ValueError(f"a part of type `{self.type}` cannot be {self.source.media_type}")


class AtifToolCall(AtifRecord, frozen=True, kw_only=True):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: dict[str, Any] | None = None


class AtifSubagentRef(AtifRecord, frozen=True, kw_only=True):
    """Which trajectory a call led to: one of `subagent_trajectories`, or a file."""

    trajectory_id: str | None = None
    session_id: str | None = None
    trajectory_path: str | None = None
    extra: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.trajectory_id is None and self.trajectory_path is None:
            raise ValueError("a reference to a subagent needs `trajectory_id` or `trajectory_path`")


class AtifResult(AtifRecord, frozen=True, kw_only=True):
    """What a call gave."""

    source_call_id: str | None = None
    """The call of the same step; None for what came without a call."""
    content: str | list[AtifPart] | None = None
    subagent_trajectory_ref: list[AtifSubagentRef] | None = None
    extra: dict[str, Any] | None = None


class AtifObservation(AtifRecord, frozen=True, kw_only=True):
    results: list[AtifResult]


class AtifMetrics(AtifRecord, frozen=True, kw_only=True):
    """What one step took."""

    prompt_tokens: int | None = None
    """Cached ones included."""
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.cost_usd or 0.0, *(self.logprobs or ())))):
            raise ValueError("`cost_usd` and `logprobs` are finite numbers")


class AtifFinalMetrics(AtifRecord, frozen=True, kw_only=True):
    """What all of it took."""

    total_prompt_tokens: int | None = None
    """Cached ones included."""
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: Annotated[int, Meta(ge=0)] | None = None
    extra: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.total_cost_usd or 0.0):
            raise ValueError("`total_cost_usd` is a finite number")


class AtifStep(AtifRecord, frozen=True, kw_only=True):
    """One message, with what the agent thought, called and saw."""

    step_id: Annotated[int, Meta(ge=1)]
    timestamp: str | None = None
    """ISO 8601."""
    source: Literal["system", "user", "agent"]
    model_name: str | None = None
    """When it is not the agent's."""
    reasoning_effort: str | float | None = None
    message: str | list[AtifPart]
    reasoning_content: str | None = None
    tool_calls: list[AtifToolCall] | None = None
    observation: AtifObservation | None = None
    metrics: AtifMetrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: Annotated[int, Meta(ge=0)] | None = None
    extra: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.timestamp is not None:
            try:
                datetime.fromisoformat(self.timestamp.replace("Z", "+00:00"))
            except ValueError as error:
                raise ValueError(f"timestamp {self.timestamp!r} is not ISO 8601") from error
        if self.source != "agent":
            wrong = [name for name in _OF_AGENTS if getattr(self, name) is not None]
            if wrong:
                raise ValueError(f"only a step of the agent has `{wrong[0]}`, this one is of the {self.source}")
        elif self.llm_call_count == 0 and (self.metrics is not None or self.reasoning_content is not None):
            raise ValueError("a step without a call of a model has neither `metrics` nor `reasoning_content`")
        if self.observation is not None:
            calls = {call.tool_call_id for call in self.tool_calls or ()}
            for result in self.observation.results:
                if result.source_call_id is not None and result.source_call_id not in calls:
                    raise ValueError(f"step {self.step_id} has a result of {result.source_call_id!r}, and no such call")


class AtifAgent(AtifRecord, frozen=True, kw_only=True):
    """Who did it."""

    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None
    extra: dict[str, Any] | None = None


class AtifTrajectory(AtifRecord, frozen=True, kw_only=True):
    """What one agent did for one task."""

    schema_version: AtifVersion = field(default_factory=lambda: "ATIF-v1.8")  # a factory, because plain defaults are left out
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: AtifAgent
    steps: Annotated[list[AtifStep], Meta(min_length=1)]
    notes: str | None = None
    final_metrics: AtifFinalMetrics | None = None
    continued_trajectory_ref: str | None = None
    extra: dict[str, Any] | None = None
    subagent_trajectories: list[AtifTrajectory] | None = None

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("a trajectory has at least one step")
        for number, step in enumerate(self.steps, 1):
            if step.step_id != number:
                raise ValueError(f"step {number} says that it is step {step.step_id}")
        ids = [part.trajectory_id for part in self.subagent_trajectories or ()]
        if None in ids or len(set(ids)) != len(ids):
            raise ValueError("each of `subagent_trajectories` needs a `trajectory_id` of its own")

    def usage(self) -> Usage | None:
        """Tokens and money: the totals where there are any, else the sum over the steps; None when nothing is known."""
        final = self.final_metrics or AtifFinalMetrics()
        steps = [step.metrics for step in self.steps if step.metrics is not None and not step.is_copied_context]
        usage = Usage(
            input_tokens=_first(final.total_prompt_tokens, *_sum([step.prompt_tokens for step in steps])),
            output_tokens=_first(final.total_completion_tokens, *_sum([step.completion_tokens for step in steps])),
            cached_tokens=_first(final.total_cached_tokens, *_sum([step.cached_tokens for step in steps])),
            cost_usd=_first(final.total_cost_usd, *_sum([step.cost_usd for step in steps])),
        )
        return usage if usage != Usage() else None


def decode_atif(data: bytes) -> AtifTrajectory:
    """Raises ValueError: it is no JSON, or no trajectory; the text says where."""
    try:
        return msgspec.json.decode(data, type=AtifTrajectory)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _sum(values: list[Any]) -> list[Any]:
    known = [value for value in values if value is not None]
    return [sum(known)] if known else []


def _first(*values: Any) -> Any:
    """The first value that is a count or a price: agents write -1 for what they do not know."""
    return next((value for value in values if value is not None and value >= 0), None)
