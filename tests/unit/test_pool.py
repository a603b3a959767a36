"""The pool of machines: least loaded first, rests after failures, set aside, nobody overtakes."""

from __future__ import annotations

import asyncio

import pytest

from rollout.core.errors import HostLostError, StartError
from rollout.core.pool import Machine, Pool, lost
from rollout.core.trial.deadlines import deadline


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def pool(*machines: tuple[str, int | None], warnings: list[str] | None = None, clock: Clock | None = None) -> Pool[str]:
    said = warnings if warnings is not None else []
    return Pool([Machine(name, name, slots) for name, slots in machines], said.append, clock or Clock())


async def test_the_least_loaded_machine_takes_the_next_trial() -> None:
    machines = pool(("small", 1), ("large", 3))
    assert [(await machines.take()).name for _ in range(4)] == ["small", "large", "large", "large"]


async def test_machines_without_slots_share_evenly() -> None:
    machines = pool(("a", None), ("b", None))
    assert [(await machines.take()).name for _ in range(4)] == ["a", "b", "a", "b"]


async def test_a_full_pool_makes_wait_first_come_first_served() -> None:
    machines = pool(("a", 1))
    held = await machines.take()
    order: list[int] = []

    async def wait(number: int) -> None:
        lease = await machines.take()
        order.append(number)
        await asyncio.sleep(0)
        lease.release()

    waiting = [asyncio.ensure_future(wait(number)) for number in range(5)]
    await asyncio.sleep(0)
    held.release()
    held.release()
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2, 3, 4]
    assert machines.machines[0].used == 0


async def test_a_cancelled_wait_takes_no_slot() -> None:
    machines = pool(("a", 1))
    held = await machines.take()
    waiting = asyncio.ensure_future(machines.take())
    await asyncio.sleep(0)
    waiting.cancel()
    held.release()
    async with asyncio.timeout(10):
        (await machines.take()).release()


async def test_a_machine_that_failed_rests_and_comes_back() -> None:
    clock = Clock()
    machines = pool(("a", None), ("b", None), clock=clock)
    lease = await machines.take()
    lease.failed("no answer")
    lease.release()
    assert [(await machines.take()).name for _ in range(3)] == ["b", "b", "b"]
    clock.now = 1.0
    assert (await machines.take()).name == "a"


async def test_rests_grow_and_the_last_failure_sets_aside_with_a_note() -> None:
    clock, warnings = Clock(), []
    machines = pool(("a", None), ("b", None), warnings=warnings, clock=clock)
    machine = machines.machines[0]
    rests = []
    for _ in range(5):
        machines.failed(machine, "no answer")
        rests.append(machine.rests_until - clock.now)
        clock.now = machine.rests_until
    assert rests == [1, 3, 9, 27, 60]
    assert warnings == []
    machines.failed(machine, "no answer")
    assert warnings == ["a is set aside, its trials go to the other machines: no answer"]
    clock.now = machine.rests_until - 1
    assert {(await machines.take()).name for _ in range(4)} == {"b"}


async def test_a_machine_that_was_set_aside_is_tried_again_while_others_work() -> None:
    clock, warnings = Clock(), []
    machines = pool(("a", None), ("b", None), warnings=warnings, clock=clock)
    machine = machines.machines[0]
    for _ in range(8):
        machines.failed(machine, "no answer")
        clock.now = machine.rests_until
    assert len(warnings) == 1
    machines.set_aside(machines.machines[1], "its disk is full")
    with pytest.raises(StartError, match="no machine is left"):
        await machines.take()
    machines.worked(machine)
    assert (await machines.take()).name == "a"


async def test_a_machine_that_was_set_aside_for_good_never_comes_back() -> None:
    clock = Clock()
    machines = pool(("a", None), ("b", None), clock=clock)
    lease = await machines.take()
    machines.set_aside(machines.machines[0], "its key changed")
    lease.release(worked=True)
    clock.now = 1e9
    assert {(await machines.take()).name for _ in range(4)} == {"b"}


async def test_a_trial_goes_only_where_it_fits() -> None:
    machines = pool(("a", None), ("b", None))
    assert [(await machines.take(lambda name: name == "b")).name for _ in range(3)] == ["b"] * 3
    with pytest.raises(StartError, match=r"no machine is left: a \(not for this task\)"):
        await machines.take(lambda name: False)


async def test_what_was_lost_together_counts_once() -> None:
    machines = pool(("a", None))
    leases = [await machines.take() for _ in range(10)]
    errors = [lost(lease, "the connection broke") for lease in leases]
    assert machines.machines[0].failures == 1
    assert all(isinstance(error, HostLostError) for error in errors)
    assert str(errors[0]) == "a is lost: the connection broke"


async def test_a_trial_that_worked_forgives_earlier_failures_and_not_later_ones() -> None:
    clock = Clock()
    machines = pool(("a", None), clock=clock)
    machine = machines.machines[0]
    machines.failed(machine, "first")
    clock.now = 10.0
    good, bad = await machines.take(), await machines.take()
    bad.failed("second")
    good.release(worked=True)
    assert machine.failures == 2
    clock.now = 100.0
    (await machines.take()).release(worked=True)
    assert machine.failures == 0


async def test_when_every_machine_is_set_aside_those_who_wait_hear_why() -> None:
    machines = pool(("a", 1), ("b", 1))
    await machines.take()
    held = await machines.take()
    waiting = asyncio.ensure_future(machines.take())
    await asyncio.sleep(0)
    machines.set_aside(machines.machines[0], "its disk is full")
    machines.set_aside(machines.machines[1], "its key changed")
    with pytest.raises(StartError, match=r"no machine is left: a \(its disk is full\); b \(its key changed\)"):
        await waiting
    held.release()


async def test_waiting_for_a_slot_counts_towards_no_deadline() -> None:
    machines = pool(("a", 1))
    held = await machines.take()

    async def start() -> str:
        async with deadline(0.2, StartError, "starting"):
            lease = await machines.take()
            await asyncio.sleep(0)
            return lease.name

    starting = asyncio.ensure_future(start())
    await asyncio.sleep(0.5)
    assert not starting.done()
    held.release()
    assert await starting == "a"


async def test_what_comes_after_the_wait_counts_again() -> None:
    machines = pool(("a", 1))
    held = await machines.take()

    async def start() -> None:
        async with deadline(0.05, StartError, "starting"):
            await machines.take()
            await asyncio.sleep(600)

    starting = asyncio.ensure_future(start())
    await asyncio.sleep(0.1)
    held.release()
    with pytest.raises(StartError, match="starting was still running"):
        async with asyncio.timeout(60):
            await starting
