"""`--display log`: a line with a time for everything that happens, for the logs of CI and of services."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from rollout.cli.display.progress import Progress
from rollout.cli.display.text import figure, metric_line, one_line, plural
from rollout.core.job.events import (
    Event,
    JobFinished,
    JobStarted,
    MetricReport,
    MetricsUpdated,
    TrialFinished,
    TrialRetried,
    TrialStarted,
    WarningRaised,
)

_METRICS_EVERY_SEC = 10.0


class LogDisplay:
    """One line per event. Metrics are written when they changed, at most every ten seconds."""

    def __init__(self, stream: TextIO, progress: Progress | None = None) -> None:
        self._stream = stream
        self._progress = progress or Progress()
        self._metrics: list[MetricReport] = []
        self._metrics_at: float | None = None
        self._lines: dict[type[Event], Callable[[Any], str]] = {
            JobStarted: self._job_started,
            TrialStarted: self._trial_started,
            TrialRetried: self._trial_retried,
            TrialFinished: self._trial_finished,
            WarningRaised: self._warning,
            JobFinished: self._job_finished,
        }

    def open(self) -> None:
        pass

    def on_event(self, event: Event) -> None:
        self._progress.on_event(event)
        if isinstance(event, MetricsUpdated):
            self._write_metrics(event)
        elif (line := self._lines.get(type(event))) is not None:
            self._write(event.time, line(event))

    def refresh(self) -> None:
        pass

    def message(self, text: str) -> None:
        self._write(datetime.now(UTC), one_line(text))

    def close(self) -> None:
        pass

    def _write(self, time: datetime, line: str) -> None:
        stamp = time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        print(f"{stamp}Z {line}", file=self._stream, flush=True)

    def _job_started(self, event: JobStarted) -> str:
        kept = f", {event.kept_trials} kept" if event.kept_trials else ""
        return f"job {one_line(event.job_name)}: {plural(event.total_trials, 'trial')}{kept}, {event.concurrency} at once"

    def _trial_started(self, event: TrialStarted) -> str:
        again = f" (try {event.try_number})" if event.try_number > 1 else ""
        return f"{event.trial_id}: started{again}"

    def _trial_retried(self, event: TrialRetried) -> str:
        error = event.error
        return f"{event.trial_id}: {error.type}: {one_line(error.message)}; trying again in {event.wait_sec:g} s"

    def _trial_finished(self, event: TrialFinished) -> str:
        result = event.result
        outcome = f"reward {figure(result.reward)}" if result.scored else result.status
        error = f", {result.error.type}: {one_line(result.error.message)}" if result.error else ""
        return f"{event.trial_id}: {outcome}{error} ({self._progress.done}/{self._progress.total})"

    def _warning(self, event: WarningRaised) -> str:
        return f"warning: {one_line(event.message)}"

    def _job_finished(self, event: JobFinished) -> str:
        how = "interrupted" if event.cancelled else "finished"
        counts = f"{event.scored} scored, {event.unscored} unscored, {event.errored} errored, {event.not_run} not run"
        return f"job {how} after {event.duration_sec:.1f} s: {counts}; results in {event.directory}"

    def _write_metrics(self, event: MetricsUpdated) -> None:
        now = self._progress.elapsed_sec
        due = self._metrics_at is None or now - self._metrics_at >= _METRICS_EVERY_SEC
        last = self._progress.total == self._progress.done
        if not (due or last) or event.metrics == self._metrics:
            return
        for line in changed_metrics(self._metrics, event.metrics):
            self._write(event.time, line)
        self._metrics, self._metrics_at = event.metrics, now


def changed_metrics(before: list[MetricReport], after: list[MetricReport]) -> list[str]:
    """A line for each metric that is not as it was: `oracle on tools: mean 0.750 (n=12)`."""
    known = {(report.agent, report.dataset, report.key, report.metric): report.values for report in before}
    lines = []
    for report in after:
        if known.get((report.agent, report.dataset, report.key, report.metric)) != report.values:
            key = "" if report.key == "reward" else f", {one_line(report.key)}"
            lines.append(f"{one_line(report.agent)} on {one_line(report.dataset)}{key}: {metric_line(report.values)}")
    return lines
