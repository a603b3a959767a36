"""Reading a Dockerfile: its stages and their instructions, each with its line. Nothing is refused that Docker would take."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rollout.core.dockerfile.expansion import split_words
from rollout.core.errors import TaskError

_SHAPING = frozenset({"ADD", "ARG", "COPY", "ENV", "FROM", "RUN", "SHELL", "USER", "VOLUME", "WORKDIR"})
_DESCRIBING = frozenset({"CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "ONBUILD", "STOPSIGNAL"})
INSTRUCTIONS = _SHAPING | _DESCRIBING

_MAX_BYTES = 1024 * 1024
_HEREDOC = re.compile(r"""<<(-?)(["']?)([A-Za-z_][A-Za-z0-9_]*)\2""", re.ASCII)
_DIRECTIVE = re.compile(r"#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(.+?)\s*")


class Heredoc(NamedTuple):
    name: str
    expands: bool
    content: str


class Step(NamedTuple):
    """One instruction."""

    line: int
    name: str
    flags: dict[str, str]
    text: str
    """What follows the flags, on one line."""
    heredocs: tuple[Heredoc, ...] = ()

    @property
    def words(self) -> list[str] | None:
        """The JSON form's strings, or None for the other form."""
        if not self.text.startswith("["):
            return None
        try:
            words = json.loads(self.text)
        except (ValueError, RecursionError):
            return None
        return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


class Stage(NamedTuple):
    """A FROM and what follows it."""

    line: int
    base: str
    """An image, or the name or number of an earlier stage; variables are as written."""
    name: str | None
    platform: str | None
    steps: tuple[Step, ...]


class Dockerfile(NamedTuple):
    """A Dockerfile: at least one stage."""

    path: Path
    text: str
    arguments: tuple[Step, ...]
    """ARG instructions before the first FROM."""
    stages: tuple[Stage, ...]
    escape: str = "\\"

    def where(self, step: Step | Stage) -> str:
        return f"{self.path}:{step.line}"


class _Line(NamedTuple):
    number: int
    text: str
    heredocs: tuple[Heredoc, ...]


def read_dockerfile(path: Path) -> Dockerfile:
    """Read a Dockerfile.

    Raises:
        TaskError: it cannot be read or is none; the text names the line.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise TaskError(f"{path}: {error.strerror}") from error
    if len(data) > _MAX_BYTES or b"\0" in data:
        raise TaskError(f"{path}: this is not a Dockerfile (it is binary or larger than 1 MiB)")
    return parse(data.decode("utf-8", "surrogateescape").removeprefix("\ufeff"), path)


def parse(text: str, path: Path) -> Dockerfile:
    """A Dockerfile's text. `path` is for messages.

    Raises:
        TaskError: no FROM, an unknown instruction, an instruction without argument; the text names the line.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    escape = _escape_character(lines, path)
    before: list[Step] = []
    stages: list[tuple[Stage, list[Step]]] = []
    for line in _logical_lines(lines, escape, path):
        step = _step(line)
        where = f"{path}:{step.line}"
        if step.name not in INSTRUCTIONS:
            raise TaskError(f"{where}: unknown instruction {step.name}")
        if step.name == "FROM":
            stages.append((_stage(step, escape, where), []))
            continue
        if not stages and step.name != "ARG":
            raise TaskError(f"{where}: {step.name} before FROM")
        if not step.text and step.name not in ("CMD", "ENTRYPOINT"):
            raise TaskError(f"{where}: {step.name} needs an argument")
        if step.name == "SHELL" and not step.words:
            raise TaskError(f'{where}: SHELL needs the JSON form, for instance ["/bin/bash", "-c"]')
        (stages[-1][1] if stages else before).append(step)
    if not stages:
        raise TaskError(f"{path}: there is no FROM in it")
    return Dockerfile(path, text, tuple(before), tuple(stage._replace(steps=tuple(steps)) for stage, steps in stages), escape)


def _stage(step: Step, escape: str, where: str) -> Stage:
    words = split_words(step.text, escape)
    if not words:
        raise TaskError(f"{where}: FROM names no image")
    name = words[2] if len(words) == 3 and words[1].upper() == "AS" else None
    if len(words) != 1 and name is None:
        raise TaskError(f"{where}: FROM takes an image, and `AS name` after it")
    return Stage(step.line, words[0], name, step.flags.get("platform"), ())


def _escape_character(lines: list[str], path: Path) -> str:
    for line in lines:
        match = _DIRECTIVE.fullmatch(line.strip())
        if match is None:
            break
        if match[1].lower() == "escape":
            if match[2] not in ("\\", "`"):
                raise TaskError(f"{path}: the escape character can be \\ or `, not {match[2]!r}")
            return match[2]
    return "\\"


def _logical_lines(lines: list[str], escape: str, path: Path) -> Iterator[_Line]:
    """Instructions, with continued lines joined, comments taken out and heredocs attached."""
    at = 0
    while at < len(lines):
        first = at
        text = ""
        continued = False
        while at < len(lines):
            line = lines[at]
            at += 1
            if line.lstrip().startswith("#") or (continued and not line.strip()):
                if not continued:
                    break
                continue
            stripped = line.rstrip()
            if not continued:
                stripped = stripped.lstrip()
                first = at - 1
            if stripped.endswith(escape) and not (stripped.endswith(escape * 2) and escape == "\\"):
                text += stripped[: -len(escape)]
                continued = True
                continue
            text += stripped
            break
        if not text.strip():
            continue
        heredocs = []
        if text.split(None, 1)[0].upper() in ("RUN", "COPY", "ADD"):
            for dash, quote, name in _HEREDOC.findall(text):
                content, at = _heredoc(lines, at, name, bool(dash), f"{path}:{first + 1}")
                heredocs.append(Heredoc(name, not quote, content))
        yield _Line(first + 1, text.strip(), tuple(heredocs))


def _heredoc(lines: list[str], at: int, name: str, strip_tabs: bool, where: str) -> tuple[str, int]:
    content: list[str] = []
    while at < len(lines):
        line = lines[at].lstrip("\t") if strip_tabs else lines[at]
        at += 1
        if line == name:
            return "".join(f"{part}\n" for part in content), at
        content.append(line)
    raise TaskError(f"{where}: the here-document {name} is not closed")


def _step(line: _Line) -> Step:
    name, *rest = line.text.split(None, 1)
    text = rest[0] if rest else ""
    flags: dict[str, str] = {}
    while text.startswith("--"):
        flag, *rest = text.split(None, 1)
        text = rest[0] if rest else ""
        key, _, value = flag[2:].partition("=")
        flags[key.lower()] = value
        if key == "":
            break
    return Step(line.number, name.upper(), flags, text, line.heredocs)
