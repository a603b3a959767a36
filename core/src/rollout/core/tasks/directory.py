"""A dataset on disk: rows, a folder of tasks, one task, or nested groups of tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollout.core.episodes import Task
from rollout.core.errors import TaskError, TaskNotFoundError
from rollout.core.tasks.commits import EnclosingCommits
from rollout.core.tasks.dataset_folder import DATASET, DatasetFolder, dataset_around, read_dataset_folder, rows_file
from rollout.core.tasks.linked_rows import are_linked, load_linked
from rollout.core.tasks.rows import RowDataset, RowFault, fault_lines, index_rows
from rollout.core.tasks.task import CONFIG, INSTRUCTION, LoadedTask, load_task
from rollout.core.tasks.verifier_declaration import TEST_MODULE, TEST_SCRIPT


@dataclass
class LoadedDataset:
    """The tasks of a folder, sorted by name, and those that cannot be used with what is wrong with them."""

    path: Path
    name: str
    folder: DatasetFolder | None = None
    """What its dataset.toml says."""
    tasks: list[LoadedTask] = field(default_factory=list)
    rows: RowDataset | None = None
    """Instead of `tasks`."""
    given: Sequence[Task] = ()
    """Tasks that were not loaded but made in Python."""
    invalid: list[tuple[Path, TaskError]] = field(default_factory=list)
    """Paths are below `path` as it was given."""
    row_faults: list[RowFault] = field(default_factory=list)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is doubtful about dataset.toml."""
        return self.folder.warnings if self.folder else ()

    def __len__(self) -> int:
        return len(self.tasks) if self.rows is None else len(self.rows)


def load_dataset(
    path: Path,
    *,
    split: str | None = None,
    select: Callable[[str], bool] = lambda name: True,
    limit: int | None = None,
    row_key: Callable[[str], str] = str.casefold,
    name: str | None = None,
) -> LoadedDataset:
    """Load every task below `path`, or the one task that `path` is; or find out where its rows are.

    A folder without task.toml is a group; its tasks are called `group/task`. Hidden folders are skipped. A task that
    cannot be used does not hide the others: it is in `invalid`. `select`, `limit` and `row_key` are for rows alone, which are
    too many to be chosen from later.

    Raises:
        TaskNotFoundError: there is no such folder, or no task in it.
        TaskError: dataset.toml, or the file of rows as a whole, cannot be used.
    """
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "no such folder"
        raise TaskNotFoundError(f"dataset {path}: {what}")
    folder = read_dataset_folder(path)
    loaded = LoadedDataset(path, name or (folder.name if folder else path.resolve().name), folder)
    if folder is not None and (file := rows_file(folder, split)) is not None:
        if are_linked(file):
            loaded.tasks, loaded.invalid = load_linked(folder, file, select, limit)
            return loaded
        shown = path / file.relative_to(folder.path) if file.is_relative_to(folder.path) else file
        loaded.rows, loaded.row_faults = index_rows(folder, file, select=select, limit=limit, key=row_key)
        loaded.invalid += [(shown, TaskError(line)) for line in fault_lines(shown, loaded.row_faults)]
        return loaded
    if split is not None:
        raise TaskError(f"dataset {path}: has no rows, and so no split {split!r}")
    _load_folders(loaded)
    if not loaded.tasks and not loaded.invalid:
        if folder is not None:
            rows = f", and rows are in data/{folder.config.split}.jsonl"
        else:
            rows = f"; rows need a {DATASET} beside data/" if (path / "data").is_dir() else ""
        raise TaskNotFoundError(f"dataset {path}: no task in it; a task is a folder with {CONFIG}{rows}")
    return loaded


def _load_folders(loaded: LoadedDataset) -> None:
    path = loaded.path
    commits = EnclosingCommits()
    names: dict[str, str] = {}
    try:
        for name, folder, dataset in _in_order(loaded):
            try:
                other = names.setdefault(name.casefold(), name)
                if other != name:
                    raise TaskError(f"{folder}: its name differs from {other!r} only in case; rename one of them")
                if folder.is_symlink() and not folder.resolve().is_relative_to(path.resolve()):
                    target = os.readlink(folder)
                    raise TaskError(f"{folder}: is a link to {target!r}, which is outside the dataset; put a copy in its place")
                if isinstance(dataset, TaskError):
                    raise dataset
                loaded.tasks.append(load_task(folder, name=name, dataset=dataset, git_commit_id=commits.of(folder)))
            except TaskError as error:
                loaded.invalid.append((folder, error))
    except OSError as error:
        raise TaskNotFoundError(f"dataset {path}: {error.filename} cannot be read: {error.strerror}") from error


_Place = tuple[str, Path, DatasetFolder | TaskError | None]
"""A task's name and folder, and the data set it belongs to or what is wrong with that."""


def _in_order(loaded: LoadedDataset) -> list[_Place]:
    """The task folders: in the order of `tasks` in dataset.toml if it has any, otherwise sorted by name."""
    if loaded.folder is None and (loaded.path / CONFIG).is_file():
        name = loaded.path.resolve().name
        try:
            loaded.folder = dataset_around(loaded.path)
        except TaskError as error:
            return [(name, loaded.path, error)]
        return [(name, loaded.path, loaded.folder)]
    listed = loaded.folder.config.task_paths if loaded.folder else []
    if not listed:
        return sorted(_task_folders(loaded.path, loaded.folder), key=lambda place: place[0])
    places: list[_Place] = []
    for name in dict.fromkeys(os.path.normpath(name) for name in listed):
        folder = loaded.path / name
        inside = not os.path.isabs(name) and not name.startswith("..")
        problem = None if inside else TaskError(f"{loaded.path / DATASET}: tasks: {name!r} is outside the data set")
        places.append((name, folder, problem or loaded.folder))
    return places


def _task_folders(root: Path, dataset: DatasetFolder | None) -> Iterator[_Place]:
    """Whatever is a task or was meant to be one."""
    if os.path.lexists(root / CONFIG) or ((root / INSTRUCTION).is_file() and _has_tests(root) and dataset is None):
        yield root.resolve().name, root, dataset
        return
    groups: list[tuple[str, DatasetFolder | None]] = [("", dataset)]
    while groups:
        group, dataset = groups.pop()
        with os.scandir(root / group) as entries:
            for entry in entries:
                if entry.name.startswith(".") or not entry.is_dir():
                    continue
                name, folder = f"{group}{entry.name}", root / group / entry.name
                if _looks_like_task(folder):
                    yield name, folder, dataset
                elif not entry.is_symlink():  # a linked group would give its tasks twice, or never end
                    try:
                        own = read_dataset_folder(folder)
                        if own is not None and rows_file(own) is not None:
                            raise TaskError(f"{folder}: holds rows; name it as a dataset of its own in the job")
                        groups.append((f"{name}/", own or dataset))
                    except TaskError as error:
                        yield name, folder, error


def _looks_like_task(folder: Path) -> bool:
    """A folder with any of a task's own files: without task.toml it is a task with a fault, not a group."""
    if (folder / DATASET).is_file():
        return os.path.lexists(folder / CONFIG)
    return any(os.path.lexists(folder / name) for name in (CONFIG, INSTRUCTION, TEST_SCRIPT))


def _has_tests(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (TEST_SCRIPT, TEST_MODULE))
