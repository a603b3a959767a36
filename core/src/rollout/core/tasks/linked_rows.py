"""Rows with `task_path`: each is a task folder somewhere else, with what the row says besides."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rollout.core.errors import TaskError
from rollout.core.tasks.dataset_folder import DatasetFolder, dataset_around
from rollout.core.tasks.rows import Renderer, row_values
from rollout.core.tasks.task import FolderRow, LoadedTask, load_task

PATH = "task_path"


class LinkedRows(NamedTuple):
    """The tasks, and what is wrong with rows, each with its place."""

    tasks: list[LoadedTask]
    invalid: list[tuple[Path, TaskError]]


def are_linked(file: Path) -> bool:
    """Whether the first row of a file leads to a folder: then all of them have to."""
    try:
        with file.open("rb") as lines:
            line = next((line for line in lines if line.strip()), b"")
        return PATH in row_values(line)
    except (OSError, ValueError):
        return False  # said when the rows are read


def load_linked(dataset: DatasetFolder, file: Path, select: Callable[[str], bool], limit: int | None) -> LinkedRows:
    """The task of every row: the folder as it is, under the row's id. The row's instruction, if it has one, wins over the
    folder's, and task.toml over the row's values.

    Raises:
        TaskError: the file cannot be read at all.
    """
    renderer, found, seen = Renderer(dataset), LinkedRows([], []), dict[str, int]()
    number = 0
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise TaskError(f"{file}: cannot be read: {error.strerror}") from error
    for line_number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        number += 1
        try:
            id_, text, values = renderer.linked(line, number - 1)
            if not select(id_):
                continue
            if limit is not None and len(found.tasks) >= limit:
                break
            if seen.setdefault(id_.casefold(), line_number) != line_number:
                raise ValueError(f"its id is that of line {seen[id_.casefold()]}, or differs only in case")
            path = values.get(PATH)
            if not isinstance(path, str) or not path:
                raise ValueError(f"has no {PATH}, which other rows have")
            folder = dataset.path / Path(os.path.expanduser(path))
            task = load_task(folder, name=id_, dataset=dataset_around(folder))
        except (ValueError, UnicodeDecodeError, TaskError) as error:
            found.invalid.append((file, TaskError(f"{file}:{line_number}: {error}")))
            continue
        digest = hashlib.sha256(line.strip()).hexdigest()
        found.tasks.append(replace(task, row=FolderRow(text, renderer.metadata(values), digest)))
    if not number:
        raise TaskError(f"{file}: there is no row in it")
    return found
