"""`--display rich`: the live view of a terminal. Imported only there, because rich takes its time to import."""

from __future__ import annotations

from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollout.cli.display.progress import Progress
from rollout.cli.display.text import duration, metric_line, one_line, plural, printable, shorten
from rollout.core.job.events import Event, JobStarted, TrialFinished, WarningRaised

_RUNNING_SHOWN = 4
_ERROR_CODES_SHOWN = 6
_ERRORED_LINES = 20


class LiveDisplay:
    """Events change counts; `refresh` draws from them. Nothing is drawn by an event."""

    def __init__(self, stream: TextIO, progress: Progress | None = None, console: Console | None = None) -> None:
        self._progress = progress or Progress()
        self._console = console or Console(file=stream, highlight=False)
        self._live = Live(Text(""), console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._notes: list[str] = []
        self._errored = 0

    def open(self) -> None:
        self._live.start()

    def on_event(self, event: Event) -> None:
        self._progress.on_event(event)
        if isinstance(event, TrialFinished):
            if event.result.status == "errored":
                self._note_error(event)
        elif isinstance(event, WarningRaised):
            self._notes.append(f"warning: {one_line(event.message)}")
        elif isinstance(event, JobStarted) and event.rerun:
            again = ", ".join(f"{count} {why}" for why, count in event.rerun.items())
            self._notes.append(f"running again: {again}; kept: {event.kept_trials}")

    def refresh(self) -> None:
        notes, self._notes = self._notes, []
        for note in notes:
            self._console.print(Text(note))
        self._live.update(self.view(), refresh=True)

    def message(self, text: str) -> None:
        self._console.print(Text(printable(text)))

    def close(self) -> None:
        if self._live.is_started:
            for note in self._notes:
                self._console.print(Text(note))
            self._notes = []
            self._live.stop()

    def view(self) -> RenderableType:
        """What is on the screen now: progress, metrics, errors, the trials that run longest."""
        progress = self._progress
        # The bottom may scroll away on a low terminal, so what matters most comes first.
        rows: list[RenderableType] = [self._head(), *self._metrics(), *self._errors()]
        if not progress.ended:
            rows += self._running()
        return Group(*rows)

    def _head(self) -> RenderableType:
        progress = self._progress
        if not progress.total:
            return Text("planning ...")
        left = progress.remaining_sec
        parts = [f"{progress.done}/{progress.total}", duration(progress.elapsed_sec)]
        if left is not None and not progress.ended:
            parts.append(f"about {duration(left)} left")
        if progress.kept:
            parts.append(f"{progress.kept} kept")
        if progress.retried:
            parts.append(plural(progress.retried, "retry") if progress.retried == 1 else f"{progress.retried} retries")
        width = self._console.width
        name = shorten(one_line(progress.job_name), max(width // 4, 8))
        bar = ProgressBar(total=progress.total, completed=progress.done, width=max(min(40, width // 4), 6))
        grid = Table.grid(padding=(0, 1))
        for _ in range(3):
            grid.add_column(no_wrap=True, overflow="ellipsis" if self._unicode else "crop")
        grid.add_row(Text(name, style="bold"), bar, Text("  ".join(parts)))
        return grid

    def _metrics(self) -> list[RenderableType]:
        if not self._progress.metrics:
            return []
        grid = Table.grid(padding=(0, 2))
        overflow: Any = "ellipsis" if self._unicode else "crop"
        for ratio in (1, 1, 3):
            grid.add_column(no_wrap=True, overflow=overflow, max_width=max(self._console.width * ratio // 5, 8))
        room = max(self._console.height - 10, 3)
        shown = self._progress.metrics[:room]
        for report in shown:
            key = "" if report.key == "reward" else f"{one_line(report.key)}: "
            grid.add_row(Text(one_line(report.agent)), Text(one_line(report.dataset)), Text(f"{key}{metric_line(report.values)}"))
        more = len(self._progress.metrics) - len(shown)
        return [grid, Text(f"and {plural(more, 'further metric')}", style="dim")] if more else [grid]

    def _errors(self) -> list[RenderableType]:
        errors = self._progress.errors
        if not errors:
            return []
        listed = ", ".join(f"{code} {count}" for code, count in errors.most_common(_ERROR_CODES_SHOWN))
        more = f", and {len(errors) - _ERROR_CODES_SHOWN} further kinds" if len(errors) > _ERROR_CODES_SHOWN else ""
        return [Text(f"errors: {listed}{more}", style="red", no_wrap=True, overflow="crop")]

    def _running(self) -> list[RenderableType]:
        running = self._progress.running
        lines: list[RenderableType] = [
            Text(shorten(f"{duration(seconds):>7}  {trial}", self._console.width), style="dim", no_wrap=True)
            for trial, seconds in self._progress.longest_running(_RUNNING_SHOWN)
        ]
        more = len(running) - len(lines)
        if more > 0:
            lines.append(Text(f"         and {more} more running", style="dim"))
        return lines

    def _note_error(self, event: TrialFinished) -> None:
        """Errored trials scroll by above the live part, the first of them."""
        self._errored += 1
        error = event.result.error
        if self._errored <= _ERRORED_LINES and error is not None:
            self._notes.append(f"{event.trial_id}: {error.type}: {one_line(error.message)}")
        elif self._errored == _ERRORED_LINES + 1:
            self._notes.append("further errors are counted only; `rollout show` lists them")

    @property
    def _unicode(self) -> bool:
        return (self._console.encoding or "").lower().startswith("utf")
