"""A task as Python agents and verifiers see it, made from the spec of a trial."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from rollout.core.config.document import read_document
from rollout.core.dockerfile import Lifted, lifted, read_dockerfile
from rollout.core.episodes import Task
from rollout.core.errors import TaskError
from rollout.core.records import TaskSpec
from rollout.core.tasks.images import content_blocks
from rollout.core.tasks.task import CONFIG, INSTRUCTION, LoadedTask

DOCKERFILE = "environment/Dockerfile"
_DEFAULT_TIMEOUT_SEC = 600.0


def task_of(spec: TaskSpec) -> Task:
    """The task of a trial, read from the host.

    Raises:
        TaskError, ConfigError, OSError, UnicodeDecodeError: it has become unreadable since the job was planned.
    """
    if spec.row is not None:
        dataset_dir = Path(spec.dataset_dir or spec.path)
        text = spec.instruction or ""
        content = content_blocks(text, dataset_dir, spec.images) if spec.images else spec.content
        return Task(spec.name, content or text, spec.row, dataset_dir)
    # Trials of one task come one after the other, and reading its files again would be a fifth of what a trial costs.
    folder = spec.path
    files = [f"{folder}/{CONFIG}", f"{folder}/{INSTRUCTION}", f"{folder}/{DOCKERFILE}"]
    if spec.dataset_dir:
        files.append(f"{spec.dataset_dir}/{DOCKERFILE}")
    stamps = tuple(_stamp(file) for file in files)
    task = _task_of_folder(folder, spec.dataset_dir, spec.instruction, bool(spec.steps), stamps)
    return dataclasses.replace(task, metadata={**spec.row_values, **copy.deepcopy(task.metadata)}, id=spec.row_id or task.id)


@lru_cache(maxsize=64)
def _task_of_folder(
    folder: str, dataset: str | None, instruction: str | None, has_steps: bool, stamps: tuple[tuple[int, ...] | None, ...]
) -> Task:
    path = Path(folder)
    dataset_dir = Path(dataset) if dataset else path
    metadata = folder_metadata(path, dataset_dir)
    package = metadata.get("task")
    name = package.get("name") if isinstance(package, dict) else None
    sub_dir = path.relative_to(dataset_dir) if path != dataset_dir and path.is_relative_to(dataset_dir) else None
    return Task(
        id=name if isinstance(name, str) and name else path.name,
        instruction=_instruction(instruction, path / INSTRUCTION, has_steps),
        metadata=metadata,
        dataset_dir=dataset_dir if sub_dir else path,
        sub_dir=sub_dir,
    )


def _stamp(file: str) -> tuple[int, ...] | None:
    """What changes with the file's content."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _instruction(given: str | None, file: Path, has_steps: bool) -> str:
    """The text; a task with steps need not have one of its own."""
    if given is not None:
        return given
    return "" if has_steps and not file.exists() else file.read_text("utf-8-sig")


def folder_task(loaded: LoadedTask) -> Task:
    """A task folder that was just loaded."""
    dataset_dir = str(loaded.dataset.path) if loaded.dataset else None
    spec = TaskSpec(name=loaded.name, dataset="", path=str(loaded.path), digest="", dataset_dir=dataset_dir)
    return task_of(of_row(spec, loaded))


def of_row(spec: TaskSpec, loaded: LoadedTask) -> TaskSpec:
    """The spec with what the row says that led to the folder, if one did."""
    row = loaded.row
    if row is None:
        return spec
    digest = hashlib.sha256(f"{spec.digest} {row.digest}".encode()).hexdigest()
    return msgspec.structs.replace(spec, instruction=row.text, row_values=row.values, row_id=loaded.name, digest=digest)


def folder_metadata(path: Path, dataset_dir: Path | None = None) -> dict[str, Any]:
    """A task folder's task.toml, with the keys that are lifted from its sections and its Dockerfile.

    What task.toml says wins over the Dockerfile. A Dockerfile that cannot be read lifts nothing.

    Raises:
        ConfigError: task.toml cannot be read.
    """
    metadata: dict[str, Any] = dict(read_document(path / CONFIG))
    environment, agent, verifier = (_table(metadata, name) for name in ("environment", "agent", "verifier"))
    rllm = _table(metadata, "rllm")
    found = lifts(path, dataset_dir)
    if found.image and not environment.get("docker_image"):
        environment = {**environment, "docker_image": found.image}
    if environment:
        metadata["environment"] = environment
    workdir = environment.get("workdir") or found.workdir
    if workdir:
        metadata["workdir"] = workdir
    metadata["env_vars"] = environment.get("env") or {}
    metadata["agent_user"] = agent.get("user")
    metadata["verifier_user"] = verifier.get("user")
    metadata["verifier_timeout"] = verifier.get("timeout_sec", verifier.get("timeout", _DEFAULT_TIMEOUT_SEC))
    metadata["agent_timeout"] = agent.get("timeout_sec", _DEFAULT_TIMEOUT_SEC)
    metadata["setup_commands"] = rllm.get("setup_commands") or environment.get("setup_commands") or []
    return metadata


def lifts(path: Path, dataset_dir: Path | None = None) -> Lifted:
    """What the Dockerfile of a task, or else of its data set, says; nothing when there is none that can be read."""
    for folder in dict.fromkeys((path, dataset_dir or path)):
        file = folder / DOCKERFILE
        if file.is_file():
            try:
                return lifted(read_dockerfile(file))
            except TaskError:
                return Lifted(None, None)
    return Lifted(None, None)


def _table(metadata: dict[str, Any], name: str) -> dict[str, Any]:
    value = metadata.get(name)
    return value if isinstance(value, dict) else {}
