"""`--display plain`: lines for pipes and files. A line per trial in small jobs; in large ones errors and the pace."""

from __future__ import annotations

from typing import TextIO

from rollout.cli.display.log import changed_metrics
from rollout.cli.display.progress import Progress
from rollout.cli.display.text import duration, figure, one_line, plural
from rollout.core.job.events import (
    Event,
    JobStarted,
    MetricReport,
    MetricsUpdated,
    TrialFinished,
    TrialRetried,
    WarningRaised,
)
from rollout.core.records import TrialResult

EACH_TRIAL_UP_TO = 500
"""Jobs with more trials get no line for each."""
_MAX_ERROR_LINES = 100
_SUMMARY_EVERY_SEC = 10.0


class PlainDisplay:
    """Lines in the order in which things happen."""

    def __init__(self, stream: TextIO, progress: Progress | None = None) -> None:
        self._stream = stream
        self._progress = progress or Progress()
        self._metrics: list[MetricReport] = []
        self._summary_at = 0.0
        self._summary_done = -1
        self._error_lines = 0

    def open(self) -> None:
        pass

    def on_event(self, event: Event) -> None:
        self._progress.on_event(event)
        if isinstance(event, TrialFinished):
            self._trial_finished(event.result)
        elif isinstance(event, JobStarted):
            self._job_started(event)
        elif isinstance(event, TrialRetried):
            self._error_line(f"{event.trial_id}: {event.error.type}, trying again in {event.wait_sec:g} s")
        elif isinstance(event, WarningRaised):
            self.message(f"warning: {one_line(event.message)}")
        elif isinstance(event, MetricsUpdated) and not self._metrics:
            self._print_metrics()

    def refresh(self) -> None:
        """The pace of a large job, and metrics that changed, every ten seconds."""
        progress = self._progress
        if progress.elapsed_sec - self._summary_at < _SUMMARY_EVERY_SEC or not progress.finished or progress.ended:
            return
        self._summary_at = progress.elapsed_sec
        if progress.total > EACH_TRIAL_UP_TO and progress.done != self._summary_done:
            self._summary_done = progress.done
            left = progress.remaining_sec
            eta = f", about {duration(left)} left" if left else ""
            errored = f", {progress.statuses['errored']} errored" if progress.statuses["errored"] else ""
            self.message(f"{progress.done}/{progress.total} trials{errored}{eta}")
        self._print_metrics()

    def message(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        pass

    def _job_started(self, event: JobStarted) -> None:
        again = "".join(f", {count} again ({why})" for why, count in event.rerun.items())
        kept = f" ({event.kept_trials} kept{again})" if event.kept_trials or again else ""
        self.message(f"job {one_line(event.job_name)}: {plural(event.total_trials, 'trial')}{kept}, {event.concurrency} at once")

    def _trial_finished(self, result: TrialResult) -> None:
        progress = self._progress
        place = f"{progress.done:>{len(str(progress.total))}}/{progress.total}"
        took = f" ({duration(result.durations.total_sec)})" if result.durations.total_sec is not None else ""
        error = f"{result.error.type}: {one_line(result.error.message)}" if result.error else ""
        if result.status == "errored":
            self._error_line(f"{place}  {result.trial_id}  {error}{took}")
        elif progress.total <= EACH_TRIAL_UP_TO:
            outcome = figure(result.reward) if result.scored else result.status
            if result.scored and result.reward is None:
                outcome = ", ".join(f"{one_line(key)} {figure(value)}" for key, value in result.rewards.items())
            self.message(f"{place}  {result.trial_id}  {outcome}{took}{'  ' if error else ''}{error}")

    def _error_line(self, line: str) -> None:
        self._error_lines += 1
        if self._progress.total <= EACH_TRIAL_UP_TO or self._error_lines <= _MAX_ERROR_LINES:
            self.message(line)
        elif self._error_lines == _MAX_ERROR_LINES + 1:
            self.message("further errors are counted only; `rollout show` lists them")

    def _print_metrics(self) -> None:
        for line in changed_metrics(self._metrics, self._progress.metrics):
            self.message(line)
        self._metrics = self._progress.metrics
