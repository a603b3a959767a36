"""`rollout tasks init` and `rollout tasks check`."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from rollout.core.errors import TaskNotFoundError, UsageError


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
def check(paths: tuple[Path, ...], as_json: bool) -> int:
    """Check tasks, or folders of tasks, at PATHS.

    Exit code 1 when a task cannot be used; warnings alone are 0.
    """
    from rollout.core.tasks.check import check_paths

    try:
        checked = check_paths(paths)
    except TaskNotFoundError as error:
        raise UsageError(str(error)) from error
    warnings = len(checked.findings) - checked.errors
    if as_json:
        report = {"tasks": checked.tasks, "errors": checked.errors, "warnings": warnings, "findings": checked.findings}
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))
    else:
        for finding in checked.findings:
            click.echo(str(finding))
        click.echo(f"{_count(checked.tasks, 'task')}, {_count(checked.errors, 'error')}, {_count(warnings, 'warning')}")
    return 1 if checked.errors else 0


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
