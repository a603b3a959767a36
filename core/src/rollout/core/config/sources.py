"""Laying `ROLLOUT_*` variables and `--set` over a job file, and remembering where each value came from."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rollout.core.config.document import Document, parse_json, parse_yaml
from rollout.core.config.place import PlacePath, dotted
from rollout.core.errors import ConfigError

VARIABLES = {
    "ROLLOUT_JOBS_DIR": "jobs_dir",
    "ROLLOUT_LOG_LEVEL": "log_level",
    "ROLLOUT_N_ATTEMPTS": "n_attempts",
    "ROLLOUT_N_CONCURRENT_TRIALS": "n_concurrent_trials",
    "ROLLOUT_TIMEOUT_MULTIPLIER": "timeout_multiplier",
    "ROLLOUT_ENVIRONMENT_TYPE": "environment.type",
}
"""Variables that win over the job file, and the field each sets. An empty variable counts as unset."""

_SET = re.compile(r"(?P<path>[^=]*)=(?P<value>.*)", re.DOTALL)


class Source(NamedTuple):
    """Where a value was given."""

    name: str
    """The file, `--set agents.0.name`, or the variable."""
    line: int | None = None
    written: str | None = None
    """How a number, boolean or null was written."""
    path: PlacePath | None = None
    """The key, when `name` says it."""
    loose: bool = False
    """Given where everything is text (`--set`, a variable): what looks like a number may be meant as text."""

    def __str__(self) -> str:
        return f"{self.name}:{self.line}" if self.line else self.name


class Tree:
    """The plain values of a job before they are checked, and the source of each."""

    def __init__(self, document: Document) -> None:
        self.value: Any = document.value
        self._where = document.where
        places = document.find_places()
        self._sources: dict[PlacePath, Source] = {
            path: Source(document.where, place.line, place.written) for path, place in places.items()
        }
        for path in () if places else _paths(document.value, ()):
            self._sources[path] = Source(document.where)

    def given(self, path: PlacePath) -> Source | None:
        """The source of exactly this value; None when nobody gave it."""
        return self._sources.get(path)

    def source(self, path: PlacePath) -> Source:
        """The source of the value at `path`, or of the nearest one above it."""
        for end in range(len(path), 0, -1):
            found = self._sources.get(path[:end])
            if found is not None:
                return found
        return self._sources.get((), Source(self._where))

    def written(self, path: PlacePath) -> str | None:
        """How the number, boolean or null at `path` was written, when that is known."""
        found = self._sources.get(path)
        return found.written if found else None

    def move(self, old: PlacePath, new: PlacePath) -> None:
        """What came from `old` now is at `new`."""
        self._sources[new] = self.source(old)

    def overlay_variables(self, environ: Mapping[str, str]) -> None:
        """Put the `ROLLOUT_*` variables over the file.

        Raises:
            ConfigError: a value that cannot be read.
        """
        for variable, field in VARIABLES.items():
            if text := environ.get(variable):
                self._put(tuple(field.split(".")), text, variable)

    def overlay_sets(self, sets: Sequence[str]) -> None:
        """Put `a.b.0.c=value` over the file. The value is YAML; an empty one takes the key back to its default.

        Raises:
            ConfigError: it is no such assignment, or it leads through something that has no such part.
        """
        for assignment in sets:
            match = _SET.fullmatch(assignment)
            if match is None:
                raise ConfigError(f"--set {_cut(assignment)}: write KEY=VALUE, for instance agents.0.env.X=1")
            names = re.sub(r"\[([0-9]+)\]", r".\1", match["path"].strip()).split(".")
            if not all(names) or len(names) > 32:
                raise ConfigError(f"--set {_cut(match['path'])}=...: not a key; write for instance agents.0.env.X=1")
            self._put(tuple(names), match["value"], f"--set {_cut('.'.join(names))}")

    def _put(self, names: tuple[str, ...], text: str, name: str) -> None:
        value = _read(text, name)
        parent: Any = self.value
        path: PlacePath = ()
        for part in names[:-1]:
            key = _key(parent, part, path, name)
            path = (*path, key)
            inner = _inner(parent, key, path, name)
            if inner is None:
                inner = {}
                self._sources[path] = Source(name)
            parent[key] = parent = inner
        key = _key(parent, names[-1], path, name)
        parent[key] = value
        path = (*path, key)
        self._sources = {known: source for known, source in self._sources.items() if known[: len(path)] != path}
        written = None if isinstance(value, dict | list) else text
        for below in _paths(value, path):
            self._sources[below] = Source(name, None, written, path if name.startswith("--set") else None, loose=True)


def _paths(value: Any, path: PlacePath) -> Iterator[PlacePath]:
    """The path of the value and of everything within it."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in parts:
        yield from _paths(item, (*path, key))


def _read(text: str, name: str) -> Any:
    """A number, boolean, null, `[list]`, `{mapping}` or quoted text as in YAML; anything else is text as it stands."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name}: the value is not UTF-8 text") from error
    bare = text.strip()
    if bare.startswith('"'):
        with contextlib.suppress(ConfigError):  # JSON writes an emoji as two escapes, which YAML does not have
            return parse_json(bare.encode(), name)
    try:
        value = parse_yaml(text, name).value
    except ConfigError as error:
        if bare[:1] in ("[", "{"):
            raise ConfigError(
                f"{name}: the value cannot be read as a YAML list or mapping; is it quoted for the shell?"
            ) from error
        return text
    if bare[:1] in ("[", "{"):
        return value
    if isinstance(value, dict | list) or (value is None and bare not in ("", "~", "null")):
        return text
    return text if isinstance(value, str) and bare[:1] not in ("'", '"') else value


def _key(parent: Any, part: str, path: PlacePath, name: str) -> str | int:
    if isinstance(parent, dict):
        return part
    if not part.isdecimal():
        raise ConfigError(f"{name}: `{dotted(path)}` is a list; write a position (0 is the first) instead of {_cut(part)!r}")
    if len(part) > 9 or int(part) >= len(parent):
        raise ConfigError(f"{name}: `{dotted(path)}` ends at position {len(parent) - 1} (0 is the first)")
    return int(part)


def _inner(parent: Any, key: str | int, path: PlacePath, name: str) -> Any:
    """The mapping or list at `key`; None when there is nothing."""
    inner = parent.get(key) if isinstance(parent, dict) else parent[key]
    if inner is not None and not isinstance(inner, dict | list):
        raise ConfigError(f"{name}: `{dotted(path)}` is a single value, it has no parts")
    return inner


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def did_you_mean(word: str, known: Sequence[str]) -> str | None:
    """The known word that is close enough to be what was meant."""
    lowered = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word[:80].lower().replace("-", "_"), lowered, n=1, cutoff=0.7)
    return lowered[found[0]] if found else None
