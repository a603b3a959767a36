import asyncio

import pytest

from rollout.core.aio import Blocking, Once, run_shielded


async def test_shielded_work_finishes_before_the_cancellation_is_delivered() -> None:
    done = asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0.02)
        done.set()

    task = asyncio.ensure_future(run_shielded(work()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()


async def test_shielded_work_gives_its_result_and_its_error() -> None:
    async def work(value: int) -> int:
        if value < 0:
            raise ValueError("no")
        return value

    assert await run_shielded(work(3)) == 3
    with pytest.raises(ValueError, match="no"):
        await run_shielded(work(-1))


async def test_once_runs_one_flight_per_key() -> None:
    runs = 0
    once: Once[int] = Once()

    async def make() -> int:
        nonlocal runs
        runs += 1
        await asyncio.sleep(0.01)
        return runs

    assert await asyncio.gather(*(once("a", make) for _ in range(50))) == [1] * 50
    assert await once("a", make) == 1
    assert await once("b", make) == 2


async def test_one_cancelled_waiter_does_not_stop_the_flight_of_the_others() -> None:
    once: Once[str] = Once()

    async def make() -> str:
        await asyncio.sleep(0.02)
        return "made"

    first, second = (asyncio.ensure_future(once("k", make)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == "made"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_flight_nobody_waits_for_is_cancelled_and_a_later_call_starts_anew() -> None:
    once: Once[str] = Once()
    cancelled = asyncio.Event()

    async def hang() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "never"

    async def make() -> str:
        return "made"

    waiter = asyncio.ensure_future(once("k", hang))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert await once("k", make) == "made"
    assert cancelled.is_set()


async def test_an_error_is_kept_until_it_is_forgotten() -> None:
    once: Once[int] = Once()
    runs = 0

    async def fail() -> int:
        nonlocal runs
        runs += 1
        raise ValueError(str(runs))

    for _ in range(2):
        with pytest.raises(ValueError, match="1"):
            await once("k", fail)
    once.forget("k")
    with pytest.raises(ValueError, match="2"):
        await once("k", fail)


async def test_blocking_has_threads_of_its_own() -> None:
    import threading

    blocking = Blocking(100, "own")
    barrier = threading.Barrier(100)
    await asyncio.wait_for(asyncio.gather(*(blocking(barrier.wait) for _ in range(100))), 30)
    blocking.close()
