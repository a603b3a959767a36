"""The executor suite finds executors that break the contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from rollout.builtin.local_executor import LocalExecutor
from rollout.core.protocols import Executor, NoOptions
from rollout.core.records import TrialResult, TrialSpec
from rollout.testing.executor import ExecutorSuite

Run = Callable[[TrialSpec], Awaitable[TrialResult]]
Done = Callable[[TrialSpec, TrialResult], None]


class Eager(LocalExecutor):
    """Takes every trial there is, and runs them all at once."""

    async def run(self, trials: AsyncIterator[TrialSpec], run_trial: Run, done: Done) -> None:
        specs = [spec async for spec in trials]
        for spec, result in zip(specs, await asyncio.gather(*map(run_trial, specs)), strict=True):
            done(spec, result)


class OneAtATime(LocalExecutor):
    async def run(self, trials: AsyncIterator[TrialSpec], run_trial: Run, done: Done) -> None:
        async for spec in trials:
            done(spec, await run_trial(spec))


class Twice(OneAtATime):
    async def run(self, trials: AsyncIterator[TrialSpec], run_trial: Run, done: Done) -> None:
        async for spec in trials:
            await run_trial(spec)
            done(spec, await run_trial(spec))


class Abandons(LocalExecutor):
    """Returns at once when cancelled and leaves its trials to themselves."""

    async def run(self, trials: AsyncIterator[TrialSpec], run_trial: Run, done: Done) -> None:
        self.left = [asyncio.ensure_future(run_trial(await anext(trials))) for _ in range(self._concurrency)]
        await asyncio.Event().wait()


def suite(broken: type[LocalExecutor]) -> ExecutorSuite:
    class Broken(ExecutorSuite):
        def make(self, concurrency: int) -> Executor:
            return broken(NoOptions(), concurrency)

    return Broken()


async def test_trials_that_run_twice_are_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        await suite(Twice).test_every_trial_runs_once_and_is_done_once(3, 1, tmp_path)


async def test_pulling_everything_at_once_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        await suite(Eager).test_a_trial_is_pulled_only_when_it_can_start(5, tmp_path)


async def test_too_many_at_once_are_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        await suite(Eager).test_concurrency_is_reached_and_never_exceeded(3, tmp_path)


async def test_concurrency_that_is_never_reached_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollout.testing.executor._DEADLINE_SEC", 0.2)
    with pytest.raises(TimeoutError):
        await suite(OneAtATime).test_concurrency_is_reached_and_never_exceeded(3, tmp_path)


async def test_trials_left_running_after_cancellation_are_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        await suite(Abandons).test_cancelling_tears_down_every_trial_before_it_returns(tmp_path)
