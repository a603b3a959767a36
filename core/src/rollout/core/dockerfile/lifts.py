"""What a Dockerfile says of the image that it makes, as far as it says it without being built."""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from rollout.core.dockerfile.expansion import expand, split_words
from rollout.core.dockerfile.parsing import Dockerfile, Stage, Step
from rollout.core.errors import TaskError


class Lifted(NamedTuple):
    """What the last stage inherits and sets. None is what the Dockerfile does not tell."""

    image: str | None
    """The image at the bottom: stage names are followed, variables replaced by their defaults."""
    workdir: str | None
    """The working directory, when it does not depend on the image's own."""


def lifted(dockerfile: Dockerfile) -> Lifted:
    """Image and working directory of a Dockerfile's last stage.

    Raises:
        TaskError: a variable is written wrongly; the text names the line.
    """
    outer: dict[str, str] = {}
    for step in dockerfile.arguments:
        for name, value in _assignments(dockerfile, step, outer):
            outer[name] = value or ""
    chain, image = _chain(dockerfile, outer)
    env: dict[str, str] = {}
    workdir: str | None = "/" if image == "scratch" else None
    for stage in chain:
        arguments: dict[str, str] = {}
        for step in stage.steps:
            variables = {**arguments, **env}
            if step.name == "ARG":
                for name, value in _assignments(dockerfile, step, variables):
                    default = outer.get(name) if value is None else value
                    if default is not None:
                        arguments[name] = default
            elif step.name == "ENV":
                env.update((name, value or "") for name, value in _assignments(dockerfile, step, variables))
            elif step.name == "WORKDIR":
                path = _expand(dockerfile, step, step.text, variables)
                if path.startswith("/") or workdir is not None:
                    workdir = posixpath.normpath(posixpath.join(workdir or "/", path))
    return Lifted(image or None, workdir)


def assignments(step: Step, variables: dict[str, str], escape: str = "\\") -> list[tuple[str, str | None]]:
    """The names and values of an ARG or ENV; a name without value has None.

    Raises:
        ValueError: an open quote or brace.
    """
    first, *rest = step.text.split(None, 1)
    if step.name == "ENV" and "=" not in first:  # the older form: one variable, the rest of the line is its value
        return [(first, expand(rest[0] if rest else "", variables, escape))]
    pairs: list[tuple[str, str | None]] = []
    for word in split_words(step.text, escape):
        name, equals, value = word.partition("=")
        pairs.append((expand(name, variables, escape), expand(value, variables, escape) if equals else None))
    return pairs


def _chain(dockerfile: Dockerfile, outer: dict[str, str]) -> tuple[list[Stage], str]:
    """The stages that the last one is built on, the lowest first, and the image below them."""
    at = len(dockerfile.stages) - 1
    chain: list[Stage] = []
    while True:
        stage = dockerfile.stages[at]
        chain.insert(0, stage)
        base = _expand(dockerfile, stage, stage.base, outer)
        # A stage has no number in FROM, only in COPY --from; the latest of several with one name counts.
        names = [name.lower() if name else None for name in (earlier.name for earlier in dockerfile.stages[:at])]
        if base.lower() not in names:
            return chain, base
        at = len(names) - 1 - names[::-1].index(base.lower())


def _assignments(dockerfile: Dockerfile, step: Step, variables: dict[str, str]) -> list[tuple[str, str | None]]:
    try:
        return assignments(step, variables, dockerfile.escape)
    except ValueError as error:
        raise TaskError(f"{dockerfile.where(step)}: {error}") from error


def _expand(dockerfile: Dockerfile, step: Step | Stage, text: str, variables: dict[str, str]) -> str:
    try:
        return expand(text, variables, dockerfile.escape)
    except ValueError as error:
        raise TaskError(f"{dockerfile.where(step)}: {error}") from error
