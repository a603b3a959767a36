"""`rollout show JOB_DIR`: the result table, a task x agent matrix, and the failures with the line that explains each."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("show")
@click.argument("job_dir", type=click.Path(path_type=Path), metavar="JOB_DIR")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON, with every task and failure.")
@click.option(
    "--failures", "limit", type=click.IntRange(min=0), default=20, show_default=True, help="How many failures to print."
)
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write the results as JUnit XML too.")
def command(job_dir: Path, as_json: bool, limit: int, junit: Path | None) -> int:
    """Print the results of a job, finished or running.

    JOB_DIR is the folder that `rollout run` names at its end: <jobs_dir>/<job>.
    """
    from rollout.cli.junit import check_writable, write_junit
    from rollout.cli.results import print_report, print_report_json
    from rollout.core.job.report import load_report

    if junit is not None:
        check_writable(junit)
    report = load_report(job_dir)
    if as_json:
        print_report_json(report)
    else:
        print_report(report, failures=limit)
    if junit is not None:
        write_junit(report, junit)
    return 0
