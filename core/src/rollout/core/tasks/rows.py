"""Data sets of rows: one JSON object per line, each a task. Kept is where each row starts; rows are read when they are needed."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from rollout.core.episodes import Task
from rollout.core.errors import TaskError
from rollout.core.tasks.dataset_folder import DATASET, DatasetFolder
from rollout.core.tasks.images import content_blocks, image_names
from rollout.core.tasks.task import INSTRUCTION, name_fault
from rollout.core.tasks.template import TEMPLATE, fields, render
from rollout.core.tasks.verifier_declaration import DeclaredVerifier, declared_verifier

MAX_ROW_BYTES = 64 * 1024 * 1024
_MAX_FAULTS = 20
_FALLBACK_FIELDS = ("question", "instruction")


class Row(msgspec.Struct, frozen=True):
    """One row as a task."""

    id: str
    instruction: str
    metadata: dict[str, Any]
    images: tuple[str, ...]
    digest: str
    """SHA-256 of the line, its images, and what it is rendered with."""


@dataclass(frozen=True)
class RowFault:
    """What is wrong with one row."""

    line: int
    message: str


@dataclass
class RowDataset:
    """The rows of one file that were selected. Iterating reads them from the file, in its order."""

    folder: DatasetFolder
    file: Path
    verifier: DeclaredVerifier
    renderer: Renderer
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    """Where each row starts."""
    numbers: array[int] = field(default_factory=lambda: array("Q"))
    """Its number among all rows, from 0: the id of a row that has none."""
    unlike: frozenset[int] = frozenset()
    """Positions of the rows whose `key` an earlier row has too."""
    stamp: tuple[int, int] = (0, 0)
    """Size and time of the file when it was read."""

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[Row]:
        """Every row in turn.

        Raises:
            TaskError: the file has changed since it was read for the first time.
        """
        with self._open() as file:
            for position in range(len(self)):
                yield self._read(file, position)

    def __getitem__(self, position: int) -> Row:
        with self._open() as file:
            return self._read(file, range(len(self))[position])

    def first(self, count: int) -> tuple[dict[str, Any], ...]:
        """The metadata of the first rows."""
        return tuple(row.metadata for row in islice(self, count))

    def ids(self) -> Iterator[str]:
        """The rows' ids alone, which is quicker."""
        with self._open() as file:
            for offset, number in zip(self.offsets, self.numbers, strict=True):
                file.seek(offset)
                yield _id_of(_ID.decode(file.readline()), number)

    def values(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Every row's line in the file and its values as they are written."""
        wanted = set(self.offsets)
        with self._open() as file:
            offset = 0
            for number, line in enumerate(file, start=1):
                if offset in wanted:
                    yield number, row_values(line)
                offset += len(line)

    def task(self, row: Row) -> Task:
        """A row as Python agents and verifiers see it."""
        path = self.folder.path
        instruction = content_blocks(row.instruction, path, row.images) if row.images else row.instruction
        return Task(row.id, instruction, row.metadata, path)

    def _open(self) -> BinaryIO:
        file = self.file.open("rb")
        try:
            self._check_unchanged(file)
        except TaskError:
            file.close()
            raise
        return file

    def _check_unchanged(self, file: BinaryIO) -> None:
        status = os.fstat(file.fileno())
        if (status.st_size, status.st_mtime_ns) != self.stamp:
            raise TaskError(f"{self.file}: has changed since the job was planned; run the job again")

    def _read(self, file: BinaryIO, position: int) -> Row:
        self._check_unchanged(file)
        file.seek(self.offsets[position])
        try:
            return self.renderer.row(file.readline(), self.numbers[position])
        except (ValueError, UnicodeDecodeError) as error:
            raise TaskError(f"{self.file}: row {self.numbers[position]}: {error}") from error


class Renderer:
    """Makes tasks of lines: ids, instructions, metadata."""

    def __init__(self, folder: DatasetFolder) -> None:
        """Raises TaskError: a template that cannot be read, or names a field wrongly."""
        config = folder.config
        self._folder = folder.path
        self.template = _text(folder.path / TEMPLATE)
        self._literal = _text(folder.path / INSTRUCTION)
        self._mode = config.template
        self._field = config.instruction_field
        self._metadata_fields: Collection[str] = config.metadata_fields
        self._has_images = config.category == "vlm"
        said = (self.template, self._literal, self._mode, self._field, list(self._metadata_fields), self._has_images)
        self._basis = msgspec.json.encode(said)

    @property
    def template_fields(self) -> list[str]:
        return fields(self.template, self._mode) if self.template is not None else []

    def row(self, line: bytes, number: int) -> Row:
        """One line as a task.

        Raises:
            ValueError: not a JSON object, or nothing that could be its instruction; without the place.
        """
        if len(line) > MAX_ROW_BYTES:
            raise ValueError(f"is longer than {MAX_ROW_BYTES // 2**20} MiB")
        values = row_values(line)
        id_ = _id_of(_Identified(values.get("id")), number)
        if fault := name_fault(id_):
            raise ValueError(fault)
        instruction = self._instruction(values)
        if not instruction.strip():
            raise ValueError("its instruction is empty")
        images = image_names(values, self._folder) if self._has_images else ()
        return Row(id_, instruction, self.metadata(values), images, self._digest(line, images))

    def linked(self, line: bytes, number: int) -> tuple[str, str | None, dict[str, Any]]:
        """Id, instruction if it has one, and values of a line whose task is a folder.

        Raises:
            ValueError: as `row`.
        """
        values = row_values(line)
        id_ = _id_of(_Identified(values.get("id")), number)
        if fault := name_fault(id_):
            raise ValueError(fault)
        fields = (self._field,) if self._field is not None else _FALLBACK_FIELDS
        if self.template is None and all(values.get(name) is None for name in fields):
            return id_, None, values
        return id_, self._instruction(values), values

    def _instruction(self, values: Mapping[str, Any]) -> str:
        """Template, then the field that dataset.toml names, then instruction.md, then the usual fields."""
        if self.template is not None:
            return render(self.template, values, self._mode)
        if self._field is not None:
            if values.get(self._field) is None:
                raise ValueError(f"has no field {self._field!r}, which dataset.toml names as instruction_field")
            return str(values[self._field])
        if self._literal is not None:
            return self._literal
        for name in _FALLBACK_FIELDS:
            if values.get(name) is not None:
                return str(values[name])
        raise ValueError(f"has no instruction: write {TEMPLATE}, or `instruction_field` in {DATASET}")

    def metadata(self, values: dict[str, Any]) -> dict[str, Any]:
        """What of a row's values is its metadata."""
        return {name: values.get(name) for name in self._metadata_fields} if self._metadata_fields else values

    def _digest(self, line: bytes, images: tuple[str, ...]) -> str:
        total = hashlib.sha256(self._basis)
        total.update(line.strip())
        for name in images:
            total.update(hashlib.sha256((self._folder / name).read_bytes()).digest())
        return total.hexdigest()


def index_rows(
    folder: DatasetFolder,
    file: Path,
    *,
    select: Callable[[str], bool] = lambda id_: True,
    limit: int | None = None,
    key: Callable[[str], str] = str.casefold,
) -> tuple[RowDataset, list[RowFault]]:
    """Read a file of rows once and check every row that is wanted; what is wrong is in the second value.

    `key` is what must differ between rows (a folder's name, for instance): `RowDataset.unlike` holds those where it does not.

    Raises:
        TaskError: the file, the template or the verifier cannot be used at all.
    """
    dataset = RowDataset(folder, file, _verifier_of(folder), Renderer(folder), stamp=_stamp(file))
    faults: list[RowFault] = []
    keys = array("Q")
    number = offset = 0
    try:
        with file.open("rb") as lines:
            for line_number, line in enumerate(lines, start=1):
                start, offset = offset, offset + len(line)
                if not line.strip():
                    continue
                number += 1
                if limit is not None and len(dataset) >= limit:
                    break
                try:
                    row = dataset.renderer.row(line, number - 1)
                except (ValueError, UnicodeDecodeError, OSError) as error:
                    faults.append(RowFault(line_number, str(error)))
                    continue
                if select(row.id):
                    dataset.offsets.append(start)
                    dataset.numbers.append(number - 1)
                    keys.append(_hash(key(row.id)))
    except OSError as error:
        raise TaskError(f"{file}: cannot be read: {error.strerror}") from error
    if not number:
        raise TaskError(f"{file}: there is no row in it")
    faults += _set_apart(dataset, keys, key)
    return dataset, sorted(faults, key=lambda fault: fault.line)


def fault_lines(file: Path, faults: list[RowFault]) -> list[str]:
    """The faults as messages, the first ones in full."""
    lines = [f"{file}:{fault.line}: {fault.message}" for fault in faults[:_MAX_FAULTS]]
    return [*lines, f"{file}: and {len(faults) - _MAX_FAULTS} more rows"] if len(faults) > _MAX_FAULTS else lines


class _Identified(msgspec.Struct, frozen=True):
    id: Any = None


_ID = msgspec.json.Decoder(_Identified)
_ROW = msgspec.json.Decoder(dict[str, Any])


def row_values(line: bytes) -> dict[str, Any]:
    """A line as a row. Raises ValueError."""
    try:
        return _ROW.decode(line)
    except msgspec.ValidationError as error:
        raise ValueError("is not a JSON object") from error
    except msgspec.DecodeError as error:
        raise ValueError(f"is not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


def _id_of(row: _Identified, number: int) -> str:
    if row.id is None:
        return str(number)
    if isinstance(row.id, str | int | float):
        return str(row.id)
    raise ValueError("its id is neither text nor a number")


def _verifier_of(folder: DatasetFolder) -> DeclaredVerifier:
    verifier = declared_verifier(folder.config.verifier, folder.path, folder.path, folder.config)
    if verifier is None:
        raise TaskError(
            f"{folder.path / DATASET}: no verifier: declare one under [verifier] (script, module, name or import_path), "
            "or write tests/evaluate.py"
        )
    return verifier


def _set_apart(dataset: RowDataset, keys: array[int], key: Callable[[str], str]) -> list[RowFault]:
    """Take out the rows whose id an earlier row has, and note those whose key only is the same."""
    ordered = sorted(keys)
    doubtful = {one for one, other in pairwise(ordered) if one == other}
    if not doubtful:
        return []
    seen: set[str] = set()
    first: dict[str, int] = {}
    unlike: set[int] = set()
    repeated: dict[int, int] = {}
    for position, id_ in enumerate(dataset.ids()):
        if keys[position] not in doubtful:
            continue
        if id_ in first:
            repeated[position] = first[id_]
            continue
        first[id_] = position
        if key(id_) in seen:
            unlike.add(position - len(repeated))
        seen.add(key(id_))
    lines = _lines_at(dataset.file, {dataset.offsets[at] for pair in repeated.items() for at in pair})
    faults = [
        RowFault(lines[dataset.offsets[later]], f"its id is that of line {lines[dataset.offsets[earlier]]}")
        for later, earlier in repeated.items()
    ]
    if repeated:
        kept = [position for position in range(len(dataset)) if position not in repeated]
        dataset.offsets = array("Q", (dataset.offsets[position] for position in kept))
        dataset.numbers = array("Q", (dataset.numbers[position] for position in kept))
    dataset.unlike = frozenset(unlike)
    return faults


def _lines_at(file: Path, offsets: Collection[int]) -> dict[int, int]:
    """The numbers of the lines that start at these offsets."""
    found: dict[int, int] = {}
    if offsets:
        with file.open("rb") as lines:
            offset = 0
            for number, line in enumerate(lines, start=1):
                if offset in offsets:
                    found[offset] = number
                offset += len(line)
    return found


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest())


def _stamp(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _text(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: cannot be read: {error}") from error
