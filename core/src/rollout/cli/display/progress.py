"""What a display knows of a running job: counts that events update cheaply, whatever is drawn and whenever."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from rollout.core.job.events import (
    Event,
    JobFinished,
    JobStarted,
    MetricReport,
    MetricsUpdated,
    TrialFinished,
    TrialRetried,
    TrialStarted,
)


class Progress:
    """Counts of one run of a job. An event costs a few dictionary operations, because there may be thousands a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self.job_name = ""
        self.total = 0
        self.kept = 0
        self.finished = 0
        """Of this run, kept ones not included."""
        self.retried = 0
        self.statuses: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        """Error code to number of trials, those included whose agent failed but that were scored."""
        self.running: dict[str, float] = {}
        """Trial to when it started."""
        self.metrics: list[MetricReport] = []
        self.ended = False
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            JobStarted: self._job_started,
            TrialStarted: self._trial_started,
            TrialRetried: self._trial_retried,
            TrialFinished: self._trial_finished,
            MetricsUpdated: self._metrics_updated,
            JobFinished: self._job_finished,
        }

    def on_event(self, event: Event) -> None:
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    @property
    def done(self) -> int:
        """Trials that are finished, in this run or an earlier one."""
        return self.kept + self.finished

    @property
    def elapsed_sec(self) -> float:
        return self._clock() - self._began

    @property
    def remaining_sec(self) -> float | None:
        """How long the rest takes at the pace so far; None when there is no pace yet."""
        if not self.finished:
            return None
        return max(self.total - self.done, 0) * self.elapsed_sec / self.finished

    def longest_running(self, count: int) -> list[tuple[str, float]]:
        """The trials that started first, with the seconds they have run. Trials start in order, so no sort is needed."""
        now = self._clock()
        first = itertools.islice(self.running.items(), count)
        return [(trial, now - began) for trial, began in first]

    def _job_started(self, event: JobStarted) -> None:
        self._began = self._clock()
        self.job_name = event.job_name
        self.total = event.total_trials
        self.kept = event.kept_trials

    def _trial_started(self, event: TrialStarted) -> None:
        self.running[event.trial_id] = self._clock()

    def _trial_retried(self, event: TrialRetried) -> None:
        self.running.pop(event.trial_id, None)
        self.retried += 1

    def _trial_finished(self, event: TrialFinished) -> None:
        self.running.pop(event.trial_id, None)
        self.finished += 1
        self.statuses[event.result.status] += 1
        if event.result.error is not None:
            self.errors[event.result.error.type] += 1

    def _metrics_updated(self, event: MetricsUpdated) -> None:
        self.metrics = event.metrics

    def _job_finished(self, event: JobFinished) -> None:
        self.ended = True
