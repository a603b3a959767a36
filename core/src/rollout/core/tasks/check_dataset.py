"""What `rollout tasks check` looks for in a data set as a whole: dataset.toml, templates, rows, the shared verifier."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rollout.core.config.task import VERIFIER_KINDS
from rollout.core.errors import ConfigError, UsageError, boundary
from rollout.core.plugins import decode_options, find
from rollout.core.tasks.dataset_folder import DATASET
from rollout.core.tasks.directory import LoadedDataset
from rollout.core.tasks.images import FOLDER
from rollout.core.tasks.rows import RowDataset
from rollout.core.tasks.template import TEMPLATE
from rollout.core.tasks.verifier_declaration import DeclaredVerifier
from rollout.core.types import OUTLINED_ROWS, TaskFault, TaskOutline

_BRACES = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")


class Place(NamedTuple):
    """Something odd or wrong, in a file of the data set."""

    severity: str
    code: str
    file: Path
    line: int | None
    message: str


def check_dataset(loaded: LoadedDataset) -> Iterator[Place]:
    """What is odd about a data set that could be read; faults of single rows are not among it."""
    if loaded.folder is None:
        return
    file = loaded.path / DATASET
    source = file.read_text("utf-8-sig")
    for warning in loaded.warnings:
        yield Place("warning", "dataset.toml", file, line_of_key(source, warning.partition(":")[0]), warning)
    if loaded.rows is not None:
        yield from _check_rows(loaded, loaded.rows, source)
        yield from check_verifier(
            loaded.rows.verifier, TaskOutline(directory=loaded.path, is_row=True, rows=loaded.rows.first(OUTLINED_ROWS)), [file]
        )


def check_verifier(verifier: DeclaredVerifier, outline: TaskOutline, files: Sequence[Path]) -> Iterator[Place]:
    """What speaks against a verifier before it is used: it is not installed, its options, or what it says itself.

    `files`: the task.toml and the dataset.toml that may declare it.
    """
    try:
        plugin = find("verifiers", verifier.plugin)
        with boundary(ConfigError, "verifier"):
            made = plugin.cls(decode_options(plugin, verifier.options, "verifier"))
    except UsageError as error:
        yield Place("error", "verifier", *_declaration(files), str(error))
        return
    ask: Callable[[TaskOutline], Iterable[TaskFault]] = getattr(made, "task_faults", lambda task: ())
    for fault in ask(outline):
        place = _declaration(files) if fault.file is None else (fault.file, fault.line)
        yield Place("error", "verifier", *place, fault.message)


def _declaration(files: Sequence[Path]) -> tuple[Path, int | None]:
    """The file and line that say what verifies; the first file when none does."""
    for key in (*(f"verifier.{kind}" for kind in VERIFIER_KINDS), "evaluation", "verifier"):
        for file in files:
            if file.is_file() and (line := line_of_key(file.read_text("utf-8-sig", "replace"), key)) is not None:
                return file, line
    return files[0], None


def _check_rows(loaded: LoadedDataset, rows: RowDataset, source: str) -> Iterator[Place]:
    dataset, template = loaded.path / DATASET, loaded.path / TEMPLATE
    config = rows.folder.config
    if rows.renderer.template is not None:
        if config.instruction_field is not None:
            message = f"is not used: {TEMPLATE} wins over it"
            yield Place("warning", "template", dataset, line_of_key(source, "dataset.instruction_field"), message)
        for number, line in enumerate(rows.renderer.template.splitlines(), start=1):
            for match in _BRACES.finditer(line):
                if config.template == "v1" and not re.fullmatch(r"\w+", match[1]):
                    yield Place("warning", "template", template, number, f"{match[0]} names no field and is left as it is")
    wanted = dict.fromkeys(rows.renderer.template_fields, template)
    wanted |= dict.fromkeys(config.metadata_fields, dataset)
    missing: Counter[str] = Counter()
    for _, values in rows.values():
        missing.update(name for name in wanted if name not in values)
    for name, file in wanted.items():
        if missing[name]:
            where = (
                line_of_text(rows.renderer.template or "", name)
                if file == template
                else line_of_key(source, "dataset.metadata_fields")
            )
            share = "no row has" if missing[name] == len(rows) else f"{missing[name]} of {len(rows)} rows lack"
            yield Place("warning", "field", file, where, f"{share} the field {name!r}")
    if config.category == "vlm":
        yield from _check_images(loaded, rows)


def _check_images(loaded: LoadedDataset, rows: RowDataset) -> Iterator[Place]:
    shown = loaded.path / rows.file.relative_to(rows.folder.path) if rows.file.is_relative_to(rows.folder.path) else rows.file
    for line, values in rows.values():
        for value in values.values():
            for name in value if isinstance(value, list) else (value,):
                if isinstance(name, str) and name.startswith(FOLDER) and not (rows.folder.path / name).is_file():
                    yield Place("warning", "image", shown, line, f"{name[:120]} is not there, and the agent will not see it")


def line_of_key(source: str, path: str) -> int | None:
    """The line of a TOML file where `table.key`, or the table itself, is written; `dataset.key` may stand at the top."""
    table = ""
    wanted = {path, path.removeprefix("dataset.")}
    for number, line in enumerate(source.splitlines(), start=1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
            table = header[1]
            if table in wanted:
                return number
        elif (key := re.match(r"\s*([\w.\"'-]+)\s*=", line)) and ".".join(filter(None, (table, key[1].strip("\"'")))) in wanted:
            return number
    return None


def line_of_text(text: str, field: str) -> int | None:
    """The line of a template that names a field."""
    match = re.search(r"\{\{\s*" + re.escape(field) + r"\s*\}\}", text)
    return text.count("\n", 0, match.start()) + 1 if match else None
