"""What a trial writes down of itself while it runs: its log, warnings, times, and the error that counts."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from rollout.core.errors import RolloutError
from rollout.core.records import Durations, ErrorInfo, Timestamps
from rollout.core.trial.output import TrialLog
from rollout.core.trial.redact import Redactor


class Journal:
    """Everything in it is redacted. It has no file until `open`, and says the same without one."""

    def __init__(self, redactor: Redactor) -> None:
        self.error: ErrorInfo | None = None
        self.warnings: list[str] = []
        self.times: dict[str, datetime] = {}
        """Field of Timestamps to the moment, as far as it was reached."""
        self._durations: dict[str, float] = {}
        self._redactor = redactor
        self._log: TrialLog | None = None
        self._owns_log = False
        self._began = time.monotonic()
        self._phases: dict[str, float] = {}

    def open(self, path: Path) -> None:
        """Write to the trial's log from now on.

        Raises:
            StoreError
        """
        self._log, self._owns_log = TrialLog(path, self._redactor), True

    def close(self) -> None:
        """Raises StoreError: a line could not be written."""
        log, self._log = self._log, None
        if log is not None and self._owns_log:
            log.close()

    def share_log(self, other: Journal) -> None:
        """Write to the log of `other`, which closes it."""
        self._log = other._log

    def say(self, message: str) -> None:
        if self._log is not None:
            self._log(message)

    def warn(self, message: str) -> None:
        text = self._redactor.text(message)
        self.warnings.append(text)
        self.say(f"warning: {text}")

    def fail(self, error: RolloutError, phase: str | None) -> None:
        """Keep the first error: it is the cause, later ones are consequences. A later error that leaves no verdict wins."""
        text = self._redactor.text(str(error))
        self.say(f"{error.code}: {text}")
        keep_first = self.error is not None and phase in (None, "disconnect")
        if not keep_first:
            self.error = ErrorInfo(type=error.code, message=text, phase=phase, retryable=error.retryable)

    def mark(self, moment: str) -> None:
        self.times[moment] = datetime.now(UTC)

    def begin(self, phase: str) -> None:
        self.mark(f"{phase}_started_at")
        self._phases[phase] = time.monotonic()
        self.say(f"{phase} started")

    def end(self, phase: str) -> None:
        self.mark(f"{phase}_ended_at")
        seconds = round(time.monotonic() - self._phases.pop(phase), 6)
        self._durations[f"{phase}_sec"] = seconds
        self.say(f"{phase} ended after {seconds:.3f} s")

    def add(self, step: str, journal: Journal) -> None:
        """Make a step's warnings and times the trial's: the first begin, the last end, the sum of durations."""
        self.warnings += [f"step {step}: {warning}" for warning in journal.warnings]
        for name, seconds in journal._durations.items():
            self._durations[name] = round(self._durations.get(name, 0.0) + seconds, 6)
        for name, moment in journal.times.items():
            if name.endswith("_ended_at"):
                self.times[name] = moment
            else:
                self.times.setdefault(name, moment)

    def durations(self) -> Durations:
        return Durations(total_sec=round(time.monotonic() - self._began, 6), **self._durations)

    def timestamps(self) -> Timestamps:
        """The times so far; the trial ends now."""
        return Timestamps(**self.times, ended_at=datetime.now(UTC))
