"""What a job has spent, in all of its runs: every try counts, repeated ones and those of trials that run again too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rollout.core.job.store import SPENT, JobStore
from rollout.core.records import Budget, TrialResult
from rollout.core.types import Struct, Usage


class Spent(Struct, frozen=True, kw_only=True):
    """A line of spent.jsonl: what one try used."""

    trial_id: str
    try_number: int
    usage: Usage


class Spending:
    """The sum, and whether there is anything left."""

    def __init__(self, budget: Budget, store: JobStore) -> None:
        self._budget = budget
        self._store = store
        self.total: Usage | None = None
        for usage in _earlier(store.directory / SPENT):
            self.total = added(self.total, usage)

    def add(self, result: TrialResult, try_number: int) -> None:
        """Count one try, on disk first.

        Raises:
            StoreError
        """
        if result.usage is not None:
            self._store.add_spent(Spent(trial_id=result.trial_id, try_number=try_number, usage=result.usage))
            self.total = added(self.total, result.usage)

    def exceeded(self) -> str | None:
        """What is used up, in words."""
        return self._budget.exceeded(self.total) if self.total is not None else None


def added(one: Usage | None, other: Usage | None) -> Usage | None:
    """The sum, of which what neither knows is unknown."""
    if one is None or other is None:
        return one or other
    return Usage(
        input_tokens=_sum(one.input_tokens, other.input_tokens),
        output_tokens=_sum(one.output_tokens, other.output_tokens),
        cached_tokens=_sum(one.cached_tokens, other.cached_tokens),
        cost_usd=_sum(one.cost_usd, other.cost_usd),
    )


def _sum(one: float | None, other: float | None) -> Any:
    return other if one is None else one if other is None else one + other


def _earlier(path: Path) -> Iterator[Usage]:
    decoder = msgspec.json.Decoder(Spent)
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            try:
                yield decoder.decode(line).usage
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # torn by a crash
