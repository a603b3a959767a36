"""What agents and verifiers written as Python functions see: a task, the episode that an agent made of it, and its score.

These are plain, mutable dataclasses: a flow fills them in, a verifier reads them. The field names are rLLM's. All of them go
through JSON without loss (`to_dict`, `from_dict`), because verifiers run in processes of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import msgspec

ContentBlock = dict[str, Any]
"""A part of an instruction in OpenAI's form: `{"type": "text", "text": ...}`, `{"type": "image_url", "image_url": ...}`."""


class TerminationReason(Enum):
    """Why an episode ended."""

    MAX_PROMPT_LENGTH_EXCEEDED = "max_prompt_length_exceeded"
    MAX_RESPONSE_LENGTH_EXCEEDED = "max_response_length_exceeded"
    ENV_DONE = "env_done"
    MAX_TURNS_EXCEEDED = "max_turns_exceeded"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"
    ERROR = "error"


class _Record:
    """JSON in both directions."""

    def to_dict(self) -> dict[str, Any]:
        """The record as what JSON can hold.

        Raises:
            TypeError: a field of type Any holds something that JSON cannot.
        """
        value: dict[str, Any] = msgspec.to_builtins(self, enc_hook=_encoded)
        return value

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """The record that `to_dict` gave.

        Raises:
            msgspec.ValidationError: it is not one.
        """
        return msgspec.convert(value, cls, dec_hook=_decoded)


@dataclass
class Task(_Record):
    """One problem, as pure data: what is to be done and where its files are."""

    id: str
    """A row's `id` or its number; a folder's `[task] name` or its own name."""
    instruction: str | list[ContentBlock]
    """Text, or content blocks when images belong to it."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """A row, or the part of it that `metadata_fields` names; a folder's task.toml with what is lifted from it."""
    dataset_dir: Path = field(default_factory=Path)
    """The folder that holds dataset.toml."""
    sub_dir: Path | None = None
    """The task's folder, relative to `dataset_dir`; None for a row and for a task that is its own data set."""

    @property
    def task_dir(self) -> Path:
        """Where the task's own files are."""
        return self.dataset_dir / self.sub_dir if self.sub_dir else self.dataset_dir

    @property
    def text(self) -> str:
        """The instruction without its images."""
        if isinstance(self.instruction, str):
            return self.instruction
        return "\n".join(str(block.get("text", "")) for block in self.instruction if block.get("type") == "text")


@dataclass
class Signal(_Record):
    """One named figure beside the reward."""

    name: str
    value: float
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class EvalOutput(_Record):
    """What an evaluator says of an episode."""

    reward: float
    is_correct: bool
    signals: list[Signal] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class Step(_Record):
    """One call of a model, or one action."""

    id: str = field(default_factory=lambda: uuid4().hex)
    input: Any = None
    output: Any = None
    action: Any = None
    reward: float = 0.0
    done: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    prompt_ids: list[int] = field(default_factory=list)
    response_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    chat_completions: list[dict[str, Any]] = field(default_factory=list)
    observation: Any = None
    thought: str = ""
    model_response: str = ""
    weight_version: int | None = None

    def __post_init__(self) -> None:
        if self.logprobs and len(self.logprobs) != len(self.response_ids):
            raise ValueError(f"a step has {len(self.response_ids)} response_ids and {len(self.logprobs)} logprobs")


@dataclass
class Trajectory(_Record):
    """What one agent did for one task."""

    uid: str = field(default_factory=lambda: uuid4().hex)
    name: str = "default_traj_name"
    task: Any = None
    steps: list[Step] = field(default_factory=list)
    reward: float | None = None
    """None until it was scored; a flow may set it itself."""
    input: Any = None
    output: Any = None
    """The answer."""
    signals: dict[str, float] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def is_cumulative(self) -> bool:
        """Whether each step's conversation goes on from the one before."""
        chats = [step.chat_completions for step in self.steps]
        return all(later[: len(earlier)] == earlier for earlier, later in pairwise(chats))


@dataclass
class Episode(_Record):
    """One attempt at a task: the trajectories of all agents that took part."""

    id: str = ""
    """`<task>:<attempt, from 0>`; for reading only, the parts are in `task_id` and `attempt`."""
    task: Any = None
    termination_reason: TerminationReason | None = None
    is_correct: bool = False
    session_id: str | None = None
    trajectories: list[Trajectory] = field(default_factory=list)
    artifacts: dict[str, Any] = field(default_factory=dict)
    """What a flow leaves for the verifier; `answer` is looked at first."""
    metrics: dict[str, float] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    task_id: str = ""
    attempt: int = 1

    @property
    def answer(self) -> str:
        """The text that is scored: artifact `answer`, the last trajectory's output, its last step's, the last model response."""
        if (answer := self.artifacts.get("answer")) is not None:
            return str(answer)
        last = self.trajectories[-1] if self.trajectories else Trajectory()
        candidates = [last.output, last.steps[-1].output if last.steps else None]
        candidates += [step.model_response for step in reversed(last.steps)]
        return next((str(text) for text in candidates if text not in (None, "")), "")


@dataclass
class FlowConfig(_Record):
    """What a flow is told besides its task: which model to ask, and where."""

    base_url: str | None = None
    model: str | None = None
    session_uid: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    is_validation: bool = False
    sampling_params: dict[str, Any] = field(default_factory=dict)


def _encoded(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, _Record):
        return value.to_dict()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _decoded(wanted: type, value: Any) -> Any:
    if wanted is Path and isinstance(value, str):
        return Path(value)
    raise TypeError(f"{wanted.__name__} cannot be read from {type(value).__name__}")
