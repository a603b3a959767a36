"""The contract of an executor that runs trials in this process, as tests: subclass `ExecutorSuite` and say how to make one.

    class TestMine(ExecutorSuite):
        def make(self, concurrency: int) -> Executor:
            return MyExecutor(MyOptions(), concurrency)

Needs pytest and pytest-asyncio.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from rollout.core.errors import StoreError
from rollout.core.job.feed import TrialFeed
from rollout.core.protocols import API_VERSION, Executor
from rollout.core.records import TrialResult, TrialSpec
from rollout.testing.suite import KnownFailures, trial_result, trial_spec

_DEADLINE_SEC = 60.0


class _Job:
    """Counts what an executor does with trials that take a few turns of the event loop."""

    def __init__(self, specs: Iterable[TrialSpec]) -> None:
        self._specs = list(specs)
        self.pulled = 0
        self.running = 0
        self.peak = 0
        self.most_held = 0
        """The most trials that were pulled and not done at once."""
        self.ran: Counter[str] = Counter()
        self.done: list[tuple[TrialSpec, TrialResult]] = []
        self.torn_down = 0

    def trials(self, *, wait_sec: float = 0) -> AsyncIterator[TrialSpec]:
        """The trials, for any number of workers at once, as a job's feed is."""
        return _Trials(self, iter(self._specs), wait_sec)

    def pull(self) -> None:
        self.pulled += 1
        self.most_held = max(self.most_held, self.pulled - len(self.done))

    async def run_trial(self, spec: TrialSpec) -> TrialResult:
        self.ran[spec.trial_id] += 1
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            for _ in range(1 + _number(spec) % 5):
                await asyncio.sleep(0)
        finally:
            self.running -= 1
        return trial_result(spec, reward=float(_number(spec)))

    async def run_until_cancelled(self, spec: TrialSpec) -> TrialResult:
        """A trial that never ends, and whose teardown takes a while."""
        self.running += 1
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):
                await asyncio.sleep(0)
            self.running -= 1
            self.torn_down += 1
        raise AssertionError("unreachable")

    def finish(self, spec: TrialSpec, result: TrialResult) -> None:
        self.done.append((spec, result))


class _Trials:
    def __init__(self, job: _Job, specs: Iterator[TrialSpec], wait_sec: float) -> None:
        self._job = job
        self._specs = specs
        self._wait_sec = wait_sec

    def __aiter__(self) -> _Trials:
        return self

    async def __anext__(self) -> TrialSpec:
        if self._wait_sec:
            await asyncio.sleep(self._wait_sec)
        spec = next(self._specs, None)
        if spec is None:
            raise StopAsyncIteration
        self._job.pull()
        return spec


def _number(spec: TrialSpec) -> int:
    return int(spec.task.name.rpartition("-")[2])


