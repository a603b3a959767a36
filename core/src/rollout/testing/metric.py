"""The contract of a metric, as tests: subclass `MetricSuite` and say which metric and which options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import pytest

from rollout.core.protocols import API_VERSION, Metric
from rollout.core.types import MetricValue, Score


class MetricSuite:
    """What every metric must do.

    class TestMedian(MetricSuite):
        metric = Median
        options = {"low": True}
    """

    metric: ClassVar[type[Metric]]
    options: ClassVar[dict[str, Any]] = {}

    def make(self) -> Metric:
        """A fresh metric with `options`, decoded as from a job file."""
        return self.metric(msgspec.convert(self.options, self.metric.options_type))

    def fed(self, scores: Sequence[Score]) -> list[MetricValue]:
        metric = self.make()
        for score in scores:
            metric.add(score)
        return list(metric.values())

    def test_is_written_for_this_api_version(self) -> None:
        assert self.metric.api_version[0] == API_VERSION[0]
        assert self.metric.api_version <= API_VERSION

    def test_unknown_options_are_refused(self) -> None:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**self.options, "no-such-option": 1}, self.metric.options_type)

    def test_has_no_figure_before_any_trial(self) -> None:
        for value in self.make().values():
            assert value.n == 0
            assert value.value is None or math.isfinite(value.value)

    def test_names_of_its_figures_are_distinct_per_basis(self) -> None:
        values = self.fed(_MIXED)
        assert values, "a metric that saw trials prints at least one figure"
        assert len({(value.name, value.basis) for value in values}) == len(values)
        assert all(value.name.strip() for value in values)

    def test_survives_a_job_where_every_trial_errored(self) -> None:
        errored = [Score(task=f"t{i}", attempt=1, value=None, errored=True) for i in range(5)]
        for value in self.fed(errored):
            if value.basis == "scored":
                assert value.n == 0, "no trial was scored, so the denominator over scored trials is 0"
            assert value.value is None or math.isfinite(value.value)

    def test_errored_trials_never_enter_a_denominator_over_scored_trials(self) -> None:
        scored = [score for score in _MIXED if score.value is not None]
        without = {value.name: value for value in self.fed(scored) if value.basis == "scored"}
        for value in self.fed(_MIXED):
            if value.basis == "scored":
                assert value == without[value.name]

    def test_unscored_trials_change_nothing(self) -> None:
        unscored = [Score(task=f"t{i}", attempt=9, value=None) for i in range(3)]
        assert self.fed([*_MIXED, *unscored]) == self.fed(_MIXED)

    def test_asking_for_values_changes_nothing(self) -> None:
        metric = self.make()
        for score in _MIXED:
            metric.add(score)
            metric.values()
        assert list(metric.values()) == self.fed(_MIXED)

    def test_the_order_in_which_trials_finish_does_not_matter(self) -> None:
        forwards, backwards = self.fed(_MIXED), self.fed(_MIXED[::-1])
        assert [(value.name, value.n, value.basis) for value in forwards] == [(v.name, v.n, v.basis) for v in backwards]
        for one, other in zip(forwards, backwards, strict=True):
            assert one.value == pytest.approx(other.value)

    def test_two_instances_share_nothing(self) -> None:
        one, other = self.make(), self.make()
        one.add(_MIXED[0])
        assert list(other.values()) == list(self.make().values())


_MIXED = [
    Score(task="alpha", attempt=1, value=1.0),
    Score(task="beta", attempt=1, value=0.25),
    Score(task="alpha", attempt=2, value=None, errored=True),
    Score(task="gamma", attempt=1, value=-2.5),
    Score(task="beta", attempt=2, value=1.0),
    Score(task="delta", attempt=1, value=None, errored=True),
]
