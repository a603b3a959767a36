"""`rollout clean`: remove what killed jobs left behind outside their folders."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("clean")
@click.argument("job_dirs", nargs=-1, type=click.Path(path_type=Path), metavar="[JOB_DIR]...")
@click.option("--all", "every", is_flag=True, help="Every job in --jobs-dir, and scratch folders that nothing uses any more.")
@click.option(
    "--jobs-dir", type=click.Path(path_type=Path), default=Path("jobs"), show_default=True, help="Where --all looks for jobs."
)
@click.option("--dry-run", is_flag=True, help="Say what would be cleaned, and remove nothing.")
def command(job_dirs: tuple[Path, ...], every: bool, jobs_dir: Path, dry_run: bool) -> int:
    """Remove the sandboxes, control groups, images and scratch files of jobs that no longer run.

    A job that ends by itself, or by Ctrl-C, cleans up; this is for jobs that were killed. Results are never touched, and
    neither are running jobs nor anything that does not bear a job's label.
    """
    from rollout.cli.leftovers import clean
    from rollout.core.errors import UsageError

    if not job_dirs and not every:
        raise UsageError("name the folder of a job, or --all; see `rollout clean --help`")
    return clean(job_dirs, jobs_dir if every else None, dry_run=dry_run)
