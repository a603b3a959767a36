"""A dataset on disk: a folder of tasks, one task, or nested groups of tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rollout.core.errors import TaskError, TaskNotFoundError
from rollout.core.tasks.commits import EnclosingCommits
from rollout.core.tasks.task import CONFIG, INSTRUCTION, TEST_SCRIPT, LoadedTask, load_task


@dataclass(frozen=True)
class LoadedDataset:
    """The tasks of a folder, sorted by name, and those that cannot be used with what is wrong with them."""

    path: Path
    tasks: list[LoadedTask] = field(default_factory=list)
    invalid: list[tuple[Path, TaskError]] = field(default_factory=list)
    """Paths are below `path` as it was given."""


def load_dataset(path: Path) -> LoadedDataset:
    """Load every task below `path`, or the one task that `path` is.

    A folder without task.toml is a group; its tasks are called `group/task`. Hidden folders are skipped. A task that
    cannot be used does not hide the others: it is in `invalid`.

    Raises:
        TaskNotFoundError: there is no such folder, or no task in it.
    """
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "no such folder"
        raise TaskNotFoundError(f"dataset {path}: {what}")
    dataset = LoadedDataset(path)
    commits = EnclosingCommits()
    names: dict[str, str] = {}
    try:
        for name, folder in sorted(_task_folders(path)):
            try:
                other = names.setdefault(name.casefold(), name)
                if other != name:
                    raise TaskError(f"{folder}: its name differs from {other!r} only in case; rename one of them")
                if folder.is_symlink() and not folder.resolve().is_relative_to(path.resolve()):
                    target = os.readlink(folder)
                    raise TaskError(f"{folder}: is a link to {target!r}, which is outside the dataset; put a copy in its place")
                dataset.tasks.append(load_task(folder, name=name, git_commit_id=commits.of(folder)))
            except TaskError as error:
                dataset.invalid.append((folder, error))
    except OSError as error:
        raise TaskNotFoundError(f"dataset {path}: {error.filename} cannot be read: {error.strerror}") from error
    if not dataset.tasks and not dataset.invalid:
        rows = " (rows of a dataset.toml are not read)" if (path / "dataset.toml").is_file() else ""
        raise TaskNotFoundError(f"dataset {path}: no task in it; a task is a folder with {CONFIG}{rows}")
    return dataset


def _task_folders(root: Path) -> Iterator[tuple[str, Path]]:
    """Name and folder of whatever is a task or was meant to be one."""
    if os.path.lexists(root / CONFIG) or ((root / INSTRUCTION).is_file() and (root / TEST_SCRIPT).is_file()):
        yield root.resolve().name, root
        return
    groups = [""]
    while groups:
        group = groups.pop()
        with os.scandir(root / group) as entries:
            for entry in entries:
                if entry.name.startswith(".") or not entry.is_dir():
                    continue
                name, folder = f"{group}{entry.name}", root / group / entry.name
                if _looks_like_task(folder):
                    yield name, folder
                elif not entry.is_symlink():  # a linked group would give its tasks twice, or never end
                    groups.append(f"{name}/")


def _looks_like_task(folder: Path) -> bool:
    """A folder with any of a task's own files: without task.toml it is a task with a fault, not a group."""
    return any(os.path.lexists(folder / name) for name in (CONFIG, INSTRUCTION, TEST_SCRIPT))
