"""Text for terminals: foreign text made harmless, figures, and tables that fit the width."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rollout.core.types import MetricValue

Align = Literal["left", "right"]

_GAP = "  "
_NARROWEST = 8
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(code) not in "\n\t"}
# Overrides of the writing direction could make a line read as another one.
_CONTROLS |= {code: f"\\u{code:04x}" for code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def printable(text: str) -> str:
    """Text that may come from an agent or a file, without anything that a terminal obeys; line breaks stay."""
    return text.replace("\r\n", "\n").translate(_CONTROLS)


def one_line(text: str) -> str:
    """The same on one line."""
    return printable(" ".join(text.split()))


def cells(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Mn", "Me")
        else 2 if unicodedata.east_asian_width(char) in "WF"
        else 1
        for char in text
    )  # fmt: skip


def shorten(text: str, width: int) -> str:
    """At most `width` columns; what is cut becomes `...`. The end is what differs between trials, so the middle is cut."""
    if cells(text) <= width:
        return text
    if width <= 5:
        return _head(text, width)
    tail_width = (width - 3) // 2
    tail = _head(text[::-1], tail_width)[::-1]
    return f"{_head(text, width - 3 - cells(tail))}...{tail}"


def _head(text: str, width: int) -> str:
    taken = 0
    for index, char in enumerate(text):
        taken += cells(char)
        if taken > width:
            return text[:index]
    return text


def figure(value: float | None) -> str:
    """A reward or metric: three decimals, none for large whole numbers, tiny ones in scientific notation, `-` for None."""
    if value is None:
        return "-"
    if value.is_integer() and 1000 <= abs(value) < 1e15:
        return f"{value:.0f}"
    if value and not 0.0005 <= abs(value) < 1e9:
        return f"{value:.4g}"
    return f"{value:.3f}"


def metric_figure(value: MetricValue) -> str:
    """`0.750 (n=12)`"""
    return f"{figure(value.value)} (n={value.n})"


def metric_line(values: Sequence[MetricValue]) -> str:
    """All figures of one metric: `mean 0.750 (n=12), errors as 0: 0.692 (n=13)`."""
    parts: list[str] = []
    for index, value in enumerate(values):
        before = values[index - 1] if index else None
        if before is not None and before.name == value.name and value.basis == "all":
            if (before.value, before.n) != (value.value, value.n):
                parts.append(f"errors as 0: {metric_figure(value)}")
        else:
            parts.append(f"{value.name} {metric_figure(value)}")
    return printable(", ".join(parts))


def duration(seconds: float) -> str:
    """`4.2 s`, `1:05`, `2:00:31`"""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def count(number: int) -> str:
    """`950`, `12.3k`, `4.56M`"""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}" if number < 1000 * size else f"{number / size:.0f}{letter}"
    return str(number)


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, align: Sequence[Align], width: int) -> list[str]:
    """Lines of a table with a head, at most `width` columns wide as far as its left-aligned columns can give way.

    `align` is each column's; the widest left-aligned columns are cut first, to `...` in the middle.
    """
    lines = [[one_line(cell) for cell in row] for row in (titles, *rows)]
    widths = [max(cells(line[column]) for line in lines) for column in range(len(titles))]
    flexible = [column for column in range(len(titles)) if align[column] == "left"]
    while sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        widest = max(flexible, key=lambda column: widths[column], default=None)
        if widest is None or widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    return [_GAP.join(_pad(cell, widths[column], align[column]) for column, cell in enumerate(line)).rstrip() for line in lines]


def _pad(text: str, width: int, align: Align) -> str:
    text = shorten(text, width)
    space = " " * (width - cells(text))
    return space + text if align == "right" else text + space
