"""What reward functions compare: the agent's answer, and what the task expects."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollout.core.episodes import Episode, Trajectory
from rollout.core.errors import VerifierError
from rollout.core.protocols import TrialView
from rollout.core.tasks.task import CONFIG
from rollout.core.tasks.view import folder_metadata
from rollout.core.types import Struct, TaskFault, TaskOutline, TransferLimits

EXPECTED_FIELDS = ("ground_truth", "expected_answer", "expected", "answer", "target", "solution", "label")
"""Fields of a task's metadata that may hold what is expected; the first that is there counts."""

MAX_ANSWER_BYTES = 1024 * 1024

_LIMITS = TransferLimits(max_file_bytes=MAX_ANSWER_BYTES, max_total_bytes=MAX_ANSWER_BYTES, max_files=1)


class AnswerSource(Struct, frozen=True, kw_only=True):
    """Where the agent's answer is. By default: what the agent gave as its answer, else the file `/logs/agent/answer.txt`, else
    what it printed."""

    file: str | None = None
    """A file in the environment that holds the answer, at most 1 MiB."""
    last_line: bool = False
    """Only its last line that is not empty."""


async def answer_of(trial: TrialView, source: AnswerSource) -> str:
    """The agent's answer; an agent that said nothing gave an empty one.

    Raises:
        VerifierError: the file that should hold it is not there, too large, or not text.
    """
    text = await _read(trial, source.file) if source.file is not None else await _said(trial)
    if source.last_line:
        text = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    return text


async def told(trial: TrialView) -> Episode:
    """The trial's episode; an agent that gave no answer gets as its output what `answer_of` finds."""
    episode = trial.episode
    if episode.answer or not (said := await answer_of(trial, AnswerSource())):
        return episode
    *earlier, last = episode.trajectories or [Trajectory()]
    return replace(episode, trajectories=[*earlier, replace(last, output=said)])


def expected_of(trial: TrialView, given: str | list[str] | None, field: str | None = None) -> list[str]:
    """The answers that are right: as given, else what the task's metadata says.

    Raises:
        VerifierError: neither says anything.
    """
    if given is not None:
        return [given] if isinstance(given, str) else list(given)
    return _expected_in(trial.task.metadata, field)


def expected_faults(task: TaskOutline, given: object, field: str | None = None) -> Iterator[TaskFault]:
    """Whether `expected_of` will find nothing: in a folder's metadata, or in that of any of the first rows."""
    if given is not None:
        return
    file = None if task.is_row else task.directory / CONFIG
    if file is not None:
        places = [folder_metadata(task.directory, task.dataset_directory)] if file.is_file() else []
    else:
        places = list(task.rows)
    faults = [fault for metadata in places if (fault := _expected_fault(metadata, field)) is not None]
    if faults and len(faults) == len(places):
        yield TaskFault(message=faults[0], file=file)


def _expected_fault(metadata: dict[str, Any], field: str | None) -> str | None:
    try:
        _expected_in(metadata, field)
    except VerifierError as error:
        return str(error)
    return None


def _expected_in(metadata: dict[str, Any], field: str | None) -> list[str]:
    places = [metadata]
    if isinstance(metadata.get("metadata"), dict):
        places.append(metadata["metadata"])  # of a task.toml
    names: Iterable[str] = (field,) if field is not None else EXPECTED_FIELDS
    for name in names:
        for place in places:
            if place.get(name) is not None:
                value = place[name]
                return [as_text(item) for item in value] if isinstance(value, list | tuple) else [as_text(value)]
    wanted = f"`{field}`" if field is not None else ", ".join(f"`{name}`" for name in EXPECTED_FIELDS)
    raise VerifierError(f"nothing says what is expected: give the option `expected`, or one of {wanted} in the task's metadata")


def as_text(value: Any) -> str:
    """A value of a row as an answer would spell it: whole floats without their fraction."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


async def _said(trial: TrialView) -> str:
    if answer := trial.episode.answer:
        return answer
    if not (trial.trial_dir / "logs").exists():
        await trial.collect_logs()
    for file in (trial.trial_dir / "logs/agent/answer.txt", trial.trial_dir / "answer.txt", trial.trial_dir / "agent/stdout.txt"):
        if file.is_file() and not file.is_symlink():
            return _text(file, str(file))
    return ""


async def _read(trial: TrialView, name: str) -> str:
    with tempfile.TemporaryDirectory(prefix="rollout-answer-") as scratch:
        copy = Path(scratch) / "answer"
        try:
            report = await trial.environment.download(name, copy, _LIMITS)
        except FileNotFoundError as error:
            raise VerifierError(f"the agent left no {name}, which is to hold its answer") from error
        if report.skipped or not copy.is_file():
            reason = report.skipped[0][1] if report.skipped else "it is a folder"
            raise VerifierError(f"{name} is not usable as an answer: {reason}")
        return _text(copy, name)


def _text(file: Path, name: str) -> str:
    data = file.read_bytes()
    if len(data) > MAX_ANSWER_BYTES:
        data = data[-MAX_ANSWER_BYTES:]
    return data.decode("utf-8", "replace")
