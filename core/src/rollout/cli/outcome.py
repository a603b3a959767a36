"""What `rollout run` prints to stdout: the plan of a dry run, and the result table at the end."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rollout.cli.display.display import terminal_width
from rollout.cli.display.summary import closing_lines, error_lines, result_table
from rollout.cli.display.text import duration, one_line, plural, table
from rollout.core.errors import UsageError
from rollout.core.job.events import MetricReport
from rollout.core.job.plan import Plan
from rollout.core.job.report import load_report
from rollout.core.job.results import GroupResult, JobResult


def print_outcome(result: JobResult, directory: Path | None, *, fresh: bool) -> None:
    """The result table of a job that ran to its end."""
    head = f"{one_line(result.job_name)}: {plural(result.total_trials, 'trial')} in {duration(result.total_duration_sec)}"
    _print_result(head, result.groups, result.metrics, directory, cancelled=False, stopped=result.stopped, fresh=fresh)


def print_interrupted(directory: Path, *, fresh: bool) -> None:
    """The same for a job that was interrupted, as far as it came."""
    try:
        report = load_report(directory)
    except UsageError:
        print("interrupted before the job started")
        return
    _print_result(one_line(report.job_name), report.groups, report.metrics, directory, cancelled=True, fresh=fresh)


def print_plan(plan: Plan, *, as_json: bool) -> None:
    """What a dry run found."""
    kept = Counter((trial.agent_name, trial.dataset_name) for trial in plan.finished)
    groups = [
        {
            "agent": agent.spec.name,
            "dataset": dataset.name,
            "tasks": len(dataset.tasks),
            "attempts": plan.config.n_attempts,
            "trials": len(dataset.tasks) * plan.config.n_attempts,
            "kept": kept[agent.spec.name, dataset.name],
        }
        for agent in plan.agents
        for dataset in plan.datasets
    ]
    if as_json:
        record = {
            "job_name": plan.name,
            "directory": str(plan.directory),
            "total_trials": plan.total,
            "kept_trials": plan.kept,
            "rerun": dict(plan.rerun),
            "concurrency": plan.config.n_concurrent_trials,
            "groups": groups,
            "warnings": list(plan.warnings),
        }
        print(json.dumps(record, indent=2))
        return
    for warning in plan.warnings:
        print(f"warning: {one_line(warning)}", file=sys.stderr)
    titles = ["agent", "dataset", "tasks", "attempts", "trials", "kept"]
    rows = [[str(group[title]) for title in titles] for group in groups]
    width = terminal_width(sys.stdout)
    print("\n".join(table(titles, rows, align=["left", "left", "right", "right", "right", "right"], width=width)))
    again = "".join(f"; {count} again ({why})" for why, count in plan.rerun.items())
    to_run = plan.total - plan.kept
    print(f"{plural(to_run, 'trial')} to run, {plan.config.n_concurrent_trials} at once; {plan.kept} kept{again}")
    print(f"results: {short_path(plan.directory)}")


def short_path(path: Path) -> str:
    """Relative to the working directory when it is below it."""
    here = Path(os.path.abspath("."))
    return one_line(str(path.relative_to(here) if path.is_relative_to(here) and path != here else path))


def _print_result(
    head: str,
    groups: Sequence[GroupResult],
    metrics: Sequence[MetricReport],
    directory: Path | None,
    *,
    cancelled: bool,
    stopped: str | None = None,
    fresh: bool,
) -> None:
    lines = [head, "", *result_table(groups, metrics, width=terminal_width(sys.stdout)), ""]
    lines += error_lines(groups)
    place = short_path(directory) if directory else "-"
    lines += closing_lines(groups, place, cancelled=cancelled, stopped=stopped, fresh=fresh)
    print("\n".join(lines))
