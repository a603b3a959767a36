"""The `local` executor: trials run in this process, as many at once as the job says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from rollout.core.aio import run_shielded
from rollout.core.protocols import API_VERSION, NoOptions
from rollout.core.records import TrialResult, TrialSpec


class LocalExecutor:
    """Runs trials in this process. Workers pull specs from the iterator, so memory follows concurrency, not job size."""

    api_version = API_VERSION
    options_type = NoOptions

    def __init__(self, options: NoOptions, concurrency: int) -> None:
        self._concurrency = concurrency

    async def run(
        self,
        trials: AsyncIterator[TrialSpec],
        run_trial: Callable[[TrialSpec], Awaitable[TrialResult]],
        done: Callable[[TrialSpec, TrialResult], None],
    ) -> None:
        """See Executor.run. An error of `done` (results cannot be stored) cancels the other workers and is raised alone."""

        async def work() -> None:
            async for spec in trials:
                done(spec, await run_trial(spec))

        workers = [asyncio.ensure_future(work()) for _ in range(self._concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            # One worker failed, or the caller cancelled: the others tear their trials down before this returns.
            for worker in workers:
                worker.cancel()
            await run_shielded(asyncio.wait(workers))

    async def aclose(self) -> None:
        pass
