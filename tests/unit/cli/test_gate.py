"""`--fail-under`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.cli.gate import check_selects, judge, parse_gate
from rollout.core.errors import UsageError
from rollout.core.job.events import MetricReport
from rollout.core.types import MetricValue


def report(agent: str, metric: str, *values: MetricValue, key: str = "reward") -> MetricReport:
    return MetricReport(agent=agent, dataset="tools", key=key, metric=metric, values=list(values))


def mean(agent: str, scored: float | None, of_all: float | None, key: str = "reward") -> MetricReport:
    return report(
        agent,
        "mean",
        MetricValue(name="mean", value=scored, n=1),
        MetricValue(name="mean", value=of_all, n=2, basis="all"),
        key=key,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mean=0.8", ("*", "mean", "reward", 0.8)),
        ("oracle:mean=1", ("oracle", "mean", "reward", 1.0)),
        ("claude*:pass@5=.5", ("claude*", "pass@5", "reward", 0.5)),
        ("mean[accuracy]=-1e-3", ("*", "mean", "accuracy", -0.001)),
        ("a:b:mean=1", ("a:b", "mean", "reward", 1.0)),
        (" mean = 1 ", ("*", "mean", "reward", 1.0)),
    ],
)
def test_forms_of_a_gate(text: str, expected: tuple[str, str, str, float]) -> None:
    gate = parse_gate(text)
    assert (gate.agent, gate.metric, gate.key, gate.value) == expected


@pytest.mark.parametrize(
    "text", ["", "mean", "mean=", "=1", "mean=high", "mean=nan", "mean=inf", "mean=1=2", "mean[=1", ":mean=1"]
)
def test_what_is_no_gate_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="--fail-under"):
        parse_gate(text)


@given(st.text())
def test_any_text_is_a_gate_or_a_usage_error(text: str) -> None:
    try:
        gate = parse_gate(text)
    except UsageError:
        return
    assert gate.metric


def test_a_gate_on_what_the_job_does_not_have_is_refused() -> None:
    figures = ["mean", "pass_at_k", "pass@1"]
    check_selects([parse_gate("mean=1"), parse_gate("or*:pass@5=1")], ["oracle", "nop"], figures)
    with pytest.raises(UsageError, match="no agent 'claude' in the job; it has oracle, nop"):
        check_selects([parse_gate("claude:mean=1")], ["oracle", "nop"], figures)
    with pytest.raises(UsageError, match="no metric 'median'; it has mean, pass_at_k, pass@1"):
        check_selects([parse_gate("median=1")], ["oracle"], figures)


def test_equal_is_enough_and_less_is_not() -> None:
    assert judge(parse_gate("mean=0.5"), [mean("a", 0.5, 0.5)]) == []
    assert judge(parse_gate("mean=0.5"), [mean("a", 0.49, 0.49)]) == ["a on tools: mean is 0.490 (n=2), below 0.5"]


def test_errors_count_as_0_where_the_metric_says_so() -> None:
    assert judge(parse_gate("mean=0.8"), [mean("a", 1.0, 0.5)]) == ["a on tools: mean is 0.500 (n=2), below 0.8"]


def test_every_agent_that_matches_has_to_pass() -> None:
    metrics = [mean("oracle", 1.0, 1.0), mean("nop", 0.0, 0.0)]
    assert judge(parse_gate("oracle:mean=1"), metrics) == []
    assert len(judge(parse_gate("mean=1"), metrics)) == 1


def test_no_verdict_does_not_pass() -> None:
    assert judge(parse_gate("mean=0"), [mean("a", None, None)]) == ["a on tools: mean is - (n=2), below 0"]
    assert judge(parse_gate("mean=0"), []) == ["there is no figure mean of the reward key 'reward'"]


def test_the_only_reward_key_stands_in_for_the_key_reward() -> None:
    metrics = [mean("a", 0.5, 0.5, key="accuracy")]
    assert judge(parse_gate("mean=0.6"), metrics)
    assert judge(parse_gate("mean=0.5"), metrics) == []
    both = [*metrics, mean("a", 1.0, 1.0)]
    assert judge(parse_gate("mean=0.6"), both) == []
    assert judge(parse_gate("mean[accuracy]=0.6"), both)


def test_a_figure_can_be_named_instead_of_its_metric() -> None:
    passes = report("a", "pass_at_k", *(MetricValue(name=f"pass@{k}", value=k / 10, n=3, basis="all") for k in (1, 5)))
    assert judge(parse_gate("pass@5=0.5"), [passes]) == []
    assert judge(parse_gate("pass_at_k=0.5"), [passes]) == ["a on tools: pass@1 is 0.100 (n=3), below 0.5"]
