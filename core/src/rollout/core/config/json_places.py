"""The line of every value of a JSON text. Used for messages about JSON that a real parser has read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from rollout.core.config.place import Place, PlacePath

_TOKEN = re.compile(r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<mark>[\[\]{},:])|(?P<plain>[^\s\[\]{},:"]+))', re.DOTALL)


def scan(text: str) -> Iterator[tuple[PlacePath, Place]]:
    """Path and place of each value, in order; a key that is given twice comes twice. Ends where the text is no JSON."""
    path: list[str | int] = []
    key_next = False
    line, counted = 1, 0
    for match in _TOKEN.finditer(text):
        start = match.start(match.lastgroup or 0)
        line += text.count("\n", counted, start)
        counted = start
        mark = match["mark"]
        if mark is None and key_next:
            path[-1] = _text_of(match["text"] or '""')
        elif mark is None or mark in "[{":
            yield tuple(path), Place(line, match["plain"])
        if mark == "{":
            path.append("")
            key_next = True
        elif mark == "[":
            path.append(0)
        elif mark in ("]", "}"):
            if not path:
                return
            path.pop()
            key_next = False
        elif mark == ":":
            key_next = False
        elif mark == ",":
            if not path:
                return
            last = path[-1]
            if isinstance(last, int):
                path[-1] = last + 1
            else:
                key_next = True


def duplicate(text: str, key: str) -> tuple[int, int]:
    """The lines on which a key of one mapping is given for the first and the second time."""
    seen: dict[PlacePath, int] = {}
    for path, place in scan(text):
        if path and path[-1] == key and path in seen:
            return seen[path], place.line
        seen[path] = place.line
    return 1, 1


def _text_of(token: str) -> str:
    try:
        return str(json.loads(token))
    except json.JSONDecodeError:
        return token
