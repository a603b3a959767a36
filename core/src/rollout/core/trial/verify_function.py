"""Finding and calling a Python verifier: what runs in the worker's process for the `python` verifier and for reward functions."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import ModuleType
from typing import Any

from rollout.core.episodes import Episode, Task, Trajectory
from rollout.core.errors import RewardInvalidError
from rollout.core.trial.coercion import coerce
from rollout.core.trial.python_worker import Rejected, Sandbox, call_by_name
from rollout.core.types import VerifyResult

_loaded: dict[str, tuple[tuple[int, int], ModuleType]] = {}


def evaluate(
    *, file: str | None, module: str | None, function: str, task: dict[str, Any], episode: dict[str, Any], sandbox: bool
) -> VerifyResult:
    """Call a verifier and return its verdict.

    The verifier is `function` of the Python file `file`, or of the importable `module`.

    Raises:
        Rejected: it is not there, wants what there is not, or returned what is no verdict.
    """
    verifier = _verifier(file, module, function)
    value = call_by_name(verifier, Known(task, episode, sandbox))
    if inspect.isawaitable(value):
        value = asyncio.run(_awaited(value))
    try:
        return coerce(value, f"{getattr(verifier, '__qualname__', function)}()")
    except RewardInvalidError as error:
        raise Rejected(str(error)) from error


async def _awaited(value: Any) -> Any:
    return await value


class Known(Mapping[str, Any]):
    """What a verifier can ask for, made when it does."""

    def __init__(self, task: dict[str, Any], episode: dict[str, Any], sandbox: bool) -> None:
        self._names = ("task", "metadata", "episode", "trajectory", *(("sandbox",) if sandbox else ()))
        self._raw = task, episode

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Any:
        match name:
            case "task":
                return self._task
            case "metadata":
                return self._task.metadata
            case "episode":
                return self._episode
            case "trajectory":
                return self._trajectory
            case "sandbox" if name in self._names:
                return Sandbox()
        raise KeyError(name)

    @cached_property
    def _task(self) -> Task:
        return Task.from_dict(self._raw[0])

    @cached_property
    def _episode(self) -> Episode:
        made = Episode.from_dict(self._raw[1])
        made.task = made.task if made.task is not None else self._task
        return made

    @cached_property
    def _trajectory(self) -> dict[str, Any]:
        last = self._episode.trajectories[-1] if self._episode.trajectories else Trajectory(uid="", name="")
        return {
            "uid": last.uid,
            "name": last.name,
            "task": last.task,
            "output": self._episode.answer,
            "steps": [{"id": step.id, "input": step.input, "output": step.output, "reward": step.reward} for step in last.steps],
        }


def _verifier(file: str | None, module: str | None, function: str) -> Any:
    """The function; of a class or an object its `evaluate`."""
    where = file or module or ""
    found: Any = _load(file) if file is not None else _import(str(module))
    for part in function.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise Rejected(f"{where} has no `{function}`")
    if isinstance(found, type):
        found = found()
    if not inspect.isroutine(found) and hasattr(found, "evaluate"):
        found = found.evaluate
    if not callable(found):
        raise Rejected(f"{where}: `{function}` is a {type(found).__name__}, which cannot be called")
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise Rejected(f"there is no Python module `{name}`") from error
        raise


def _load(file: str) -> ModuleType:
    """The module of a file, kept while the file stays as it is."""
    try:
        status = os.stat(file)
    except OSError as error:
        raise Rejected(f"{file}: {error.strerror}") from error
    stamp = (status.st_mtime_ns, status.st_size)
    known = _loaded.get(file)
    if known is not None and known[0] == stamp:
        return known[1]
    specification = importlib.util.spec_from_file_location("rollout_verifier", file)
    if specification is None or specification.loader is None:
        raise Rejected(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(specification)
    sys.modules["rollout_verifier"] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    _loaded.clear()  # a data set with a verifier per task would fill the memory
    _loaded[file] = (stamp, module)
    return module
