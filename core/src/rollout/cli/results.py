"""What `rollout show` prints."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice

import msgspec

from rollout.cli.display.display import terminal_width
from rollout.cli.display.summary import error_lines, result_table
from rollout.cli.display.text import Align, duration, figure, one_line, plural, table
from rollout.core.job.report import Cell, Failure, Report, TrialWarning

_MATRIX_ROWS = 200
_WARNINGS = 10


def print_report(report: Report, *, failures: int) -> None:
    """Table, matrix and at most `failures` failures."""
    width = terminal_width(sys.stdout)
    for line in report_lines(report, failures=failures, width=width):
        print(line)


def report_lines(report: Report, *, failures: int, width: int) -> Iterator[str]:
    """The lines of a report."""
    took = f" in {duration(report.duration_sec)}" if report.state == "finished" and report.duration_sec is not None else ""
    total = sum(group.total_trials for group in report.groups)
    count = plural(total, "trial") if len(report.trials) == total else f"{len(report.trials)} of {plural(total, 'trial')}"
    yield f"{one_line(report.job_name)}: {report.state}, {count}{took}"
    yield ""
    yield from result_table(report.groups, report.metrics, width=width, times=True)
    yield from _blank_before(error_lines(report.groups))
    yield from _blank_before(f"warning: {one_line(warning)}" for warning in report.warnings)
    yield from _blank_before(_trial_warnings(report.trial_warnings()))
    yield from _blank_before(_matrix(report, width))
    yield from _blank_before(_failures(report, failures))


def print_report_json(report: Report) -> None:
    """The same data, whole."""
    record = {
        "directory": report.directory,
        "job_id": report.job_id,
        "job_name": report.job_name,
        "state": report.state,
        "duration_sec": report.duration_sec,
        "total_trials": sum(group.total_trials for group in report.groups),
        "finished_trials": len(report.trials),
        "groups": report.groups,
        "metrics": report.metrics,
        "matrix": report.matrix(),
        "failures": list(report.failures()),
        "warnings": report.warnings,
        "trial_warnings": report.trial_warnings(),
    }
    print(msgspec.json.format(msgspec.json.encode(record), indent=2).decode())


def cell_text(cell: Cell | None) -> str:
    """`1.000`, `0.500 (4)` for four attempts, `E` for an error, `0.500 (4, 1E)`; `-` where nothing is finished."""
    if cell is None:
        return "-"
    if cell.errored == cell.attempts:
        return "E" if cell.attempts == 1 else f"E ({cell.attempts})"
    if cell.attempts == 1:
        return figure(cell.mean_reward)
    errored = f", {cell.errored}E" if cell.errored else ""
    return f"{figure(cell.mean_reward)} ({cell.attempts}{errored})"


def _matrix(report: Report, width: int) -> list[str]:
    rows = report.matrix()
    if not rows:
        return []
    many = len({row.dataset for row in rows}) > 1
    titles = [*["dataset"] * many, "task", *report.agents]
    body = [
        [*[row.dataset] * many, row.task, *(cell_text(row.cells.get(agent)) for agent in report.agents)]
        for row in rows[:_MATRIX_ROWS]
    ]
    align: list[Align] = ["left"] * (1 + many) + ["right"] * len(report.agents)  # type: ignore[assignment]
    lines = table(titles, body, align=align, width=width)
    more = len(rows) - len(body)
    return [*lines, f"and {plural(more, 'further task')}; --json has all"] if more else lines


def _trial_warnings(warnings: list[TrialWarning]) -> list[str]:
    lines = []
    for warning in warnings[:_WARNINGS]:
        more = f" and {plural(len(warning.trials) - 1, 'further trial')}" if len(warning.trials) > 1 else ""
        lines.append(f"warning: {one_line(warning.trials[0])}{more}: {one_line(warning.text)}")
    more_texts = len(warnings) - len(lines)
    return [*lines, f"and {plural(more_texts, 'further warning')}; --json has all"] if more_texts else lines


def _failures(report: Report, limit: int) -> list[str]:
    total = len(report.failed())
    if not total or not limit:
        return []
    lines = [line for failure in islice(report.failures(), limit) for line in _failure_lines(failure)]
    if total > limit:
        lines.append(f"and {plural(total - limit, 'further failure')}; --failures {total} prints all")
    return [f"failures ({total}):", *lines]


def _failure_lines(failure: Failure) -> list[str]:
    what = failure.error.type if failure.status == "errored" and failure.error else f"reward {figure(failure.reward)}"
    source = f"    ({one_line(failure.source)})" if failure.source else ""
    return [f"  {one_line(failure.trial_id)}  {what}", f"    {one_line(failure.line)}", *[source] * bool(source)]


def _blank_before(lines: Iterator[str] | list[str]) -> Iterator[str]:
    for index, line in enumerate(lines):
        if not index:
            yield ""
        yield line
