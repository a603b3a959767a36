"""The built-in metrics: sum, min, max, mean, pass_at_k. Each says with every figure what it is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import comb
from typing import Annotated, Literal

from msgspec import Meta

from rollout.core.protocols import API_VERSION, NoOptions
from rollout.core.types import MetricValue, Score, Struct


class _Total:
    """A running sum that loses nothing to rounding as it grows (Neumaier's compensated summation)."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._lost = 0.0

    def add(self, value: float) -> None:
        total = self._sum + value
        if abs(self._sum) >= abs(value):
            self._lost += (self._sum - total) + value
        else:
            self._lost += (value - total) + self._sum
        self._sum = total

    @property
    def value(self) -> float:
        return self._sum + self._lost


class Sum:
    """The sum of the rewards. Trials without a verdict add nothing."""

    api_version = API_VERSION
    options_type = NoOptions

    def __init__(self, options: NoOptions) -> None:
        self._total = _Total()
        self._n = 0

    def add(self, score: Score) -> None:
        if score.value is not None:
            self._total.add(score.value)
            self._n += 1

    def values(self) -> Sequence[MetricValue]:
        return [MetricValue(name="sum", value=self._total.value if self._n else None, n=self._n)]


class Min:
    """The lowest reward. Trials without a verdict are left out."""

    api_version = API_VERSION
    options_type = NoOptions

    def __init__(self, options: NoOptions) -> None:
        self._lowest: float | None = None
        self._n = 0

    def add(self, score: Score) -> None:
        if score.value is not None:
            self._lowest = score.value if self._lowest is None else min(self._lowest, score.value)
            self._n += 1

    def values(self) -> Sequence[MetricValue]:
        return [MetricValue(name="min", value=self._lowest, n=self._n)]


class Max:
    """The highest reward. Trials without a verdict are left out."""

    api_version = API_VERSION
    options_type = NoOptions

    def __init__(self, options: NoOptions) -> None:
        self._highest: float | None = None
        self._n = 0

    def add(self, score: Score) -> None:
        if score.value is not None:
            self._highest = score.value if self._highest is None else max(self._highest, score.value)
            self._n += 1

    def values(self) -> Sequence[MetricValue]:
        return [MetricValue(name="max", value=self._highest, n=self._n)]


class Mean:
    """The mean reward, twice: over scored trials, and with errored trials counted as 0."""

    api_version = API_VERSION
    options_type = NoOptions

    def __init__(self, options: NoOptions) -> None:
        self._total = _Total()
        self._scored = 0
        self._errored = 0

    def add(self, score: Score) -> None:
        if score.value is not None:
            self._total.add(score.value)
            self._scored += 1
        elif score.errored:
            self._errored += 1

    def values(self) -> Sequence[MetricValue]:
        return [self._over(self._scored, "scored"), self._over(self._scored + self._errored, "all")]

    def _over(self, n: int, basis: Literal["scored", "all"]) -> MetricValue:
        return MetricValue(name="mean", value=self._total.value / n if n else None, n=n, basis=basis)


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of `k` attempts passes, estimated from `c` passes in `n` attempts.

    The unbiased estimator 1 - C(n-c, k) / C(n, k) of Chen et al. 2021, "Evaluating Large Language Models Trained on Code",
    section 2.1. Needs 0 <= c <= n and 1 <= k <= n.
    """
    return 1.0 - comb(n - c, k) / comb(n, k)


class PassAtKOptions(Struct, frozen=True, kw_only=True):
    k: list[Annotated[int, Meta(ge=1, le=1_000_000)]] = []
    """Which k to print; when empty, 1 and the powers of two up to the attempts that a task got."""
    threshold: float = 1.0
    """An attempt passes when its reward is at least this."""


class PassAtK:
    """pass@k, averaged over tasks. An errored attempt is a failed attempt; a task counts for k once it has k attempts."""

    api_version = API_VERSION
    options_type = PassAtKOptions

    def __init__(self, options: PassAtKOptions) -> None:
        self._options = options
        self._tasks: dict[str, tuple[int, int]] = {}
        # Tasks by (attempts, passes): values() costs what there are kinds of outcome, not tasks.
        self._outcomes: Counter[tuple[int, int]] = Counter()

    def add(self, score: Score) -> None:
        if score.value is None and not score.errored:
            return
        before = self._tasks.get(score.task)
        attempts, passes = before or (0, 0)
        after = (attempts + 1, passes + (score.value is not None and score.value >= self._options.threshold))
        self._tasks[score.task] = after
        if before is not None:
            self._outcomes[before] -= 1
            if not self._outcomes[before]:
                del self._outcomes[before]
        self._outcomes[after] += 1

    def values(self) -> Sequence[MetricValue]:
        return [self._value(k) for k in self._ks()]

    def _ks(self) -> Iterator[int]:
        if self._options.k:
            yield from sorted(set(self._options.k))
            return
        most = max((attempts for attempts, _ in self._outcomes), default=1)
        k = 1
        while k <= most:
            yield k
            k *= 2

    def _value(self, k: int) -> MetricValue:
        total = _Total()
        tasks = 0
        for (attempts, passes), count in self._outcomes.items():
            if attempts >= k:
                total.add(count * pass_at_k(attempts, passes, k))
                tasks += count
        return MetricValue(name=f"pass@{k}", value=total.value / tasks if tasks else None, n=tasks, basis="all")
