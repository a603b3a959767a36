"""The Python front door: run a job from Python as the command line does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rollout.core.config.load import JobFile, load_job
from rollout.core.job.events import EventSink
from rollout.core.job.planner import PlanOptions, plan_job
from rollout.core.job.scheduler import JobOutcome
from rollout.core.job.scheduler import run_job as run_plan


async def run_job(
    job: JobFile | str | Path,
    options: PlanOptions = PlanOptions(),  # noqa: B008 - frozen
    *,
    on_event: EventSink = lambda event: None,
    environ: Mapping[str, str] = os.environ,
) -> JobOutcome:
    """Plan and run a job file (or a loaded one), resuming what an earlier run finished.

    Raises:
        UsageError and its kinds, TaskError: nothing was started.
        StoreError: results cannot be written.
    """
    loaded = job if isinstance(job, JobFile) else load_job(Path(job))
    return await run_plan(await plan_job(loaded, options, environ), on_event)