@pytest.mark.asyncio
class ExecutorSuite(KnownFailures):
    """What every executor must do. `concurrency` is a promise: as many trials at once when there are, never more."""

    def make(self, concurrency: int) -> Executor:
        """An executor. The only method a subclass must write."""
        raise NotImplementedError

    async def run(self, executor: Executor, job: _Job) -> None:
        async with asyncio.timeout(_DEADLINE_SEC):
            await executor.run(job.trials(), job.run_trial, job.finish)
        await executor.aclose()

    async def test_is_written_for_this_api_version(self) -> None:
        executor = self.make(1)
        assert executor.api_version[0] == API_VERSION[0]
        assert executor.api_version <= API_VERSION

    async def test_unknown_options_are_refused(self) -> None:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"no-such-option": 1}, self.make(1).options_type)

    @pytest.mark.parametrize(("trials", "concurrency"), [(0, 4), (1, 1), (1, 8), (7, 7), (50, 1), (50, 7), (500, 64)])
    async def test_every_trial_runs_once_and_is_done_once(self, trials: int, concurrency: int, tmp_path: Path) -> None:
        specs = [trial_spec(number, tmp_path) for number in range(trials)]
        job = _Job(specs)
        await self.run(self.make(concurrency), job)
        assert job.ran == Counter(spec.trial_id for spec in specs)
        assert Counter(spec.trial_id for spec, _ in job.done) == job.ran

    async def test_a_result_belongs_to_its_trial(self, tmp_path: Path) -> None:
        job = _Job(trial_spec(number, tmp_path) for number in range(40))
        await self.run(self.make(8), job)
        assert len(job.done) == 40
        for spec, result in job.done:
            assert result == trial_result(spec, reward=float(_number(spec)))

    @pytest.mark.parametrize("concurrency", [1, 3, 16])
    async def test_concurrency_is_reached_and_never_exceeded(self, concurrency: int, tmp_path: Path) -> None:
        job = _Job(trial_spec(number, tmp_path) for number in range(60))
        together = asyncio.Barrier(concurrency)

        async def run_trial(spec: TrialSpec) -> TrialResult:
            if _number(spec) < concurrency:
                await together.wait()  # passes only when as many trials run at once
            return await job.run_trial(spec)

        executor = self.make(concurrency)
        async with asyncio.timeout(_DEADLINE_SEC):
            await executor.run(job.trials(), run_trial, job.finish)
        await executor.aclose()
        assert len(job.done) == 60
        assert job.peak <= concurrency

    @pytest.mark.parametrize("concurrency", [1, 5])
    async def test_a_trial_is_pulled_only_when_it_can_start(self, concurrency: int, tmp_path: Path) -> None:
        job = _Job(trial_spec(number, tmp_path) for number in range(100))
        await self.run(self.make(concurrency), job)
        assert job.most_held <= concurrency

    async def test_waits_for_trials_that_come_late(self, tmp_path: Path) -> None:
        job = _Job(trial_spec(number, tmp_path) for number in range(12))

        executor = self.make(3)
        async with asyncio.timeout(_DEADLINE_SEC):
            await executor.run(job.trials(wait_sec=0.002), job.run_trial, job.finish)
        await executor.aclose()
        assert len(job.done) == 12

    async def test_trials_may_come_back_to_be_tried_again(self, tmp_path: Path) -> None:
        specs = [trial_spec(number, tmp_path) for number in range(20)]
        job = _Job(specs)
        feed = TrialFeed(iter(specs))
        tries: Counter[str] = Counter()

        def done(spec: TrialSpec, result: TrialResult) -> None:
            tries[spec.trial_id] += 1
            if tries[spec.trial_id] < 3 and spec.task.name.endswith("7"):
                feed.retry(spec, 0.001)
                return
            job.finish(spec, result)
            feed.finished()

        executor = self.make(4)
        async with asyncio.timeout(_DEADLINE_SEC):
            await executor.run(feed, job.run_trial, done)
        await executor.aclose()
        assert len(job.done) == 20
        assert job.ran == Counter({spec.trial_id: 3 if spec.task.name.endswith("7") else 1 for spec in specs})

    async def test_cancelling_tears_down_every_trial_before_it_returns(self, tmp_path: Path) -> None:
        job = _Job(trial_spec(number, tmp_path) for number in range(50))
        executor = self.make(6)
        running = asyncio.ensure_future(executor.run(job.trials(), job.run_until_cancelled, job.finish))
        async with asyncio.timeout(_DEADLINE_SEC):
            while job.running < 6:  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0)
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        assert running.cancelled()
        assert (job.running, job.torn_down) == (0, 6)
        assert job.pulled <= 6, "nothing more is pulled once it is cancelled"
        assert job.done == []
        await executor.aclose()

    async def test_results_that_cannot_be_stored_end_the_run_with_that_error(self, tmp_path: Path) -> None:
        job = _Job(trial_spec(number, tmp_path) for number in range(50))

        async def run_trial(spec: TrialSpec) -> TrialResult:
            return await (job.run_until_cancelled(spec) if _number(spec) < 3 else job.run_trial(spec))

        def done(spec: TrialSpec, result: TrialResult) -> None:
            raise StoreError("the disk is full")

        executor = self.make(4)
        with pytest.raises(StoreError, match="the disk is full"):
            async with asyncio.timeout(_DEADLINE_SEC):
                await executor.run(job.trials(), run_trial, done)
        assert (job.running, job.torn_down) == (0, 3), "the others are torn down before the error comes out"
        await executor.aclose()

    async def test_closing_twice_is_harmless(self) -> None:
        executor = self.make(2)
        await executor.aclose()
        await executor.aclose()
