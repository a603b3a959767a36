"""Checking plain values against the types of a Struct: every fault at once, each with its path, in words a user knows.

msgspec.convert stops at the first fault and names types; it stays the authority, and runs on what this check lets through.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from rollout.core.config.dialects import ALIASES, HINTS, ITEM_FORMS
from rollout.core.config.interpolate import looks_secret, referenced_names
from rollout.core.config.place import PlacePath, dotted
from rollout.core.config.sources import Tree, did_you_mean
from rollout.core.errors import ConfigError
from rollout.core.quantity import parse_bytes, parse_cpus

_DROP = object()


class Fault(NamedTuple):
    path: PlacePath
    problem: str


class Shape:
    """One check of one document; afterwards `faults` and `warnings` say what was found."""

    def __init__(self, tree: Tree, *, lenient: bool) -> None:
        """`lenient`: unknown keys, and numbers where text belongs, are warnings (a task.toml is written by others)."""
        self.faults: list[Fault] = []
        self.warnings: list[Fault] = []
        self._tree = tree
        self._lenient = lenient
        self._boolean_hint = "; quote it" if lenient else "; quote it (YAML reads yes, no, on, off, true and false as booleans)"
        self._homes: dict[str, list[str]] = {}

    def struct(self, struct: type[msgspec.Struct]) -> dict[str, Any]:
        """The document's value with what can be put right put right: aliases, empty keys, numbers in `env`."""
        info, self._homes = _described(struct)
        value = self._check(info, self._tree.value, ())
        return value if isinstance(value, dict) else {}

    def _fault(self, path: PlacePath, problem: str) -> Any:
        self.faults.append(Fault(path, problem))
        return _DROP

    def _wrong(self, path: PlacePath, expected: str, value: Any, hint: str = "") -> Any:
        return self._fault(path, f"expected {expected}, got {_preview(value, path)}{hint}")

    def _check(self, kind: inspect.Type, value: Any, path: PlacePath) -> Any:
        checks: dict[type, Callable[[Any, Any, PlacePath], Any]] = {
            inspect.StructType: self._struct,
            inspect.ListType: self._list,
            inspect.DictType: self._dict,
            inspect.UnionType: self._union,
            inspect.LiteralType: self._literal,
            inspect.StrType: self._text,
            inspect.IntType: self._number,
            inspect.FloatType: self._number,
            inspect.BoolType: self._boolean,
        }
        check = checks.get(type(kind))
        return check(kind, value, path) if check else value

    def _struct(self, kind: inspect.StructType, given: Any, path: PlacePath) -> Any:
        if not isinstance(given, dict):
            form = ITEM_FORMS.get(kind.cls)
            hint = f"; write `{form}: {given}`" if form and isinstance(given, str) and len(given) < 60 else ""
            return self._wrong(path, "a mapping", given, hint)
        value = self._without_aliases(kind.cls, given, path)
        fields = {field.encode_name: field for field in kind.fields}
        found: dict[str, Any] = {}
        for key, item in value.items():
            field = fields.get(key)
            if field is None:
                self._unknown(kind.cls, key, list(fields), path)
            elif item is None and not _takes_null(field.type):
                continue  # `env:` with nothing under it
            else:
                checked = self._check(field.type, item, (*path, key))
                if checked is not _DROP:
                    checked = self._quantity(key, checked, (*path, key))
                    found[key] = checked
        for name, field in fields.items():
            if field.required and value.get(name) is None and not self._has_fault((*path, name)):
                self._fault(path, f"`{name}` is missing")
        return found

    def _has_fault(self, path: PlacePath) -> bool:
        return any(fault.path == path for fault in self.faults)

    def _without_aliases(self, struct: type, given: dict[str, Any], path: PlacePath) -> dict[str, Any]:
        aliases = ALIASES.get(struct, {})
        if not aliases.keys() & given.keys():
            return given
        value = {key: item for key, item in given.items() if key not in aliases}
        for name in aliases.keys() & given.keys():
            alias = aliases[name]
            target = alias.path[0]
            if target in value:
                self._fault((*path, name), f"means the same as `{target}`, which is given too; keep one")
                continue
            try:
                item = alias.convert(given[name])
            except ValueError as error:
                self._fault((*path, name), str(error))
                continue
            for part in reversed(alias.path[1:]):
                item = {part: item}
            value[str(target)] = item
            self._tree.move((*path, name), (*path, *alias.path))
        return value

    def _unknown(self, struct: type, key: str, known: list[str], path: PlacePath) -> None:
        close = did_you_mean(key, [*known, *ALIASES.get(struct, {})])
        homes = [home for home in self._homes.get(key, []) if home != dotted(path)]
        if hint := HINTS.get(struct, {}).get(key):
            advice = f"; {hint}"
        elif close:
            advice = f"; did you mean `{close}`?"
        elif homes:
            advice = f"; it belongs to `{homes[0]}`" if homes[0] else "; it belongs to the top level"
        else:
            advice = "" if self._lenient else f"; known here: {', '.join(known)}"
        (self.warnings if self._lenient else self.faults).append(Fault((*path, key), f"unknown key{advice}"))

    def _quantity(self, key: str, value: Any, path: PlacePath) -> Any:
        name = key.removeprefix("override_")
        if value is None or name not in ("cpus", "memory", "storage"):
            return value
        try:
            warning = None
            if name == "cpus":
                parse_cpus(value)
            else:
                _, warning = parse_bytes(value)
        except ValueError as error:
            return self._fault(path, str(error))
        if warning:
            self.warnings.append(Fault(path, warning))
        return value

    def _list(self, kind: inspect.ListType, value: Any, path: PlacePath) -> Any:
        if not isinstance(value, list):
            return self._wrong(path, "a list", value, "; start each item with `- `" if isinstance(value, dict) else "")
        if kind.min_length and len(value) < kind.min_length:
            return self._fault(path, "the list is empty; at least one item is needed")
        checked = [self._check(kind.item_type, item, (*path, index)) for index, item in enumerate(value)]
        return [item for item in checked if item is not _DROP]

    def _dict(self, kind: inspect.DictType, value: Any, path: PlacePath) -> Any:
        if not isinstance(value, dict):
            return self._wrong(path, "a mapping", value)
        if not isinstance(kind.value_type, inspect.StrType):
            return value
        checked = {key: self._variable(key, item, (*path, key)) for key, item in value.items()}
        return {key: item for key, item in checked.items() if item is not _DROP}

    def _variable(self, name: str, value: Any, path: PlacePath) -> Any:
        """An item of `env`: numbers become their text as written, `${...}` is checked. No message shows its value."""
        if not name or "=" in name or any(character.isspace() for character in name):
            return self._fault(path, "not a name that a variable can have")
        if isinstance(value, bool):
            loose = self._tree.source(path).loose
            return self._tree.written(path) if loose else self._fault(path, f"expected text, got a boolean{self._boolean_hint}")
        if isinstance(value, int | float):
            value = self._tree.written(path) or repr(value)
        if value is None:
            return self._fault(path, 'has no value; write "" for an empty one')
        if not isinstance(value, str):
            return self._fault(path, f"expected text, got {_kind_of(value)}")
        try:
            referenced_names(value)
        except ConfigError as error:
            return self._fault(path, str(error))
        return value

    def _union(self, kind: inspect.UnionType, value: Any, path: PlacePath) -> Any:
        if value is None and _takes_null(kind):
            return None
        members = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
        members.sort(key=lambda member: isinstance(member, inspect.StrType))  # text takes whatever can be read as text
        if len(members) == 1:
            return self._check(members[0], value, path)
        before = len(self.faults)
        for member in members:
            checked = self._check(member, value, path)
            if checked is not _DROP and len(self.faults) == before:
                return checked
            del self.faults[before:]
        return self._wrong(
            path, " or ".join(dict.fromkeys(_TYPE_NAMES.get(type(member), "a value") for member in members)), value
        )

    def _literal(self, kind: inspect.LiteralType, value: Any, path: PlacePath) -> Any:
        if value in kind.values and not isinstance(value, bool):
            return value
        close = did_you_mean(value, [str(known) for known in kind.values]) if isinstance(value, str) else None
        hint = f"; did you mean `{close}`?" if close else ""
        return self._wrong(path, f"one of {', '.join(map(str, kind.values))}", value, hint)

    def _text(self, kind: inspect.StrType, value: Any, path: PlacePath) -> Any:
        source = self._tree.source(path)
        if not isinstance(value, str) and source.loose and self._tree.written(path) is not None:
            value = self._tree.written(path)
        if self._lenient and isinstance(value, int | float) and not isinstance(value, bool):
            self.warnings.append(Fault(path, f"{value} is a number; read as text"))
            value = str(value)
        if isinstance(value, bool):
            return self._wrong(path, "text", value, self._boolean_hint)
        if isinstance(value, int | float):
            return self._wrong(path, "text", value, "; quote it")
        if not isinstance(value, str):
            return self._wrong(path, "text", value)
        if kind.min_length and len(value) < kind.min_length:
            return self._fault(path, "may not be empty")
        if kind.max_length and len(value) > kind.max_length:
            return self._fault(path, f"{len(value)} characters are too many; at most {kind.max_length}")
        return value

    def _number(self, kind: inspect.IntType | inspect.FloatType, value: Any, path: PlacePath) -> Any:
        whole = isinstance(kind, inspect.IntType)
        expected = "a whole number" if whole else "a number"
        if self._lenient and whole and isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            unquoted = "; remove the quotes" if isinstance(value, str) and re.fullmatch(r"[0-9]+(\.[0-9]+)?", value) else ""
            return self._wrong(path, expected, value, unquoted)
        for bound, words, within in (
            (kind.ge, "of at least", operator.ge),
            (kind.gt, "above", operator.gt),
            (kind.le, "of at most", operator.le),
            (kind.lt, "below", operator.lt),
        ):
            if bound is not None and not within(value, bound):
                return self._wrong(path, f"{expected} {words} {bound}", value)
        return value

    def _boolean(self, kind: inspect.BoolType, value: Any, path: PlacePath) -> Any:
        return value if isinstance(value, bool) else self._wrong(path, "true or false", value)


