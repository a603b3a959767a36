"""Finding and removing what jobs left behind: each backend's own things by the job's label, and scratch folders."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rollout.cli.display.text import one_line
from rollout.core.config.job import EnvironmentConfig
from rollout.core.errors import RolloutError, SandboxError, TeardownError, UsageError, boundary
from rollout.core.job.store import CONFIG, SCRATCH_OWNER, JobStore, is_running, read_json
from rollout.core.plugins import decode_options, find
from rollout.core.protocols import BackendContext
from rollout.core.tasks.cache import cache_dir

_SETTLED_SEC = 3600
"""A scratch folder that does not say whose it is is left alone when something changed in it this recently."""


@dataclass(frozen=True)
class _Job:
    directory: Path
    job_id: str
    environment: EnvironmentConfig
    base_dir: Path


def clean(directories: Sequence[Path], jobs_dir: Path | None, *, dry_run: bool) -> int:
    """Clean up after the jobs in `directories`, and with `jobs_dir` after those in there and in abandoned scratch folders.

    Returns:
        0, or 1 when something could not be removed; what, and why, is on stderr.
    """
    work = cache_dir() / "work"
    jobs = [_read_job(directory) for directory in directories]
    if jobs_dir is not None:
        known_dirs = {job.directory.absolute() for job in jobs}
        jobs += [job for job in (*_jobs_in(jobs_dir), *_owners(work)) if not _known(job, known_dirs)]
    failed = False
    removed = 0
    for job in jobs:
        try:
            removed += _clean_job(job, work, dry_run)
        except RolloutError as error:
            failed = True
            _complain(f"{job.directory}: {error}")
    if jobs_dir is not None:
        known = {job.job_id for job in jobs}
        for folder in _abandoned(work, known):
            removed += 1
            failed = not _remove_folder(folder, dry_run) or failed
    if not removed and not failed:
        print("nothing to clean")
    return 1 if failed else 0


def _clean_job(job: _Job, work: Path, dry_run: bool) -> int:
    """Clean up after one job under its lock, so that it cannot start meanwhile; how many things there were."""
    if is_running(job.directory):
        print(f"{one_line(str(job.directory))}: running, left alone")
        return 0
    scratch = [folder for folder in _scratch_of(job.job_id, work) if not _in_use(folder)]
    if dry_run:
        kind = job.environment.type
        print(f"would remove what {one_line(str(job.directory))} left in the environment {kind!r} (label {job.job_id})")
        return 1 + sum(_remove_folder(folder, dry_run) for folder in scratch)
    store = JobStore(job.directory)
    store.open()
    try:
        try:
            lines = asyncio.run(_reap(job, work))
        except TeardownError as error:
            _tell(error.removed)
            raise
        _tell(lines)
        faults = [folder for folder in scratch if folder.exists() and not _remove_folder(folder, dry_run)]
        if faults:
            raise SandboxError(f"{len(faults)} scratch folders could not be removed")
    finally:
        store.close()
    return len(lines) + len(scratch)


async def _reap(job: _Job, work: Path) -> list[str]:
    plugin = find("environments", job.environment.type)
    options = decode_options(plugin, job.environment.options, f"{job.directory / CONFIG}: environment")
    cache = work.parent
    context = BackendContext(
        job_id=job.job_id,
        work_dir=work / job.job_id,
        cache_dir=cache / job.environment.type,
        concurrency=1,
        base_dir=job.base_dir,
        delete=job.environment.delete,
        warn=_complain,
    )
    with boundary(SandboxError, f"cleaning up with the environment {job.environment.type!r}"):
        backend = plugin.cls(options, context)
        try:
            return list(await backend.reap(job.job_id))
        finally:
            await backend.aclose()


def _read_job(directory: Path) -> _Job:
    """What a job's folder says about where it ran.

    Raises:
        UsageError: it is not a job's folder.
    """
    record = read_json(directory, CONFIG)
    job_id, config = record.get("job_id"), record.get("config")
    if not isinstance(job_id, str) or not re.fullmatch(r"[a-z0-9-]+", job_id) or not isinstance(config, dict):
        raise UsageError(f"{directory} is not a job's folder: there is no job's {CONFIG} in it")
    try:
        environment = msgspec.convert(config.get("environment", {}), EnvironmentConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"{directory / CONFIG}: environment: {error}") from error
    return _Job(directory, job_id, environment, Path(str(record.get("base_dir", "."))))


def _jobs_in(jobs_dir: Path) -> list[_Job]:
    jobs = []
    for directory in sorted(jobs_dir.iterdir()) if jobs_dir.is_dir() else []:
        try:
            jobs.append(_read_job(directory))
        except UsageError:
            continue  # somebody else's folder
    return jobs


def _known(job: _Job, known: set[Path]) -> bool:
    """Whether the job's folder is in `known`, where it is from then on."""
    folder = job.directory.absolute()
    before = folder in known
    known.add(folder)
    return before


def _owners(work: Path) -> list[_Job]:
    """The jobs that scratch folders belong to, wherever their own folders are."""
    jobs = []
    for folder in _folders(work):
        try:
            jobs.append(_read_job(Path((folder / SCRATCH_OWNER).read_text().strip())))
        except (OSError, UsageError):
            continue  # it does not say, or the job's folder is gone: see _abandoned
    return jobs


def _scratch_of(job_id: str, work: Path) -> list[Path]:
    """The job's own scratch folder and those of its trials that ran alone."""
    name = re.compile(rf"{re.escape(job_id)}(-[0-9a-f]{{8}})?")
    return [folder for folder in _folders(work) if name.fullmatch(folder.name)]


def _abandoned(work: Path, known: Iterable[str]) -> list[Path]:
    """Scratch folders of jobs whose folder is not known, that no process uses and nothing has changed in for an hour."""
    of_known = {folder for job_id in known for folder in _scratch_of(job_id, work)}
    oldest = time.time() - _SETTLED_SEC
    return [
        folder for folder in _folders(work) if folder not in of_known and folder.stat().st_mtime < oldest and not _in_use(folder)
    ]


def _folders(work: Path) -> list[Path]:
    return sorted(folder for folder in work.iterdir() if folder.is_dir()) if work.is_dir() else []


def _in_use(folder: Path) -> bool:
    """Whether a process that we may look at has a file open below the folder, or works in it."""
    prefix = f"{folder.absolute()}{os.sep}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = [process / "cwd", *(process / "fd").iterdir()]
        except OSError:
            continue  # it ended, or it is not ours
        for link in links:
            try:
                target = os.fsencode(os.readlink(link))
            except OSError:
                continue
            if (target + b"/").startswith(prefix):
                return True
    return False


def _remove_folder(folder: Path, dry_run: bool) -> bool:
    if dry_run:
        print(f"would remove the scratch folder {one_line(str(folder))}")
        return True
    try:
        shutil.rmtree(folder)
    except OSError as error:
        _complain(f"{error.filename or folder}: {error.strerror}")
        return False
    print(f"removed the scratch folder {one_line(str(folder))}")
    return True


def _tell(removed: Iterable[str]) -> None:
    for line in removed:
        print(f"removed {one_line(line)}")


def _complain(message: str) -> None:
    print(f"rollout: {one_line(message)}", file=sys.stderr)
