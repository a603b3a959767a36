"""Machines that trials are spread over: the least loaded takes the next, and those that keep failing are set aside."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from rollout.core.aio import off_the_clock
from rollout.core.errors import HostLostError, StartError

T = TypeVar("T")

_RESTS_SEC = (1.0, 3.0, 9.0, 27.0, 60.0)
"""How long a machine rests after its first, second ... failure in a row. One more, and it is set aside: tried again after each
last of these while others work, and counted as lost when none does."""


class Machine(Generic[T]):
    """One machine of a pool, and what is known of it."""

    def __init__(self, name: str, value: T, slots: int | None) -> None:
        """`slots`: how many trials it takes at once; None is no limit."""
        self.name = name
        self.value = value
        self.slots = slots
        self.used = 0
        self.failures = 0
        self.rests_until = 0.0
        self.set_aside: str | None = None
        """Why it is not counted on any more."""
        self.era = 0
        """Goes up with each failure, so that everything that was under way then counts as one."""

    @property
    def load(self) -> float:
        return self.used / self.slots if self.slots else float(self.used)

    @property
    def has_room(self) -> bool:
        return self.rests_until < math.inf and (self.slots is None or self.used < self.slots)


class Lease(Generic[T]):
    """One slot of a machine. Give it back with `release`, after `failed` when the machine was to blame."""

    def __init__(self, pool: Pool[T], machine: Machine[T]) -> None:
        self._pool = pool
        self._machine = machine
        self._era = machine.era
        self._held = True

    @property
    def name(self) -> str:
        return self._machine.name

    @property
    def value(self) -> T:
        return self._machine.value

    def failed(self, why: str) -> None:
        """The machine is lost or refuses, and it is not the trial's fault. What others say of the same failure counts once."""
        if self._era == self._machine.era:
            self._pool.failed(self._machine, why)

    def set_aside(self, why: str) -> None:
        """The machine refuses and will go on refusing: it gets no more trials."""
        self._pool.set_aside(self._machine, why)

    def release(self, *, worked: bool = False) -> None:
        """Give the slot back. Idempotent. `worked`: the machine did what it was asked to, so earlier failures are forgotten."""
        if not self._held:
            return
        self._held = False
        if worked and self._era == self._machine.era:
            self._pool.worked(self._machine)
        self._pool.released(self._machine)


class Pool(Generic[T]):
    """The machines of one job. Belongs to one event loop."""

    def __init__(
        self,
        machines: Iterable[Machine[T]],
        warn: Callable[[str], None] = lambda message: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`warn` hears, once each, of machines that are set aside."""
        self.machines = list(machines)
        self._warn = warn
        self._clock = clock
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    async def take(self, fits: Callable[[T], bool] = lambda value: True) -> Lease[T]:
        """A slot on the least loaded machine that fits and is not resting; waits for one, first come, first served.

        The wait counts towards no deadline of the trial's phases.

        Raises:
            StartError: every machine that fits has been set aside; the text says why each was.
        """
        lease = None if self._turn.locked() else self._take(fits)
        if lease is not None:
            return lease
        async with off_the_clock(), self._turn:
            while True:
                lease = self._take(fits)
                if lease is not None:
                    return lease
                self._changed.clear()
                try:
                    async with asyncio.timeout(self._next_sec()):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    def failed(self, machine: Machine[T], why: str) -> None:
        """Let the machine rest, longer each time, and set it aside when that has not helped often enough."""
        machine.era += 1
        machine.failures += 1
        if machine.failures > len(_RESTS_SEC):
            self.set_aside(machine, why, rest_sec=_RESTS_SEC[-1])
        else:
            machine.rests_until = self._clock() + _RESTS_SEC[machine.failures - 1]
        self._changed.set()

    def set_aside(self, machine: Machine[T], why: str, *, rest_sec: float = math.inf) -> None:
        """Count on the machine no more. After `rest_sec` it is tried again while others work; without it, never in this job."""
        machine.rests_until = max(machine.rests_until, self._clock() + rest_sec)
        if machine.set_aside is None:
            self._warn(f"{machine.name} is set aside, its trials go to the other machines: {why}")
        machine.set_aside = why
        self._changed.set()

    def worked(self, machine: Machine[T]) -> None:
        """Forget earlier failures."""
        if machine.rests_until < math.inf:
            machine.failures = 0
            machine.set_aside = None

    def released(self, machine: Machine[T]) -> None:
        machine.used -= 1
        self._changed.set()

    def _take(self, fits: Callable[[T], bool]) -> Lease[T] | None:
        fitting = [machine for machine in self.machines if fits(machine.value)]
        if all(machine.set_aside is not None for machine in fitting):
            reasons = "; ".join(f"{machine.name} ({machine.set_aside or 'not for this task'})" for machine in self.machines)
            raise StartError(f"no machine is left: {reasons}")
        now = self._clock()
        free = [machine for machine in fitting if machine.has_room and machine.rests_until <= now]
        if not free:
            return None
        machine = min(free, key=lambda machine: machine.load)  # the first of those that are equally loaded
        machine.used += 1
        return Lease(self, machine)

    def _next_sec(self) -> float | None:
        """Until a machine with room has rested; None when only a slot that is given back can help."""
        ends = [machine.rests_until for machine in self.machines if machine.has_room]
        return max(0.01, min(ends) - self._clock()) if ends else None


def lost(lease: Lease[T], why: str) -> HostLostError:
    """Tell the pool that the machine of `lease` is lost, and make the error for whatever ran on it."""
    lease.failed(why)
    return HostLostError(f"{lease.name} is lost: {why}")
