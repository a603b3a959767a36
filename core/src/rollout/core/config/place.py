"""Where in a file a value is, and how messages name it."""

from __future__ import annotations

import re
from typing import NamedTuple

PlacePath = tuple[str | int, ...]
"""Keys and list positions from the top of a document to a value."""

_PLAIN_KEY = re.compile(r"[^\s.\[\]=:'\"]{1,60}")


class Place(NamedTuple):
    """Where a value is, and how a number was written."""

    line: int
    """Counted from 1."""
    written: str | None = None
    """The text of a number, boolean or null: `1.50` is read as 1.5."""


class Syntax(Exception):
    """A fault on one line of a document; document.py puts the file's name before it."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(" ".join(problem.split()))
        self.line = line


def dotted(path: PlacePath) -> str:
    """`agents[0].env.X`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{_cut(part)!r}]"
    return text if len(text) <= 200 else f"{text[:97]}...{text[-97:]}"


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
