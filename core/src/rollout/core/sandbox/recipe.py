"""Which Dockerfiles can be done without an engine, and what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from rollout.core import dockerfile
from rollout.core.dockerfile import Dockerfile, Step, split_words
from rollout.core.errors import TaskError

_NO_EFFECT = frozenset({"CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "STOPSIGNAL"})
_FLAGS = {"COPY": {"chown", "chmod", "link"}, "ADD": {"chown", "chmod", "link", "keep-git-dir"}, "RUN": {"network"}}
_REMOTE = re.compile(r"(https?|ftp|git|ssh)://|git@[^/]+:", re.ASCII)


class Recipe(NamedTuple):
    """A Dockerfile of one stage, without what leaves no trace here."""

    path: Path
    text: str
    base: str
    arguments: tuple[Step, ...]
    """ARG instructions before FROM."""
    steps: tuple[Step, ...]
    escape: str = "\\"
    healthcheck: Step | None = None
    """The last HEALTHCHECK, which nothing carries out; None when it is NONE."""

    def where(self, step: Step) -> str:
        return f"{self.path}:{step.line}"

    @property
    def unheard(self) -> str | None:
        """What an author may expect of the file and does not get, in words; None when there is nothing of the kind."""
        if self.healthcheck is None:
            return None
        return (
            f"{self.where(self.healthcheck)}: HEALTHCHECK has no effect: no trial waits for it (a `[environment.healthcheck]` in "
            "task.toml is waited for)"
        )


def read_dockerfile(path: Path) -> Recipe:
    """Read and check a Dockerfile.

    Raises:
        TaskError: it cannot be read, or needs an engine; the text names the line.
    """
    return _recipe(dockerfile.read_dockerfile(path))


def parse(text: str, path: Path) -> Recipe:
    """The recipe of a Dockerfile's text. Raises TaskError."""
    return _recipe(dockerfile.parse(text, path))


def _recipe(read: Dockerfile) -> Recipe:
    if len(read.stages) > 1:
        raise _needs_engine(read.path, read.stages[1].line, "a second FROM (multi-stage build)")
    (stage,) = read.stages
    steps = tuple(step for step in stage.steps if step.name not in _NO_EFFECT)
    for step in (*read.arguments, *steps):
        _check(step, read.path)
    checks = [step for step in stage.steps if step.name == "HEALTHCHECK"]
    healthcheck = checks[-1] if checks and checks[-1].text.upper() != "NONE" else None
    return Recipe(read.path, read.text, stage.base, read.arguments, steps, read.escape, healthcheck)


def _check(step: Step, path: Path) -> None:
    """Refuse what cannot be done here, rather than do something else."""
    if step.name == "ONBUILD":  # for images that start FROM this one, and nothing here keeps it for them
        raise _needs_engine(path, step.line, "ONBUILD")
    unknown = set(step.flags) - _FLAGS.get(step.name, set())
    if unknown:
        raise _needs_engine(path, step.line, f"{step.name} --{sorted(unknown)[0]}")
    if step.flags.get("network", "default") != "default":
        raise _needs_engine(path, step.line, f"RUN --network={step.flags['network']}")
    if step.name == "ADD" and any(_REMOTE.match(word.strip("\"'")) for word in step.words or split_words(step.text)):
        raise _needs_engine(path, step.line, "ADD of something that is not in the task's folder")


def _needs_engine(path: Path, line: int, what: str) -> TaskError:
    return TaskError(f"{path}:{line}: {what} cannot be done without an engine: use `type: docker`")
