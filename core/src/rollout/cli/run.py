"""`rollout run FILE`, which is what `rollout FILE` does. The engine is imported when a job really runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command("run")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("-n", "--n-concurrent", type=click.IntRange(min=1), help="How many trials run at once.")
@click.option("-k", "--n-attempts", type=click.IntRange(min=1), help="How often each agent tries each task.")
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="NAME",
    help="Only agents that match; a plugin not in the job is added. Repeatable.",
)
@click.option("--task", "tasks", multiple=True, metavar="GLOB", help="Only tasks that match. Repeatable.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a key of the job: agents.0.env.MODEL=x. Repeatable.")
@click.option(
    "--env-file", type=click.Path(path_type=Path), metavar="FILE", help="Take variables from a file of NAME=value lines."
)
@click.option("--jobs-dir", metavar="DIR", help="Where results go.")
@click.option("--name", metavar="NAME", help="The job's name: its folder in the jobs folder.")
@click.option("--fresh", is_flag=True, help="Start over in a new folder instead of resuming.")
@click.option("--offline", is_flag=True, help="Fetch nothing: use what is cached.")
@click.option("--skip-invalid", is_flag=True, help="Leave out tasks that cannot be used.")
@click.option(
    "--fail-under",
    multiple=True,
    metavar="METRIC=VALUE",
    help="Exit 3 when a figure is lower: mean=0.8, oracle:mean=1. Repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Print what would run, and start nothing.")
@click.option(
    "--display", type=click.Choice(["auto", "rich", "plain", "log", "none"]), help="How to show the run; also ROLLOUT_DISPLAY."
)
@click.option("--json", "as_json", is_flag=True, help="JSON lines of events on stdout, and no display.")
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write the results as JUnit XML too.")
@click.option("-q", "--quiet", is_flag=True, help="Only the result table.")
def command(**flags: Any) -> int:
    """Run a job: every agent on every task, each in its own sandbox.

    Running the same job again resumes it: finished trials are kept, errored and missing ones run.

    \b
    Exit code: 0 all trials finished, whatever the reward; 1 some errored; 2 nothing was
    started, something is wrong with the input; 3 a --fail-under failed; 4 the `budget` is
    used up and trials were not run; 130 interrupted.
    """
    from rollout.cli.job import RunFlags, run

    return run(RunFlags(**flags))
