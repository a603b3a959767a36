"""A folder with a dataset.toml: what it says, and where its rows are."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rollout.core.config.dataset import DatasetFile
from rollout.core.config.load import load_dataset_file
from rollout.core.errors import ConfigError, TaskError

DATASET = "dataset.toml"
_LEVELS = 3


class DatasetFolder(NamedTuple):
    """A data set's folder and configuration."""

    path: Path
    """Absolute, links resolved."""
    config: DatasetFile
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.config.name or self.path.name


def read_dataset_folder(path: Path) -> DatasetFolder | None:
    """The data set that `path` is, or None when it has no dataset.toml.

    Raises:
        TaskError: dataset.toml cannot be read; one line.
    """
    if not (path / DATASET).is_file():
        return None
    try:
        config, warnings = load_dataset_file(path / DATASET)
    except ConfigError as error:
        raise TaskError(str(error)) from error
    return DatasetFolder(path.resolve(), config, warnings)


def dataset_around(task: Path) -> DatasetFolder | None:
    """The data set of folders that a task belongs to which is named by itself: the nearest dataset.toml above it.

    A data set that lists its tasks has to list this one. Looked for in the three folders above, within one repository.

    Raises:
        TaskError: dataset.toml cannot be read.
    """
    path = task.resolve()
    for above in path.parents[:_LEVELS]:
        if not (above / ".git").exists() and not (above / DATASET).is_file():
            continue
        found = read_dataset_folder(above)
        if found is None or rows_file(found) is not None:
            return None
        listed = {(found.path / name).resolve() for name in found.config.task_paths}
        return found if not listed or path in listed else None
    return None


def rows_file(dataset: DatasetFolder, split: str | None = None) -> Path | None:
    """The file of rows, or None for a data set of folders.

    `data` of dataset.toml wins, then `data/<split>.jsonl`. Without either, and when nobody asked for a split, the first file
    of `data/` by name.

    Raises:
        TaskError: rows are declared, or a split is asked for, and it is not there.
    """
    config, folder = dataset.config, dataset.path / "data"
    if config.type == "sandbox":
        return None
    if config.data is not None and split in (None, config.split):
        file = dataset.path / config.data
        if file.is_file():
            return file
        if config.type == "simple":
            raise TaskError(f"{dataset.path / DATASET}: data: {config.data!r} is no file of the data set")
        return None
    found = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
    file = folder / f"{split or config.split}.jsonl"
    if file in found:
        return file
    if found and split is None:
        return found[0]
    if found or config.type == "simple":
        there = f"; there are {', '.join(path.stem for path in found)}" if found else ""
        raise TaskError(f"{file}: no such file{there}")
    return None
