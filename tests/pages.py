"""The pages of the documentation, their fenced blocks, links and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_FENCE = re.compile(
    r"^(?P<fence>`{3,})(?P<language>\w*)(?: (?P<title>\S+))?\n(?P<text>.*?)^(?P=fence)\n", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Block(NamedTuple):
    page: str
    line: int
    language: str
    title: str
    """What follows the language, a file's name."""
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("core/*.md"), *ROOT.glob("examples/*/README.md")]
    return sorted(found)


def blocks() -> list[Block]:
    """Every fenced block, in the order of the pages."""
    return [block for page in pages() for block in _blocks(page)]


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield Block(str(page.relative_to(ROOT)), line, match["language"], match["title"] or "", match["text"])


def links(page: Path) -> list[str]:
    """The targets of the links outside of fenced blocks."""
    return [match["target"] for match in _LINK.finditer(_FENCE.sub("", page.read_text("utf-8")))]


def anchors(page: Path) -> set[str]:
    """What `#...` can name on a page, as GitHub makes it from headings."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
