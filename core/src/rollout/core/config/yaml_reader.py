"""YAML as plain values with their lines, built from libyaml's events so that nothing is expanded before it is counted.

What YAML 1.1 reads as a date, as a number to base 60 or as octal by a leading zero is text here: `1:30`, `0123` and
`2024-01-01` mean what they look like. Anchors, aliases and `<<` work; other tags than the standard ones do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from rollout.core.config.place import Place, PlacePath, Syntax

MAX_VALUES = 200_000
"""More values than any job that a person writes."""
MAX_EXPANDED = 1_000_000
"""Characters and values that a document with aliases may expand to."""

_TAG = "tag:yaml.org,2002:"
_TRUE = frozenset({"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})
_FALSE = frozenset({"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+|[-+]?0o[0-7_]+|[-+]?0b[01_]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))([eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_MERGE = object()
_OPEN = object()


class Node(NamedTuple):
    """A value and everything below it."""

    value: Any
    """list of Node, dict of text to Node, or a scalar."""
    line: int
    written: str | None
    size: int
    """Values and characters, aliases expanded."""
    depth: int

    def plain(self, path: PlacePath, places: dict[PlacePath, Place]) -> Any:
        """The plain value; `places` gets the place of each part."""
        places[path] = Place(self.line, self.written)
        if isinstance(self.value, dict):
            return {key: node.plain((*path, key), places) for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain((*path, index), places) for index, node in enumerate(self.value)]
        return self.value


def read(text: str, max_depth: int) -> Node:
    """The one document of the text; null when there is none.

    Raises:
        Syntax: not YAML, or not a document that a configuration can be.
    """
    try:
        return _Reader(text, max_depth).document()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Syntax(f"a character that YAML does not allow: {_character(error.character)!a}", line) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Syntax(_explain(error, text), mark.line + 1 if mark else None) from error
    except yaml.YAMLError as error:
        raise Syntax(f"is not YAML: {str(error)[:200]}") from error


class _Reader:
    def __init__(self, text: str, max_depth: int) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        self._max_depth = max_depth
        self._max_size = max(len(text) + MAX_VALUES, MAX_EXPANDED)
        self._values = 0
        self._anchors: dict[str, Any] = {}

    def document(self) -> Node:
        root: Node | None = None
        event: Any
        for event in self._events:
            if isinstance(event, yaml.NodeEvent):
                root = self._node(event, 0)
            elif root is not None and isinstance(event, yaml.DocumentStartEvent):
                line: int = event.start_mark.line + 1  # type: ignore[union-attr]
                raise Syntax("a second document starts here (`---`); a file holds one", line)
        return root or Node(None, 1, None, 1, 0)

    def _node(self, event: Any, depth: int) -> Node:
        line = event.start_mark.line + 1
        self._values += 1
        if self._values > MAX_VALUES:
            raise Syntax(f"more than {MAX_VALUES} values; large data belongs into JSON", line)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), line, depth)
        if depth > self._max_depth:
            raise Syntax(f"nested too deeply; at most {self._max_depth} levels are read", line)
        if event.anchor is not None:
            self._anchors[event.anchor] = _OPEN
        if isinstance(event, yaml.ScalarEvent):
            node = _scalar(event, line)
        elif isinstance(event, yaml.SequenceStartEvent):
            _standard_tag(event.tag, "seq", line)
            node = self._sequence(line, depth)
        else:
            _standard_tag(event.tag, "map", line)
            node = self._mapping(line, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return self._bounded(node, line)

    def _bounded(self, node: Node, line: int) -> Node:
        if node.size > self._max_size:
            raise Syntax("its aliases expand to more than a million values or characters", line)
        return node

    def _alias(self, anchor: str, line: int, depth: int) -> Node:
        node = self._anchors.get(anchor)
        if node is None:
            raise Syntax(f"the alias `*{anchor[:60]}` has no anchor `&{anchor[:60]}` above it", line)
        if node is _OPEN:
            raise Syntax(f"the alias `*{anchor[:60]}` is inside what it stands for", line)
        if depth + node.depth > self._max_depth:
            raise Syntax(f"nested too deeply; at most {self._max_depth} levels are read", line)
        found: Node = node
        return found._replace(line=line)

    def _sequence(self, line: int, depth: int) -> Node:
        items: list[Node] = []
        size = 1
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
            size += items[-1].size
            if size > self._max_size:
                break
        return Node(items, line, None, size, 1 + max((item.depth for item in items), default=0))

    def _mapping(self, line: int, depth: int) -> Node:
        items: dict[str, Node] = {}
        key_lines: dict[str, int] = {}
        merged: list[Node] = []
        size = 1
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key_line = event.start_mark.line + 1
            key = self._key(event, key_line)
            node = self._node(next(self._events), depth + 1)
            size += node.size + 1
            if key is _MERGE:
                merged += _mergeable(node)
            elif key in key_lines:
                raise Syntax(f"the key {_cut(key)!r} is given twice (first on line {key_lines[key]})", key_line)
            else:
                size += len(key)
                key_lines[key] = key_line
                items[key] = node if isinstance(node.value, dict | list) else node._replace(line=key_line)
            if size > self._max_size:
                break
        for source in merged:
            for key, node in source.value.items():
                items.setdefault(key, node)
        return Node(items, line, None, size, 1 + max((item.depth for item in items.values()), default=0))

    def _key(self, event: Any, line: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            node = self._alias(str(event.anchor), line, 0)
        elif isinstance(event, yaml.ScalarEvent):
            if event.value == "<<" and event.implicit[0]:
                return _MERGE
            node = _scalar(event, line)
            if event.anchor is not None:
                self._anchors[event.anchor] = node
        else:
            raise Syntax("a key has to be text; this one is a list or a mapping (is a `{{ ... }}` unquoted?)", line)
        if isinstance(node.value, str):
            if node.written is not None:
                raise Syntax(f"the key {_cut(node.value)} is a date; quote it", line)
            return node.value
        kind = {bool: "a boolean", int: "a number", float: "a number"}.get(type(node.value), "empty")
        raise Syntax(f"the key {_cut(node.written or '')!r} is {kind} to YAML; quote it", line)


_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt\s].*)?", re.ASCII)


def _scalar(event: Any, line: int) -> Node:
    text: str = event.value
    size = len(text) + 1
    kind = "str"
    if event.tag is not None and event.tag != "!":
        kind = event.tag.removeprefix(_TAG)
        if kind not in ("str", "int", "float", "bool", "null") or not event.tag.startswith(_TAG):
            raise Syntax(f"the tag `{_cut(_short_tag(event.tag))}` is not supported", line)
    elif event.implicit[0] and event.tag is None:
        kind = _implicit_kind(text)
    if kind == "str":
        is_date = event.tag is None and event.implicit[0] and _DATE.fullmatch(text) is not None
        return Node(text, line, text if is_date else None, size, 0)
    return Node(_converted(text, kind, line), line, text, size, 0)


def _implicit_kind(text: str) -> str:
    if text in _NULL:
        return "null"
    if text in _TRUE or text in _FALSE:
        return "bool"
    if _INTEGER.fullmatch(text):
        return "int"
    if _FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text):
        return "float"
    return "str"


def _converted(text: str, kind: str, line: int) -> Any:
    if kind == "null" and text in _NULL:
        return None
    if kind == "bool" and text in _TRUE | _FALSE:
        return text in _TRUE
    try:
        if kind == "int":
            digits = text.replace("_", "")
            return int(digits, 0) if _INTEGER.fullmatch(text) else int(digits)
        if kind == "float":
            return float(text.replace("." if _NOT_FINITE.fullmatch(text) else "_", ""))
    except ValueError as error:
        raise Syntax(f"{_cut(text)!r} is not a number that can be used", line) from error
    raise Syntax(f"{_cut(text)!r} is not a `!!{kind}`", line)


def _mergeable(node: Node) -> list[Node]:
    sources = node.value if isinstance(node.value, list) else [node]
    if not all(isinstance(source.value, dict) for source in sources):
        raise Syntax("`<<` takes a mapping, or a list of them", node.line)
    return list(sources)


def _standard_tag(tag: str | None, kind: str, line: int) -> None:
    if tag not in (None, "!", _TAG + kind):
        raise Syntax(f"the tag `{_cut(_short_tag(tag))}` is not supported", line)


def _short_tag(tag: str) -> str:
    return tag.replace(_TAG, "!!")


def _explain(error: yaml.MarkedYAMLError, text: str) -> str:
    problem = error.problem or "cannot be read"
    if "'\\t'" in problem or "tab character" in problem or _on_tab(error, text):
        return "a tab is used where YAML wants spaces; indent with spaces"
    if "mapping values are not allowed" in problem:
        return "is not YAML: a second `: ` on the line, or a wrong indentation; quote text that holds `: `"
    if "found character" in problem and "cannot start any token" in problem:
        return f"is not YAML: {problem}; quote text that starts with @, `, % or a bracket"
    context = f" {error.context}" if error.context else ""
    return f"is not YAML: {problem}{context}"[:300]


def _on_tab(error: yaml.MarkedYAMLError, text: str) -> bool:
    mark = error.problem_mark
    if mark is None:
        return False
    lines = text.split("\n")
    line = lines[mark.line] if mark.line < len(lines) else ""
    return line[: len(line) - len(line.lstrip())].count("\t") > 0


def _character(character: Any) -> str:
    return chr(character) if isinstance(character, int) else str(character)


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
