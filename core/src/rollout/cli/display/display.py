"""What a display is, which one a terminal gets, and the shell around each that keeps its faults from the job."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Literal, ParamSpec, Protocol, TextIO, get_args

from rollout.core.errors import InternalError, UsageError, boundary
from rollout.core.job.events import Event

P = ParamSpec("P")

DisplayName = Literal["auto", "rich", "plain", "log", "none"]
REFRESH_EVERY_SEC = 0.2


class Display(Protocol):
    """Shows one run of a job on stderr (or, for JSON lines, on stdout)."""

    def open(self) -> None: ...

    def on_event(self, event: Event) -> None:
        """Take note; must cost microseconds."""
        ...

    def refresh(self) -> None:
        """Draw. Called every REFRESH_EVERY_SEC seconds."""
        ...

    def message(self, text: str) -> None:
        """Print a line that is no event: a log record, a note about an interrupt."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was. Idempotent."""
        ...


class Silent:
    """`none`: messages only."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def open(self) -> None:
        pass

    def on_event(self, event: Event) -> None:
        pass

    def refresh(self) -> None:
        pass

    def message(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        pass


class Guarded:
    """A display that cannot hurt the job: when its terminal or pipe goes away, or it fails, it is silent from then on."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._gone = False

    def __enter__(self) -> Guarded:
        self._call(self._display.open)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # Even one that failed has to give the terminal back.
        self._gone = False
        self._call(self._display.close)

    def on_event(self, event: Event) -> None:
        self._call(self._display.on_event, event)

    def refresh(self) -> None:
        self._call(self._display.refresh)

    def message(self, text: str) -> None:
        self._call(self._display.message, text)

    def _call(self, method: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        if self._gone:
            return
        try:
            with boundary(InternalError, "the display failed"):
                method(*args, **kwargs)
        except InternalError as error:
            self._gone = True
            if not isinstance(error.__cause__, OSError):
                print(f"rollout: {error}; the job goes on without it", file=sys.stderr)


def choose(name: str | None, environ: Mapping[str, str], stream: TextIO) -> DisplayName:
    """The display for `--display NAME`, else `ROLLOUT_DISPLAY`, else rich on a terminal and plain elsewhere."""
    wanted = name or environ.get("ROLLOUT_DISPLAY") or "auto"
    if wanted not in get_args(DisplayName):
        raise UsageError(f"ROLLOUT_DISPLAY: {wanted!r} is no display; write one of {', '.join(get_args(DisplayName))}")
    if wanted != "auto":
        return wanted  # type: ignore[return-value]
    return "rich" if stream.isatty() and environ.get("TERM") != "dumb" else "plain"


def make(name: DisplayName, *, as_json: bool = False) -> Guarded:
    """The display of that name; with `as_json`, JSON lines on stdout instead."""
    if as_json:
        from rollout.cli.display.jsonlines import JsonLines

        return Guarded(JsonLines(sys.stdout, sys.stderr))
    if name == "rich":
        from rollout.cli.display.live import LiveDisplay

        return Guarded(LiveDisplay(sys.stderr))
    if name == "plain":
        from rollout.cli.display.plain import PlainDisplay

        return Guarded(PlainDisplay(sys.stderr))
    if name == "log":
        from rollout.cli.display.log import LogDisplay

        return Guarded(LogDisplay(sys.stderr))
    return Guarded(Silent(sys.stderr))


def terminal_width(stream: TextIO) -> int:
    """Columns of the terminal behind `stream`; `COLUMNS` when it is set, 100 when it is not a terminal."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 100
    except (OSError, ValueError):
        return 100
