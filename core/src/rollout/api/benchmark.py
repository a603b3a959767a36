"""`BenchmarkLoader`: the tasks of a data set on disk, from Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import msgspec

from rollout.core.episodes import Task
from rollout.core.errors import TaskError
from rollout.core.tasks.dataset_folder import DATASET
from rollout.core.tasks.directory import load_dataset
from rollout.core.tasks.rows import RowDataset
from rollout.core.tasks.task import CONFIG
from rollout.core.tasks.view import folder_task


@dataclass(frozen=True)
class BenchmarkResult:
    """A loaded data set."""

    tasks: Sequence[Task]
    """Rows are read from the file each time they are looked at, so that a large data set needs no memory."""
    name: str
    split: str = "test"
    harness_name: str | None = None
    """The agent that was asked for, or that dataset.toml names as `default_agent`."""
    sandbox_backend: str | None = None
    """The environment type that was asked for, or that dataset.toml names as `default_sandbox`."""
    description: str = ""
    category: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What dataset.toml says."""


class BenchmarkLoader:
    """Finds out what a folder is: rows with a shared verifier, a folder per task, one task, or folders without dataset.toml."""

    @staticmethod
    def load(
        path: str | Path, sandbox_backend: str | None = None, harness_name: str | None = None, *, split: str | None = None
    ) -> BenchmarkResult:
        """Load a data set.

        Raises:
            TaskNotFoundError: there is no such folder, or no task in it.
            TaskError: tasks that cannot be used, a line each.
        """
        loaded = load_dataset(Path(path), split=split)
        if loaded.invalid:
            raise TaskError("\n".join(str(error) for _, error in loaded.invalid))
        config = loaded.folder.config if loaded.folder else None
        tasks: Sequence[Task] = _Rows(loaded.rows) if loaded.rows else [folder_task(task) for task in loaded.tasks]
        return BenchmarkResult(
            tasks=tasks,
            name=loaded.name,
            split=loaded.rows.file.stem if loaded.rows else (config.split if config else "test"),
            harness_name=harness_name or (config.default_agent if config else None),
            sandbox_backend=sandbox_backend or (config.default_sandbox if config else None),
            description=config.description if config else "",
            category=config.category if config else "",
            metadata=msgspec.to_builtins(config) if config else {},
        )

    @staticmethod
    def is_local_benchmark(path: str | Path) -> bool:
        """Whether a folder is there that `load` would take for a data set."""
        folder = Path(path)
        if not folder.is_dir():
            return False
        own = any((folder / name).is_file() for name in (DATASET, CONFIG))
        return own or any((child / CONFIG).is_file() for child in folder.iterdir())


class _Rows(Sequence[Task]):
    """The tasks of a file of rows, each made when it is asked for."""

    def __init__(self, rows: RowDataset) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Task]:
        return (self._rows.task(row) for row in self._rows)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self._rows.task(self._rows[position]) for position in range(len(self))[index]]
        return self._rows.task(self._rows[index])