_TYPE_NAMES: dict[type, str] = {
    inspect.StrType: "text",
    inspect.IntType: "a number",
    inspect.FloatType: "a number",
    inspect.BoolType: "true or false",
    inspect.ListType: "a list",
    inspect.DictType: "a mapping",
    inspect.StructType: "a mapping",
}


def _takes_null(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.UnionType):
        return kind.includes_none
    return isinstance(kind, inspect.AnyType | inspect.NoneType)


def _kind_of(value: Any) -> str:
    if value is None:
        return "nothing"
    return {bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "a mapping"}.get(type(value), "text")


def _preview(value: Any, path: PlacePath) -> str:
    """The value as a message may show it: short, and not when it may be a secret."""
    if isinstance(value, list | dict) or value is None:
        return _kind_of(value)
    if any(isinstance(part, str) and looks_secret(part) for part in path):
        return f"{_kind_of(value)} (not shown)"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= 50 else f"{text[:46]}...{text[-1]}"


@cache
def _described(struct: type[msgspec.Struct]) -> tuple[inspect.StructType, dict[str, list[str]]]:
    """The Struct's types and where each of its keys belongs. Kept: a data set has thousands of task.toml."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return info, _homes(info)


def _homes(info: inspect.Type, path: str = "") -> dict[str, list[str]]:
    """Each key of the Struct and of those within it, and where it belongs: `disable` to `verifier`."""
    homes: dict[str, list[str]] = {}
    kinds: list[tuple[inspect.Type, str]] = [(info, path)]
    while kinds:
        kind, where = kinds.pop(0)
        if isinstance(kind, inspect.StructType):
            for field in kind.fields:
                homes.setdefault(field.encode_name, []).append(where)
                kinds.append((field.type, f"{where}.{field.encode_name}" if where else field.encode_name))
        elif isinstance(kind, inspect.UnionType):
            kinds += [(member, where) for member in kind.types]
        elif isinstance(kind, inspect.ListType):
            kinds.append((kind.item_type, f"{where}[]"))
    return homes
