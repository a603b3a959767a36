"""Earlier trials as verifiers see them: the folder on the host stands for what the environment was."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Never
from uuid import uuid4

import msgspec

from rollout.core.aio import run_shielded
from rollout.core.episodes import Episode, Task, Trajectory
from rollout.core.errors import NotKeptError
from rollout.core.protocols import Process, TrialView
from rollout.core.records import TrialSpec
from rollout.core.tasks.cache import cache_dir
from rollout.core.tasks.view import task_of
from rollout.core.trial.artifacts import read_manifest
from rollout.core.trial.paths import LOGS, environment_name, reward_files
from rollout.core.trial.python_processes import PythonProcesses
from rollout.core.types import (
    DEFAULT_TRANSFER_LIMITS,
    Command,
    ExecResult,
    OutputSink,
    TransferLimits,
    TransferReport,
)

EPISODE = "agent/episode.json"
"""In a trial's folder: what an agent told of its work, as rollout.Episode."""


class RecordedEnvironment:
    """What was kept of a trial's environment: `/logs`, and artifacts under the paths that they had."""

    def __init__(self, trial_dir: Path) -> None:
        self._trial_dir = trial_dir

    async def exec(self, command: Command, sink: OutputSink | None = None) -> ExecResult:
        _refuse(f"run {command.argv[0]}")

    async def open(self, command: Command, sink: OutputSink | None = None) -> Process:
        _refuse(f"run {command.argv[0]}")

    async def upload(self, source: Path, target: str, *, owner: str | None = None) -> None:
        _refuse(f"upload {target}")

    async def download(self, source: str, target: Path, limits: TransferLimits = DEFAULT_TRANSFER_LIMITS) -> TransferReport:
        """Copy what was kept.

        Raises:
            FileNotFoundError: `/logs` was kept, and this was not in it.
            NotKeptError: it is elsewhere, and was not kept as an artifact.
        """
        kept = self._kept(source)
        if kept is None:
            if source == LOGS or source.startswith(f"{LOGS}/"):
                raise FileNotFoundError(f"{source} is not among the logs of the trial")
            _refuse(f"look at {source}")
        target.parent.mkdir(parents=True, exist_ok=True)
        if kept.is_dir():
            shutil.copytree(kept, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copyfile(kept, target)
        return TransferReport(files=1)

    async def stop(self) -> None:
        """Nothing runs."""

    def _kept(self, source: str) -> Path | None:
        """Where a file or folder of the environment is now; never outside the trial's folder, never through a link."""
        path = os.path.normpath("/" + source.lstrip("/"))
        inside = path.removeprefix(f"{LOGS}/") if path.startswith(f"{LOGS}/") else None
        places = [_artifact(self._trial_dir / "artifacts", path)]
        if path == LOGS:
            places.append(self._trial_dir / "logs")
        if inside is not None:
            places += [self._trial_dir / "logs" / inside, self._trial_dir / inside]
        root = self._trial_dir.resolve()
        there = (place for place in places if place is not None and place.exists())
        return next((place for place in there if place.resolve().is_relative_to(root)), None)


@asynccontextmanager
async def recorded_trial(trial_dir: Path) -> AsyncIterator[TrialView]:
    """An earlier trial's view with processes of its own for Python functions; what verifiers print is dropped.

    Raises:
        NotKeptError: there is no such folder.
    """
    if not trial_dir.is_dir():
        raise NotKeptError(f"{trial_dir} is not a folder of a trial")
    spec = read_spec(trial_dir)
    scratch = environment_name(spec.job_id if spec is not None else "verifiers", unique=uuid4().hex[:8])
    processes = PythonProcesses(cache_dir() / "work" / scratch)
    try:
        yield recorded_view(trial_dir, spec, processes, {}, lambda stream, chunk: None, trial_dir / "verifier")
    finally:
        await run_shielded(processes.aclose())


def read_spec(trial_dir: Path) -> TrialSpec | None:
    """What the trial was, or None for a folder that is none of ours."""
    try:
        return msgspec.json.decode((trial_dir / "config.json").read_bytes(), type=TrialSpec)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def recorded_view(
    trial_dir: Path, spec: TrialSpec | None, run_python: Any, env: dict[str, str], sink: OutputSink, log_dir: Path
) -> TrialView:
    """The view that a verifier gets of an earlier trial.

    Raises:
        TaskError: its task is not there any more.
    """
    task = task_of(spec.task) if spec is not None else Task(id=trial_dir.name, instruction="", dataset_dir=trial_dir)

    async def collect_logs() -> TransferReport:
        return TransferReport()

    return TrialView(
        environment=RecordedEnvironment(trial_dir),
        task=task,
        episode=_episode(trial_dir, task, spec),
        task_directory=Path(spec.task.path) if spec is not None else trial_dir,
        instruction=task.text,
        metadata=task.metadata if spec is None or spec.task.row is not None else spec.task.metadata,
        env=env,
        workdir=spec.environment.workdir if spec is not None else None,
        user=spec.verifier.user if spec is not None else None,
        trial_dir=trial_dir,
        log_dir=log_dir,
        sink=sink,
        tests_directory=spec.tests_directory if spec is not None else trial_dir / "tests",
        reward_files=reward_files(rllm=spec is not None and spec.task.rllm),
        collect_logs=collect_logs,
        run_python=run_python,
    )


def read_episode(trial_dir: Path) -> Episode | None:
    """What the agent told of its work; None when it told nothing."""
    try:
        return Episode.from_dict(msgspec.json.decode((trial_dir / EPISODE).read_bytes()))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _episode(trial_dir: Path, task: Task, spec: TrialSpec | None) -> Episode:
    told = read_episode(trial_dir)
    if told is not None:
        return told
    name, uid, attempt = (spec.agent.name, spec.trial_id, spec.attempt) if spec is not None else ("agent", "", 1)
    made = Trajectory(uid=uid, name=name, task=task.id, input=task.text)
    return Episode(id=f"{task.id}:{attempt - 1}", task=task.id, trajectories=[made], task_id=task.id, attempt=attempt)


def _artifact(folder: Path, path: str) -> Path | None:
    """Where an artifact, or something inside one, is now."""
    for artifact in read_manifest(folder):
        inside = os.path.relpath(path, artifact.source)
        if artifact.status == "kept" and inside.partition("/")[0] != "..":
            return folder / artifact.destination / inside
    return None


def _refuse(what: str) -> Never:
    raise NotKeptError(f"cannot {what}: the environment of this trial was not kept")
