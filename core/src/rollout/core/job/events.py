"""What happens in a job, as data: the lines of `events.jsonl` and of `--json`, and what a display draws from."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec

from rollout.core.records import ErrorInfo, TrialResult
from rollout.core.types import MetricValue


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=_snake):
    """Base: `{"event": "<name in snake case>", "time": ...}`."""

    time: datetime
    """UTC."""


class JobStarted(Event, frozen=True, kw_only=True):
    job_id: str
    job_name: str
    directory: str
    total_trials: int
    """All trials of the job, kept ones included."""
    kept_trials: int
    """Finished in an earlier run and still valid."""
    rerun: dict[str, int] = {}
    """Why finished trials run again: `task changed`, `agent changed`, `errored` ... to how many."""
    concurrency: int
    agents: list[str]
    datasets: list[str]


class TrialStarted(Event, frozen=True, kw_only=True):
    trial_id: str
    try_number: int = 1


class TrialRetried(Event, frozen=True, kw_only=True):
    """A try errored and the trial will be tried again after `wait_sec`."""

    trial_id: str
    try_number: int
    error: ErrorInfo
    wait_sec: float


class TrialFinished(Event, frozen=True, kw_only=True):
    trial_id: str
    result: TrialResult


class MetricReport(msgspec.Struct, frozen=True, kw_only=True):
    """One metric's figures for one agent, dataset and reward key."""

    agent: str
    dataset: str
    key: str
    metric: str
    values: list[MetricValue]


class MetricsUpdated(Event, frozen=True, kw_only=True):
    """Sent after trials finish, at most a few times a second, and once at the end."""

    metrics: list[MetricReport]


class WarningRaised(Event, frozen=True, kw_only=True):
    message: str


class JobFinished(Event, frozen=True, kw_only=True):
    job_id: str
    directory: str
    exit_code: int
    cancelled: bool
    scored: int
    unscored: int
    errored: int
    not_run: int
    duration_sec: float
    stopped: str | None = None


EventSink = Callable[[Event], None]
