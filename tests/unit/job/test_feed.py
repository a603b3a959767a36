"""The feed hands out every trial once, waits for retries, and ends only when all is settled."""

import asyncio

import msgspec

from rollout.core.job.feed import TrialFeed
from rollout.core.records import AgentSpec, TaskSpec, TrialSpec
from rollout.core.types import EnvironmentSpec

SPEC = TrialSpec(
    job_id="j",
    job_name="j",
    trial_id="0",
    directory="/nowhere",
    attempt=1,
    agent=AgentSpec(name="a", plugin="nop"),
    task=TaskSpec(name="t", dataset="d", path="/t", digest="x"),
    environment=EnvironmentSpec(task_name="t", directory=None, digest="x"),
    environment_type="fake",
)


def specs(count: int) -> list[TrialSpec]:
    return [msgspec.structs.replace(SPEC, trial_id=str(number)) for number in range(count)]


async def test_many_workers_get_each_trial_once() -> None:
    feed = TrialFeed(iter(specs(100)))
    seen: list[str] = []

    async def work() -> None:
        async for spec in feed:
            await asyncio.sleep(0)
            seen.append(spec.trial_id)
            feed.finished()

    await asyncio.gather(*(work() for _ in range(30)))
    assert sorted(seen, key=int) == [str(number) for number in range(100)]


async def test_a_retry_comes_again_after_its_wait_and_the_feed_stays_open_for_it() -> None:
    feed = TrialFeed(iter(specs(2)))
    seen: list[tuple[str, int]] = []
    times: dict[int, float] = {}
    clock = asyncio.get_running_loop().time

    async def work() -> None:
        async for spec in feed:
            seen.append((spec.trial_id, spec.try_number))
            times[spec.try_number] = clock()
            if spec.trial_id == "0" and spec.try_number < 3:
                feed.retry(msgspec.structs.replace(spec, try_number=spec.try_number + 1), 0.05)
            else:
                feed.finished()

    await asyncio.gather(*(work() for _ in range(5)))
    assert sorted(seen) == [("0", 1), ("0", 2), ("0", 3), ("1", 1)]
    assert times[3] - times[2] >= 0.05


async def test_it_pulls_only_what_was_asked_for() -> None:
    pulled: list[str] = []

    def planned():  # type: ignore[no-untyped-def]
        for spec in specs(1000):
            pulled.append(spec.trial_id)
            yield spec

    feed = TrialFeed(planned())
    await anext(feed)
    await anext(feed)
    assert pulled == ["0", "1"]


async def test_stop_ends_it_for_waiting_workers_too() -> None:
    feed = TrialFeed(iter(specs(1)))
    await anext(feed)
    waiting = asyncio.ensure_future(anext(feed, None))
    await asyncio.sleep(0)
    feed.stop()
    feed.finished()
    assert await waiting is None
