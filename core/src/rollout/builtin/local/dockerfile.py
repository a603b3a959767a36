"""Reading a Dockerfile: what is written there, and whether it can be done without an engine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rollout.builtin.local.expansion import split_words
from rollout.core.errors import TaskError

_MAX_BYTES = 1024 * 1024
_NO_EFFECT = frozenset({"CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "ONBUILD", "STOPSIGNAL"})
_STEPS = frozenset({"ADD", "ARG", "COPY", "ENV", "RUN", "SHELL", "USER", "VOLUME", "WORKDIR"})
_FLAGS = {"COPY": {"chown", "chmod", "link"}, "ADD": {"chown", "chmod", "link", "keep-git-dir"}, "RUN": {"network"}}
_REMOTE = re.compile(r"(https?|ftp|git|ssh)://|git@[^/]+:", re.ASCII)
_HEREDOC = re.compile(r"""<<(-?)(["']?)([A-Za-z_][A-Za-z0-9_]*)\2""", re.ASCII)
_DIRECTIVE = re.compile(r"#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(.+?)\s*")


class Heredoc(NamedTuple):
    name: str
    expands: bool
    content: str


class Step(NamedTuple):
    """One instruction that changes the image."""

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


class Recipe(NamedTuple):
    """A Dockerfile of one stage."""

    path: Path
    text: str
    base: str
    arguments: tuple[Step, ...]
    """ARG instructions before FROM."""
    steps: tuple[Step, ...]
    escape: str = "\\"

    def where(self, step: Step) -> str:
        return f"{self.path}:{step.line}"


class _Line(NamedTuple):
    number: int
    text: str
    heredocs: tuple[Heredoc, ...]


def read_dockerfile(path: Path) -> Recipe:
    """Read and check a Dockerfile.

    Raises:
        TaskError: it cannot be read, or needs an engine; the text names the line.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise TaskError(f"{path}: {error.strerror}") from error
    if len(data) > _MAX_BYTES or b"\0" in data:
        raise TaskError(f"{path}: this is not a Dockerfile (it is binary or larger than 1 MiB)")
    return parse(data.decode("utf-8", "surrogateescape").removeprefix("\ufeff"), path)


def parse(text: str, path: Path) -> Recipe:
    """The recipe of a Dockerfile's text. Raises TaskError."""
    lines = text.replace("\r\n", "\n").split("\n")
    escape = _escape_character(lines, path)
    base: str | None = None
    before: list[Step] = []
    steps: list[Step] = []
    for line in _logical_lines(lines, escape, path):
        step = _step(line, path)
        if step.name == "FROM":
            if base is not None:
                raise _needs_engine(path, step.line, "a second FROM (multi-stage build)")
            words = split_words(step.text, escape)
            if not words:
                raise TaskError(f"{path}:{step.line}: FROM names no image")
            base = words[0]
        elif base is None and step.name != "ARG":
            raise TaskError(f"{path}:{step.line}: {step.name} before FROM")
        elif step.name in _STEPS:
            _check(step, path)
            (before if base is None else steps).append(step)
        elif step.name not in _NO_EFFECT:
            raise TaskError(f"{path}:{step.line}: unknown instruction {step.name}")
    if base is None:
        raise TaskError(f"{path}: there is no FROM in it")
    return Recipe(path, text, base, tuple(before), tuple(steps), escape)


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


def _step(line: _Line, path: Path) -> Step:
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


def _check(step: Step, path: Path) -> None:
    """Refuse what cannot be done here, rather than do something else."""
    unknown = set(step.flags) - _FLAGS.get(step.name, set())
    if unknown:
        raise _needs_engine(path, step.line, f"{step.name} --{sorted(unknown)[0]}")
    if step.flags.get("network", "default") != "default":
        raise _needs_engine(path, step.line, f"RUN --network={step.flags['network']}")
    if step.name == "SHELL" and not step.words:
        raise TaskError(f'{path}:{step.line}: SHELL needs the JSON form, for instance ["/bin/bash", "-c"]')
    if not step.text:
        raise TaskError(f"{path}:{step.line}: {step.name} needs an argument")
    if step.name == "ADD" and any(_REMOTE.match(word.strip("\"'")) for word in step.words or split_words(step.text)):
        raise _needs_engine(path, step.line, "ADD of something that is not in the task's folder")


def _needs_engine(path: Path, line: int, what: str) -> TaskError:
    return TaskError(f"{path}:{line}: type: local cannot do {what}: use `type: docker`")
