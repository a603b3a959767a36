"""The result table: what a job came to, per agent and dataset, every figure with its denominator."""

from __future__ import annotations

from collections.abc import Sequence

from rollout.cli.display.text import Align, count, duration, metric_figure, one_line, plural, table
from rollout.core.job.events import MetricReport
from rollout.core.job.results import GroupResult
from rollout.core.types import MetricValue

_PRIMARY = "reward"


def result_table(groups: Sequence[GroupResult], metrics: Sequence[MetricReport], *, width: int, times: bool = False) -> list[str]:
    """A row per agent and dataset with its counts, the metrics of its reward, tokens and cost where agents tell them, and with
    `times` the mean duration of a trial; further reward keys in a table below."""
    primary, others = _split(metrics)
    columns = _metric_columns(primary)
    unscored = any(group.unscored for group in groups)
    not_run = any(_not_run(group) for group in groups)
    cost = any(group.cost is not None for group in groups)
    tokens = any(group.tokens is not None for group in groups)
    times = times and any(group.mean_duration_sec is not None for group in groups)
    titles = ["agent", "dataset", "trials", "scored"]
    titles += ["unscored"] * unscored + ["errored"] + ["not run"] * not_run
    titles += [_column_title(column, columns) for column in columns]
    titles += ["tokens"] * tokens + ["cost"] * cost + ["mean time"] * times
    values: dict[tuple[str, str, str, str], MetricValue] = {
        (report.agent, report.dataset, value.name, value.basis): value for report in primary for value in report.values
    }
    rows = []
    for group in groups:
        row = [group.agent, group.dataset, str(group.total_trials), str(group.scored)]
        row += [str(group.unscored)] * unscored + [str(group.errored)] + [str(_not_run(group))] * not_run
        for name, basis in columns:
            value = values.get((group.agent, group.dataset, name, basis))
            row.append(metric_figure(value) if value else "-")
        row += ["-" if group.tokens is None else count(group.tokens)] * tokens
        row += ["-" if group.cost is None else f"${group.cost:.2f}"] * cost
        row += ["-" if group.mean_duration_sec is None else duration(group.mean_duration_sec)] * times
        rows.append(row)
    align: list[Align] = ["left", "left", *["right"] * (len(titles) - 2)]  # type: ignore[list-item]
    lines = table(titles, rows, align=align, width=width)
    return lines + _other_keys(others, width)


def error_lines(groups: Sequence[GroupResult]) -> list[str]:
    """`errors of oracle on tools: agent_install_failed 2, verifier_timeout 1`"""
    return [
        f"errors of {one_line(group.agent)} on {one_line(group.dataset)}: "
        + ", ".join(f"{one_line(code)} {count}" for code, count in group.errors.items())
        for group in groups
        if group.errors
    ]


def closing_lines(
    groups: Sequence[GroupResult], directory: str, *, cancelled: bool, stopped: str | None = None, fresh: bool = False
) -> list[str]:
    """Where the results are, and what to do about what is missing.

    What began with --fresh may be in a folder that does not have the job's own name.
    """
    place = one_line(directory)
    command = f"the same command with `--name {place.rpartition('/')[2]}` instead of --fresh" if fresh else "the same command"
    again = command if fresh else f"{command} again"
    lines = [f"results: {place}"]
    errored = sum(group.errored for group in groups)
    not_run = sum(_not_run(group) for group in groups)
    if cancelled:
        lines.append(f"interrupted: {plural(not_run, 'trial')} not run; {again} goes on from here")
    elif stopped is not None:
        what = f"stopped: {one_line(stopped)}; {plural(not_run, 'trial')} not run"
        lines.append(f"{what}; {command}{' and' if fresh else ''} with a larger `budget` goes on from here")
    elif errored or not_run:
        missing = [plural(errored, "trial") + " errored"] * bool(errored) + [f"{not_run} not run"] * bool(not_run)
        lines.append(f"{', '.join(missing)}; {again} runs only those (why: `rollout show {place}`)")
    return lines


def _split(metrics: Sequence[MetricReport]) -> tuple[list[MetricReport], list[MetricReport]]:
    """The reports of each group's main reward (the key `reward`, else its only key), and the others."""
    keys: dict[tuple[str, str], set[str]] = {}
    for report in metrics:
        keys.setdefault((report.agent, report.dataset), set()).add(report.key)
    primary: list[MetricReport] = []
    others: list[MetricReport] = []
    for report in metrics:
        of_group = keys[report.agent, report.dataset]
        (primary if report.key == _PRIMARY or len(of_group) == 1 else others).append(report)
    return primary, others


def _metric_columns(reports: Sequence[MetricReport]) -> list[tuple[str, str]]:
    """(name, basis) in order; a figure with errors as 0 only where errors make a difference."""
    columns: dict[tuple[str, str], bool] = {}
    for report in reports:
        scored = {value.name: value for value in report.values if value.basis == "scored"}
        for value in report.values:
            twin = scored.get(value.name) if value.basis == "all" else None
            differs = twin is None or (twin.value, twin.n) != (value.value, value.n)
            columns[value.name, value.basis] = columns.get((value.name, value.basis), False) or differs
    return [column for column, shown in columns.items() if shown]


def _column_title(column: tuple[str, str], columns: Sequence[tuple[str, str]]) -> str:
    name, basis = column
    return f"{name}, errors as 0" if basis == "all" and (name, "scored") in columns else name


def _other_keys(reports: Sequence[MetricReport], width: int) -> list[str]:
    if not reports:
        return []
    columns = _metric_columns(reports)
    rows: dict[tuple[str, str, str], dict[tuple[str, str], str]] = {}
    for report in reports:
        row = rows.setdefault((report.agent, report.dataset, report.key), {})
        row.update({(value.name, value.basis): metric_figure(value) for value in report.values})
    titles = ["agent", "dataset", "reward key", *(_column_title(column, columns) for column in columns)]
    body = [[*where, *(row.get(column, "-") for column in columns)] for where, row in rows.items()]
    align: list[Align] = ["left", "left", "left", *["right"] * len(columns)]  # type: ignore[list-item]
    return ["", *table(titles, body, align=align, width=width)]


def _not_run(group: GroupResult) -> int:
    return max(group.total_trials - group.scored - group.unscored - group.errored, 0)
