"""Dockerfiles as data: what is written in one, and which image and working directory come of it."""

from rollout.core.dockerfile.expansion import expand, split_words
from rollout.core.dockerfile.lifts import Lifted, assignments, lifted
from rollout.core.dockerfile.parsing import Dockerfile, Heredoc, Stage, Step, parse, read_dockerfile

__all__ = [
    "Dockerfile",
    "Heredoc",
    "Lifted",
    "Stage",
    "Step",
    "assignments",
    "expand",
    "lifted",
    "parse",
    "read_dockerfile",
    "split_words",
]
