"""YAML, JSON and TOML files as plain values: the guards against what is broken, ambiguous or built to exhaust the reader.

A document is made of mappings with text keys, lists, text, finite numbers within 64 bits, booleans and null; dates are text.
Whatever else a file holds is a ConfigError of one line that says where.
"""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from rollout.core.config import json_places, yaml_reader
from rollout.core.config.place import Place, PlacePath, Syntax, dotted
from rollout.core.errors import ConfigError

MAX_BYTES = {"yaml": 10_000_000, "toml": 10_000_000, "json": 100_000_000}
"""Registries in JSON are made by programs and can be large; the other two are written by hand."""
MAX_DEPTH = 64

_FORMATS = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml"}
_UTF_BOMS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_INTEGERS = range(-(2**63), 2**64)


class Document(NamedTuple):
    """A file's value, and where in the file each part of it is."""

    value: Any
    where: str
    """The file, as messages name it."""
    find_places: Callable[[], Mapping[PlacePath, Place]]
    """Line and original text of each value. Empty for TOML, whose reader does not tell."""


def read_document(path: Path) -> Any:
    """The value of a `.yaml`, `.yml`, `.json` or `.toml` file.

    Raises:
        ConfigError: `job.yaml:12: ...`, one line.
    """
    return open_document(path).value


def open_document(path: Path) -> Document:
    """The same, with the places of its parts."""
    where = _shown(path)
    kind = _FORMATS.get(path.suffix.lower())
    data = _read(path, where, MAX_BYTES[kind or "yaml"])
    if kind is None:
        raise ConfigError(f"{where}: cannot tell its format; name it .yaml, .yml, .json or .toml")
    return _parse(data, where, kind)


def parse_json(data: bytes, where: str) -> Any:
    """The value of JSON that came from elsewhere; `where` names it in messages.

    Raises:
        ConfigError: `where:LINE: ...`, one line.
    """
    return _parse(data, where, "json").value


def parse_yaml(text: str, where: str) -> Document:
    """The value of YAML that came from elsewhere, for instance the command line."""
    return _parse(text.encode("utf-8", "surrogateescape"), where, "yaml")


def _shown(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 160 else f"...{text[-150:]}"


def _read(path: Path, where: str, max_bytes: int) -> bytes:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ConfigError(f"{where}: is a folder; a file is needed")
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{where}: is not a regular file")
        if status.st_size > max_bytes:
            raise ConfigError(f"{where}: {status.st_size / 1e6:.1f} MB are too much; at most {max_bytes / 1e6:.0f} MB are read")
        with path.open("rb") as file:
            return file.read(max_bytes)
    except FileNotFoundError as error:
        hint = "; it is a link to nothing" if path.is_symlink() else ""
        raise ConfigError(f"{where}: no such file{hint}") from error
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{where!r}: not a file name: {error}") from error


def _parse(data: bytes, where: str, kind: str) -> Document:
    try:
        text = _decode(data)
        value, find_places = _PARSERS[kind](text)
        return Document(_checked(value, find_places), where, find_places)
    except Syntax as error:
        raise ConfigError(f"{where}{f':{error.line}' if error.line else ''}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{where}: nested too deeply; at most {MAX_DEPTH} levels are read") from error


def _decode(data: bytes) -> str:
    for bom, name in _UTF_BOMS.items():
        if data.startswith(bom):
            raise Syntax(f"is {name} text; save it as UTF-8")
    if b"\0" in data:
        raise Syntax("holds NUL bytes: a binary file, or text that is not UTF-8", data[: data.index(b"\0")].count(b"\n") + 1)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise Syntax(f"is not UTF-8 text: byte 0x{error.object[error.start]:02x}", line) from error


def _parse_yaml(text: str) -> tuple[Any, Callable[[], Mapping[PlacePath, Place]]]:
    node = yaml_reader.read(text, MAX_DEPTH)
    places: dict[PlacePath, Place] = {}
    value = node.plain((), places)
    return value, lambda: places


def _parse_json(text: str) -> tuple[Any, Callable[[], Mapping[PlacePath, Place]]]:
    def find_places() -> Mapping[PlacePath, Place]:
        return dict(json_places.scan(text))

    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise Syntax("is empty") from error
        raise Syntax(f"is not JSON: {error.msg[0].lower()}{error.msg[1:]} (column {error.colno})", error.lineno) from error
    except _DuplicateKeyError as error:
        key = str(error)
        first, again = json_places.duplicate(text, key)
        raise Syntax(f"the key {_quoted(key)} is given twice (first on line {first})", again) from error
    except ValueError as error:  # int() refuses thousands of digits
        raise Syntax(f"is not JSON that can be used: {error}"[:200]) from error
    return value, find_places


class _DuplicateKeyError(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)
    return found


def _no_constant(name: str) -> Any:
    raise Syntax(f"{name} is not JSON; numbers have to be finite")


def _parse_toml(text: str) -> tuple[Any, Callable[[], Mapping[PlacePath, Place]]]:
    try:
        return tomli.loads(text), dict
    except tomli.TOMLDecodeError as error:
        message = str(error)
        line = text.rstrip("\n").count("\n") + 1 if message.endswith("(at end of document)") else _toml_line(message)
        problem = message.split(" (at ")[0]
        raise Syntax(f"is not TOML: {problem[:1].lower()}{problem[1:]}"[:200], line) from error
    except ValueError as error:  # int() refuses thousands of digits, datetime() a 30th of February
        raise Syntax(f"is not TOML that can be used: {error}"[:200]) from error


def _toml_line(message: str) -> int | None:
    place = message.rpartition("(at line ")[2].partition(",")[0]
    return int(place) if place.isdecimal() else None


_PARSERS = {"yaml": _parse_yaml, "json": _parse_json, "toml": _parse_toml}


def _checked(root: Any, find_places: Callable[[], Mapping[PlacePath, Place]]) -> Any:
    """The value with dates as text, after a look at every part of it. Not recursive: TOML's dotted keys nest without bound."""
    holder: list[Any] = [root]
    waiting: list[tuple[Any, Any, Any, PlacePath]] = [(holder, 0, root, ())]

    def fault(problem: str, path: PlacePath) -> Syntax:
        place = find_places().get(path)
        return Syntax(f"{dotted(path)}: {problem}" if path else problem, place.line if place else None)

    while waiting:
        parent, key, value, path = waiting.pop()
        if isinstance(value, str):
            _check_text(value, path, fault)
        elif isinstance(value, bool) or value is None:
            continue
        elif isinstance(value, int):
            if value not in _INTEGERS:
                raise fault("a whole number beyond 64 bits", path)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise fault("not a finite number", path)
        elif isinstance(value, date | datetime | time):
            parent[key] = value.isoformat()
        elif len(path) >= MAX_DEPTH:
            raise Syntax(f"nested too deeply; at most {MAX_DEPTH} levels are read")
        elif isinstance(value, dict):
            for name, item in value.items():
                _check_text(name, path, fault)
                waiting.append((value, name, item, (*path, name)))
        else:
            waiting.extend((value, index, item, (*path, index)) for index, item in enumerate(value))
    return holder[0]


def _check_text(text: str, path: PlacePath, fault: Callable[[str, PlacePath], Syntax]) -> None:
    if "\0" in text:
        raise fault("a NUL character in a text", path)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise fault("half of a surrogate pair in a text: a character that cannot be written", path) from error


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
