"""What comes of a job: running counts and metrics per agent, dataset and reward key, and the job's result.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from rollout.core.job.events import MetricReport
from rollout.core.plugins import Plugin
from rollout.core.records import SCHEMA_VERSION, ErrorInfo, Status
from rollout.core.types import Score, Struct, Usage

_DEFAULT_KEY = "reward"


class GroupResult(Struct, frozen=True, kw_only=True):
    """Counts of one agent on one dataset."""

    agent: str
    dataset: str
    total_trials: int
    scored: int
    unscored: int
    errored: int
    errors: dict[str, int]
    """Error code to count; trials whose agent failed but that were scored are among them."""
    cost: float | None
    """US dollars, as far as agents tell."""
    tokens: int | None = None
    """Sent and received, as far as agents tell."""
    mean_duration_sec: float | None = None
    """Of its finished trials."""


class JobResult(Struct, frozen=True, kw_only=True):
    """The job's `result.json`."""

    schema_version: str = SCHEMA_VERSION
    job_id: str
    job_name: str
    cancelled: bool
    exit_code: int
    total_trials: int
    completed_trials: int
    """Scored or, with verification disabled, run to the end."""
    failed_trials: int
    skipped_trials: int
    """Not run: the job was interrupted."""
    mean_reward: float | None
    """Primary reward over scored trials."""
    mean_reward_errors_as_zero: float | None
    """Primary reward over scored and errored trials, errored ones as 0."""
    total_cost: float | None
    """Of the trials that count."""
    spent: Usage | None = None
    """What all tries of all runs used, those of trials that ran again too."""
    stopped: str | None = None
    """Why no more trials were started: which budget is used up."""
    total_duration_sec: float
    started_at: datetime
    ended_at: datetime
    groups: list[GroupResult]
    metrics: list[MetricReport]
    warnings: list[str]


class Timed(Protocol):
    @property
    def total_sec(self) -> float | None: ...


class Counted(Protocol):
    """What a tally looks at: a TrialResult, or what was read of one from disk."""

    @property
    def agent_name(self) -> str: ...
    @property
    def dataset_name(self) -> str: ...
    @property
    def task_name(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def status(self) -> Status: ...
    @property
    def rewards(self) -> Mapping[str, float]: ...
    @property
    def error(self) -> ErrorInfo | None: ...
    @property
    def cost(self) -> float | None: ...
    @property
    def usage(self) -> Usage | None: ...
    @property
    def durations(self) -> Timed: ...


class Tally:
    """Running aggregates over finished trials. Memory follows agents, datasets and reward keys, and what the metrics keep."""

    def __init__(self, metrics: Sequence[tuple[str, Plugin, Any]], totals: Mapping[tuple[str, str], int]) -> None:
        """`totals`: how many trials each (agent, dataset) has."""
        self._plugins = metrics
        self._groups = {pair: _Group(total) for pair, total in totals.items()}

    def add(self, trial: Counted) -> None:
        """Count one finished trial. An errored one counts for every reward key: nobody knows which it would have had."""
        task, attempt, rewards = trial.task_name, trial.attempt, trial.rewards
        group = self._groups[trial.agent_name, trial.dataset_name]
        group.statuses[trial.status] += 1
        if trial.error is not None:
            group.errors[trial.error.type] += 1
        if trial.cost is not None:
            group.cost = (group.cost or 0.0) + trial.cost
        if trial.usage is not None and (trial.usage.input_tokens, trial.usage.output_tokens) != (None, None):
            group.tokens = (group.tokens or 0) + (trial.usage.input_tokens or 0) + (trial.usage.output_tokens or 0)
        if trial.durations.total_sec is not None:
            group.seconds += trial.durations.total_sec
            group.timed += 1
        errored = trial.status == "errored"
        for key in rewards:
            if key not in group.metrics:
                group.metrics[key] = self._new_metrics(group)
        if not group.metrics and errored:
            group.early_errors.append((task, attempt))
            return
        for key, metrics in group.metrics.items():
            if key in rewards or errored:
                score = Score(task=task, attempt=attempt, value=rewards.get(key), errored=errored)
                for _, metric in metrics:
                    metric.add(score)
        if errored:
            group.early_errors.append((task, attempt))

    def reports(self) -> list[MetricReport]:
        """Every metric's figures as they stand."""
        return [
            MetricReport(agent=agent, dataset=dataset, key=key, metric=name, values=list(metric.values()))
            for (agent, dataset), group in self._groups.items()
            for key, metrics in self._shown(group).items()
            for name, metric in metrics
        ]

    def groups(self) -> list[GroupResult]:
        return [
            GroupResult(
                agent=agent,
                dataset=dataset,
                total_trials=group.total,
                scored=group.statuses["scored"],
                unscored=group.statuses["unscored"],
                errored=group.statuses["errored"],
                errors=dict(group.errors.most_common()),
                cost=group.cost,
                tokens=group.tokens,
                mean_duration_sec=round(group.seconds / group.timed, 6) if group.timed else None,
            )
            for (agent, dataset), group in self._groups.items()
        ]

    def count(self, status: Status) -> int:
        return sum(group.statuses[status] for group in self._groups.values())

    @property
    def cost(self) -> float | None:
        costs = [group.cost for group in self._groups.values() if group.cost is not None]
        return sum(costs) if costs else None

    def _new_metrics(self, group: _Group) -> list[tuple[str, Any]]:
        """Metrics of a key that is seen for the first time: errors that came before it count for it too."""
        metrics = [(name, plugin.cls(options)) for name, plugin, options in self._plugins]
        for task, attempt in group.early_errors:
            for _, metric in metrics:
                metric.add(Score(task=task, attempt=attempt, value=None, errored=True))
        return metrics

    def _shown(self, group: _Group) -> dict[str, list[tuple[str, Any]]]:
        if group.metrics or not group.early_errors:
            return group.metrics
        return {_DEFAULT_KEY: self._new_metrics(group)}


class _Group:
    def __init__(self, total: int) -> None:
        self.total = total
        self.statuses: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.cost: float | None = None
        self.tokens: int | None = None
        self.seconds = 0.0
        self.timed = 0
        self.metrics: dict[str, list[tuple[str, Any]]] = {}
        self.early_errors: list[tuple[str, int]] = []
