"""`rollout tasks init`, `rollout tasks check` and `rollout tasks migrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from rollout.core.errors import TaskNotFoundError, UsageError

if TYPE_CHECKING:
    from rollout.core.tasks.check import Finding


@click.group(name="tasks")
def command() -> None:
    """Create and check tasks."""


@command.command()
@click.argument("name")
@click.option("--dir", "parent", type=click.Path(path_type=Path), default=Path(), help="Folder to make it in; here by default.")
def init(name: str, parent: Path) -> None:
    """Create the task NAME: a small one that works, to be changed."""
    from rollout.core.tasks.init import init_task

    folder = init_task(name, parent)
    click.echo(f"{folder}: write the instruction in instruction.md, the image in environment/, the verdict in tests/test.sh")
    click.echo(f"check it with: rollout tasks check {folder}")


@command.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--oracle", is_flag=True, help="Run every task's solution: it must get the full reward.")
@click.option("--nop", is_flag=True, help="Run an agent that does nothing: it must not get the full reward.")
@click.option("--environment", default="docker", show_default=True, metavar="TYPE", help="Where --oracle and --nop run.")
@click.option("-n", "--n-concurrent", type=click.IntRange(min=1), default=4, show_default=True, help="How many trials at once.")
@click.option("--jobs-dir", default="jobs", show_default=True, metavar="DIR", help="Where those trials are kept.")
@click.option("--fresh", is_flag=True, help="Run all trials of --oracle and --nop anew.")
def check(
    paths: tuple[Path, ...],
    as_json: bool,
    oracle: bool,
    nop: bool,
    environment: str,
    n_concurrent: int,
    jobs_dir: str,
    fresh: bool,
) -> int:
    """Check tasks, or folders of tasks, at PATHS.

    With --oracle and --nop the tasks are also run, as a job like any other: the same command goes on where an
    interrupted one stopped, and runs again only what errored or has changed.

    Exit code 1 when a task cannot be used or proves faulty; warnings alone are 0; 130 interrupted.
    """
    from rollout.core.tasks.check import NO_SOLUTION, check_paths

    try:
        checked = check_paths(paths)
    except TaskNotFoundError as error:
        raise UsageError(str(error)) from error
    findings, usable = list(checked.findings), checked.usable
    if oracle:
        usable -= sum(finding.code == NO_SOLUTION for finding in findings)
        findings = [_with_oracle(finding) for finding in findings]
    if (oracle or nop) and usable:
        from rollout.cli.prove import prove
        from rollout.cli.signals import EXIT_INTERRUPTED
        from rollout.core.job.prove import ProofOptions

        options = ProofOptions(oracle=oracle, nop=nop, environment=environment, jobs_dir=jobs_dir, concurrency=n_concurrent)
        proved = prove(paths, options, fresh=fresh)
        if proved is None:
            return EXIT_INTERRUPTED
        findings += proved
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = len(findings) - errors
    if as_json:
        report = {"tasks": checked.tasks, "errors": errors, "warnings": warnings, "findings": findings}
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))
    else:
        for finding in findings:
            click.echo(str(finding))
        click.echo(f"{_count(checked.tasks, 'task')}, {_count(errors, 'error')}, {_count(warnings, 'warning')}")
    return 1 if errors else 0


@command.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--to", "target", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Folder for the new tasks.")
def migrate(source: Path, target: Path) -> None:
    """Write the Terminal-Bench 1 tasks (task.yaml) at or below SOURCE as task folders of today.

    SOURCE is left as it is. Tasks of Harbor and rLLM need no migration: they are read as they stand.
    """
    from rollout.core.errors import TaskError
    from rollout.core.tasks.migrate import migrate as migrate_tasks

    try:
        done = migrate_tasks(source, target)
    except TaskError as error:
        raise UsageError(str(error)) from error
    for task in done:
        click.echo(str(task.folder))
        for note in task.notes:
            click.echo(f"  note: {note}")
    click.echo(f"{_count(len(done), 'task')}; check with: rollout tasks check {target}")


def _with_oracle(finding: Finding) -> Finding:
    """A task without a solution is at fault when its solution is to prove it."""
    from rollout.core.tasks.check import NO_SOLUTION

    return msgspec.structs.replace(finding, severity="error") if finding.code == NO_SOLUTION else finding


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
