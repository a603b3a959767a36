"""The figures of the built-in metrics, and what they are over."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.builtin.metrics import Max, Mean, Min, PassAtK, PassAtKOptions, Sum, pass_at_k
from rollout.core.protocols import Metric, NoOptions
from rollout.core.types import MetricValue, Score

REWARDS = st.floats(min_value=-1e6, max_value=1e6)


def scores(values: list[float | None], *, errored: int = 0) -> list[Score]:
    """One task each; None is a trial whose verification was disabled."""
    made = [Score(task=f"t{i}", attempt=1, value=value) for i, value in enumerate(values)]
    return made + [Score(task=f"e{i}", attempt=1, value=None, errored=True) for i in range(errored)]


def fed(metric: Metric, given_scores: list[Score]) -> list[MetricValue]:
    for score in given_scores:
        metric.add(score)
    return list(metric.values())


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (Sum, [MetricValue(name="sum", value=2.25, n=3)]),
        (Min, [MetricValue(name="min", value=0.25, n=3)]),
        (Max, [MetricValue(name="max", value=1.0, n=3)]),
        (Mean, [MetricValue(name="mean", value=0.75, n=3), MetricValue(name="mean", value=0.5625, n=4, basis="all")]),
    ],
)
def test_errored_trials_are_in_no_figure_but_the_one_that_says_so(metric: type[Metric], expected: list[MetricValue]) -> None:
    assert fed(metric(NoOptions()), scores([1.0, 0.25, 1.0, None], errored=1)) == expected


def test_a_job_of_errors_has_no_mean_and_a_mean_of_0_with_errors_as_0() -> None:
    assert fed(Mean(NoOptions()), scores([], errored=3)) == [
        MetricValue(name="mean", value=None, n=0),
        MetricValue(name="mean", value=0.0, n=3, basis="all"),
    ]


@given(st.lists(REWARDS, min_size=1, max_size=200))
def test_sum_and_mean_are_the_exact_ones_to_the_last_digits(values: list[float]) -> None:
    exact = sum(Fraction(value) for value in values)
    total = fed(Sum(NoOptions()), scores(list(values)))[0].value
    mean = fed(Mean(NoOptions()), scores(list(values)))[0].value
    assert total == pytest.approx(float(exact), rel=1e-12, abs=1e-9)
    assert mean == pytest.approx(float(exact / len(values)), rel=1e-12, abs=1e-9)


def test_a_sum_keeps_small_rewards_beside_a_huge_one() -> None:
    assert fed(Sum(NoOptions()), scores([1e16, 1.0, 1.0, -1e16]))[0].value == 2.0


def brute_force_pass_at_k(n: int, c: int, k: int) -> float:
    """The share of the k-subsets of n attempts that hold one of the c passes."""
    draws = list(itertools.combinations(range(n), k))
    return sum(any(index < c for index in draw) for draw in draws) / len(draws)


@given(st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_pass(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 9))
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert pass_at_k(n, c, k) == pytest.approx(brute_force_pass_at_k(n, c, k))


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [(1, 1, 1, 1.0), (5, 0, 3, 0.0), (5, 1, 1, 0.2), (4, 2, 2, 5 / 6), (10, 3, 8, 1.0), (3000, 1, 1500, 0.5)],
)
def test_pass_at_k_golden_rows(n: int, c: int, k: int, expected: float) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(expected)


def attempts(outcomes: dict[str, list[float | None]]) -> list[Score]:
    """Attempts by task; None is an errored one."""
    return [
        Score(task=task, attempt=number, value=value, errored=value is None)
        for task, values in outcomes.items()
        for number, value in enumerate(values, 1)
    ]


def test_pass_at_k_defaults_to_1_and_powers_of_two_up_to_the_attempts_seen() -> None:
    values = fed(PassAtK(PassAtKOptions()), attempts({"a": [1.0, 0.0, 0.0, 0.0, 0.0]}))
    assert [value.name for value in values] == ["pass@1", "pass@2", "pass@4"]
    assert values[0].value == pytest.approx(0.2)


def test_a_task_without_k_attempts_is_not_in_that_denominator() -> None:
    values = fed(PassAtK(PassAtKOptions(k=[3, 1])), attempts({"a": [1.0, 0.0, 0.0], "b": [1.0]}))
    assert [(value.name, value.n) for value in values] == [("pass@1", 2), ("pass@3", 1)]
    assert values[0].value == pytest.approx((1 / 3 + 1) / 2)
    assert values[1].value == 1.0


def test_an_errored_attempt_is_a_failed_one_and_the_basis_says_so() -> None:
    (value,) = fed(PassAtK(PassAtKOptions(k=[1])), attempts({"a": [1.0, None], "b": [None, None]}))
    assert value == MetricValue(name="pass@1", value=0.25, n=2, basis="all")


def test_the_threshold_decides_what_passes() -> None:
    outcomes = attempts({"a": [0.5], "b": [0.4]})
    assert fed(PassAtK(PassAtKOptions(k=[1], threshold=0.5)), outcomes)[0].value == 0.5
    assert fed(PassAtK(PassAtKOptions(k=[1])), outcomes)[0].value == 0.0


@pytest.mark.parametrize("options", [{"k": [0]}, {"k": 1}, {"k": ["x"]}, {"threshold": "high"}, {"ks": [1]}])
def test_wrong_options_of_pass_at_k_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(options, PassAtKOptions)


@given(
    st.dictionaries(
        st.sampled_from("abcdef"), st.lists(st.one_of(st.none(), st.sampled_from([0.0, 1.0])), min_size=1, max_size=6)
    )
)
def test_counting_outcomes_gives_the_mean_over_tasks(outcomes: dict[str, list[float | None]]) -> None:
    for value in fed(PassAtK(PassAtKOptions(k=[1, 2, 4])), attempts(outcomes)):
        k = int(value.name.removeprefix("pass@"))
        each = [pass_at_k(len(o), o.count(1.0), k) for o in outcomes.values() if len(o) >= k]
        assert value.n == len(each)
        assert value.value == (pytest.approx(math.fsum(each) / len(each)) if each else None)
