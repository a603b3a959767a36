"""What `rollout tasks check --oracle --nop` does: run the proof's job, then judge its trials."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rollout.cli.display.display import REFRESH_EVERY_SEC, Guarded, choose, make
from rollout.cli.logs import logging_to
from rollout.cli.signals import run_interruptible
from rollout.core.job.planner import PlanOptions, plan_job
from rollout.core.job.prove import ProofOptions, judge_proof, proof_job
from rollout.core.job.scheduler import run_job
from rollout.core.tasks.check import Finding


def prove(paths: Sequence[Path], options: ProofOptions, *, fresh: bool) -> list[Finding] | None:
    """Run the trials and return what they say against tasks; None when interrupted.

    Raises:
        UsageError and its kinds: the trials cannot run here; nothing was started.
        StoreError
    """
    job = proof_job(paths, options)
    with make(choose(None, os.environ, sys.stderr)) as display, logging_to(display.message, job.config.log_level):

        async def work() -> Path:
            drawing = asyncio.ensure_future(_draw(display))
            try:
                plan = await plan_job(job, PlanOptions(fresh=fresh, skip_invalid=True))
                await run_job(plan, display.on_event)
                return plan.directory
            finally:
                drawing.cancel()

        directory = run_interruptible(work, display.message)
    if directory is None:
        return None
    return judge_proof(directory, {path.resolve(): path for path in paths})


async def _draw(display: Guarded) -> None:
    while True:
        await asyncio.sleep(REFRESH_EVERY_SEC)
        display.refresh()
