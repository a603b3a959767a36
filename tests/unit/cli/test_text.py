"""Text for terminals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.cli.display.summary import closing_lines, error_lines, result_table
from rollout.cli.display.text import cells, duration, figure, metric_line, one_line, printable, shorten, table
from rollout.core.job.events import MetricReport
from rollout.core.job.results import GroupResult
from rollout.core.types import MetricValue


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0.0, "0.000"), (1.0, "1.000"), (0.6666, "0.667"), (-2.5, "-2.500"), (12345.678, "12345.678"),
        (1234567.0, "1234567"), (-14563.0, "-14563"), (1e300, "1e+300"), (1234567.5, "1234567.500"), (0.0001, "0.0001"),
    ],
)  # fmt: skip
def test_figures(value: float | None, text: str) -> None:
    assert figure(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.04, "0.0 s"), (59.94, "59.9 s"), (65, "1:05"), (7231.9, "2:00:31")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.text(), st.integers(1, 40))
def test_shortened_text_fits(text: str, width: int) -> None:
    assert cells(shorten(text, width)) <= width or cells(text) <= width


def test_both_ends_of_a_long_name_survive() -> None:
    assert shorten("oracle/terminal-bench/some-long-task__3", 20) == "oracle/te...-task__3"


def test_wide_characters_count_double() -> None:
    assert cells("日本") == 4
    assert shorten("日本語のタスク", 9) == "日本...ク"
    assert table(["task", "n"], [["日本", "1"], ["ab", "2"]], align=["left", "right"], width=40) == [
        "task  n",
        "日本  1",
        "ab    2",
    ]


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_printed(text: str) -> None:
    assert not any((ord(char) < 32 and char not in "\n\t") or 127 <= ord(char) < 160 for char in printable(text))
    assert "\n" not in one_line(text)


def test_a_table_gives_way_on_a_narrow_terminal_but_keeps_its_figures() -> None:
    lines = table(["agent", "reward"], [["an-agent-with-a-long-name", "0.500 (n=2)"]], align=["left", "right"], width=24)
    assert lines == ["agent             reward", "an-a...name  0.500 (n=2)"]


def group(
    agent: str, scored: int, errored: int = 0, total: int | None = None, errors: dict[str, int] | None = None
) -> GroupResult:
    return GroupResult(
        agent=agent,
        dataset="tools",
        total_trials=scored + errored if total is None else total,
        scored=scored,
        unscored=0,
        errored=errored,
        errors=errors or {},
        cost=None,
    )


def mean(agent: str, *values: tuple[float | None, int], key: str = "reward") -> MetricReport:
    scored, of_all = values
    return MetricReport(
        agent=agent,
        dataset="tools",
        key=key,
        metric="mean",
        values=[
            MetricValue(name="mean", value=scored[0], n=scored[1]),
            MetricValue(name="mean", value=of_all[0], n=of_all[1], basis="all"),
        ],
    )


def test_result_table_prints_both_denominators_where_trials_errored() -> None:
    groups = [group("oracle", 12, 1, errors={"environment_lost": 1}), group("nop", 13)]
    metrics = [mean("oracle", (0.75, 12), (0.6923, 13)), mean("nop", (0.0, 13), (0.0, 13))]
    assert result_table(groups, metrics, width=100) == [
        "agent   dataset  trials  scored  errored          mean  mean, errors as 0",
        "oracle  tools        13      12        1  0.750 (n=12)       0.692 (n=13)",
        "nop     tools        13      13        0  0.000 (n=13)       0.000 (n=13)",
    ]
    assert error_lines(groups) == ["errors of oracle on tools: environment_lost 1"]


def test_result_table_leaves_out_columns_that_say_nothing_and_adds_those_that_do() -> None:
    lines = result_table([group("oracle", 3, total=5)], [mean("oracle", (1.0, 3), (1.0, 3))], width=100)
    assert lines[0].split() == ["agent", "dataset", "trials", "scored", "errored", "not", "run", "mean"]
    assert lines[1].split() == ["oracle", "tools", "5", "3", "0", "2", "1.000", "(n=3)"]


def test_further_reward_keys_have_a_table_of_their_own() -> None:
    metrics = [mean("oracle", (1.0, 3), (1.0, 3)), mean("oracle", (0.9, 1), (0.9, 1), key="accuracy")]
    assert result_table([group("oracle", 3)], metrics, width=100)[2:] == [
        "",
        "agent   dataset  reward key         mean",
        "oracle  tools    accuracy    0.900 (n=1)",
    ]


@pytest.mark.parametrize(
    ("groups", "cancelled", "fresh", "last"),
    [
        ([group("a", 2)], False, False, "results: jobs/demo"),
        (
            [group("a", 1, 1)],
            False,
            True,
            "1 trial errored; the same command with `--name demo` instead of --fresh runs only those"
            " (why: `rollout show jobs/demo`)",
        ),
        (
            [group("a", 1, 1)],
            False,
            False,
            "1 trial errored; the same command again runs only those (why: `rollout show jobs/demo`)",
        ),
        ([group("a", 1, total=3)], True, False, "interrupted: 2 trials not run; the same command again goes on from here"),
    ],
)
def test_the_end_says_how_to_go_on(groups: list[GroupResult], cancelled: bool, fresh: bool, last: str) -> None:
    assert closing_lines(groups, "jobs/demo", cancelled=cancelled, fresh=fresh)[-1] == last


def test_a_metric_without_errors_is_printed_once() -> None:
    assert metric_line(mean("a", (0.5, 2), (0.5, 2)).values) == "mean 0.500 (n=2)"
    assert metric_line(mean("a", (None, 0), (0.0, 2)).values) == "mean - (n=0), errors as 0: 0.000 (n=2)"
