"""Finding and calling a Python verifier: what runs in the worker's process for the `python` verifier and for reward functions."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import os
import sys
from types import ModuleType
from typing import Any

import msgspec

from rollout.core.episodes import Episode, Task
from rollout.core.errors import RewardInvalidError
from rollout.core.trial.coercion import coerce
from rollout.core.trial.python_worker import Rejected, Sandbox, call_by_name

_loaded: dict[str, tuple[tuple[int, int], ModuleType]] = {}


def evaluate(
    *, file: str | None, module: str | None, function: str, task: dict[str, Any], episode: dict[str, Any], sandbox: bool
) -> dict[str, Any]:
    """Call a verifier and return its verdict as plain data (a VerifyResult).

    The verifier is `function` of the Python file `file`, or of the importable `module`.

    Raises:
        Rejected: it is not there, wants what there is not, or returned what is no verdict.
    """
    verifier = _verifier(file, module, function)
    known = _known(task, episode)
    if sandbox:
        known["sandbox"] = Sandbox()
    value = call_by_name(verifier, known)
    if inspect.isawaitable(value):
        value = asyncio.run(_awaited(value))
    name = getattr(verifier, "__qualname__", function)
    try:
        result = coerce(value, f"{name}()")
    except RewardInvalidError as error:
        raise Rejected(str(error)) from error
    builtins: dict[str, Any] = msgspec.to_builtins(result)
    return builtins


async def _awaited(value: Any) -> Any:
    return await value


def _known(task: dict[str, Any], episode: dict[str, Any]) -> dict[str, Any]:
    given = Task.from_dict(task)
    made = Episode.from_dict(episode)
    last = made.trajectories[-1] if made.trajectories else None
    trajectory = {
        "uid": last.uid if last else "",
        "name": last.name if last else "",
        "task": last.task if last else None,
        "output": made.answer,
        "steps": [
            {"id": step.id, "input": step.input, "output": step.output, "reward": step.reward}
            for step in (last.steps if last else ())
        ],
    }
    return {"task": given, "metadata": given.metadata, "episode": made, "trajectory": trajectory}


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
