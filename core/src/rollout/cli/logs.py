"""Where the log records of a run go: through the display, so that they do not tear it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rollout.cli.display.text import one_line
from rollout.core.config.job import LogLevel
from rollout.core.errors import describe


@contextmanager
def logging_to(say: Callable[[str], None], level: LogLevel) -> Iterator[None]:
    """Send records of Rollout and its plugins from `level` on, and everybody's warnings, to `say`."""
    root = logging.getLogger()
    handler = _Handler(say)
    before = root.level
    root.addHandler(handler)
    root.setLevel(getattr(logging, level.upper()))
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


class _Handler(logging.Handler):
    """One line per record; of an exception only what it says."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def filter(self, record: logging.LogRecord) -> bool:
        """Foreign libraries are heard from warnings on: their debugging is not Rollout's."""
        ours = record.name == "rollout" or record.name.startswith(("rollout.", "rollout_"))
        return (ours or record.levelno >= logging.WARNING) and bool(super().filter(record))

    def emit(self, record: logging.LogRecord) -> None:
        error = f": {describe(record.exc_info[1])}" if record.exc_info and record.exc_info[1] else ""
        self._say(f"{record.levelname.lower()}: {one_line(record.getMessage() + error)}")
