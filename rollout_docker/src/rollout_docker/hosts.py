"""The engines of a job: where the next trial goes, and what happens when one of them is lost."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rollout.core.errors import EnvironmentLostError, SandboxError, StartError
from rollout.core.pool import Lease, Machine, Pool, lost
from rollout.core.protocols import BackendContext
from rollout.core.types import EnvironmentSpec
from rollout_docker.host import Host

logger = logging.getLogger(__name__)
_ABSENT_REST_SEC = 60.0
_OPENED_AT_ONCE = 16


class Hosts:
    """One engine or several. A single one is never set aside: there is nothing else to use."""

    def __init__(self, hosts: Sequence[Host], context: BackendContext) -> None:
        self.hosts = hosts
        self._context = context
        self._pool = Pool([Machine(str(host), host, host.endpoint.slots) for host in hosts], context.warn)
        self._opening = threading.Lock()
        self._opened = False
        self._refused: SandboxError | None = None
        self._noted: set[str] = set()

    @property
    def several(self) -> bool:
        return len(self.hosts) > 1

    @property
    def found(self) -> list[Host]:
        """The hosts that have answered."""
        return [host for host in self.hosts if host.found is not None]

    def open(self) -> list[Host]:
        """Find the engines; those that answer. Blocks. When none does, they are not asked again for every task.

        Raises:
            SandboxError: none does.
        """
        with self._opening:
            if self._refused is not None:
                raise self._refused
            if not self._opened:
                self._open()
                self._opened = True
        return self.found

    async def reach(self) -> list[Host]:
        """The same, off the event loop."""
        return self.found if self._opened else await asyncio.to_thread(self.open)

    async def pick(self, spec: EnvironmentSpec) -> Host:
        """The least loaded host that answers and that the task can run on, full or not.

        Raises:
            StartError: there is none.
        """
        await self.reach()
        if not self.several:
            return self.hosts[0]
        fitting = [machine for machine in self._pool.machines if machine.value.suits(spec)]
        for machine in sorted(fitting, key=lambda machine: (machine.failures > 0, machine.set_aside is not None, machine.load)):
            if await self._answers(machine.value):
                return machine.value
        raise StartError(f"none of the hosts answers: {', '.join(map(str, self.hosts))}")

    async def take(self, spec: EnvironmentSpec) -> Lease[Host]:
        """A slot on the least loaded host; waits while all of them are full.

        Raises:
            StartError: no host is left.
        """
        await self.reach()
        while True:
            lease = await self._pool.take(lambda host: host.suits(spec))
            if not self.several or not lease.value.doubted:
                return lease
            try:
                if await self._answers(lease.value):
                    return lease
                lease.failed("it does not answer")
            except BaseException:
                lease.release()
                raise
            lease.release()

    def lost(self, lease: Lease[Host], text: str) -> EnvironmentLostError:
        """The error for what was in a container when its engine stopped answering."""
        if not self.several:
            return EnvironmentLostError(text)
        self._note(lease.value, text)
        return lost(lease, text)

    async def is_lost(self, lease: Lease[Host]) -> bool:
        """Whether what failed on a host is to be done on another one, because this one answers no more."""
        if not await self.doubt(lease.value):
            return False
        lease.failed("it does not answer any more")
        return True

    async def doubt(self, host: Host) -> bool:
        """Ask a host on which something failed whether it still answers; True when it does not and there are others."""
        if not self.several or await host.engine.answers():
            return False
        self._note(host, "it does not answer any more")
        return True

    async def aclose(self) -> None:
        for host in self.hosts:
            await host.aclose()

    def _open(self) -> None:
        with ThreadPoolExecutor(min(len(self.hosts), _OPENED_AT_ONCE), "rollout-docker-open") as threads:
            errors = list(threads.map(_refusal, self.hosts))
        failures = [error for error in errors if error is not None]
        if len(failures) == len(self.hosts):
            listed = "".join(f"\n  {error}" for error in failures)
            self._refused = SandboxError(f"none of the engines in `hosts` can be used:{listed}") if self.several else failures[0]
            raise self._refused
        for machine, error in zip(self._pool.machines, errors, strict=True):
            if error is not None:
                machine.value.doubted = True
                self._pool.set_aside(machine, str(error), rest_sec=_ABSENT_REST_SEC)
        slots = [host.endpoint.slots for host in self.hosts]
        room = sum(count for count in slots if count is not None)
        if None not in slots and room < self._context.concurrency:
            wanted = self._context.concurrency
            self._context.warn(f"type: docker: the job wants {wanted} trials at once, and its hosts have {room} slots for them")

    async def _answers(self, host: Host) -> bool:
        """Whether a host can be counted on; one that is back is rid of what trials left there."""
        if not host.doubted:
            return True
        try:
            engine = await asyncio.to_thread(host.open)
        except SandboxError as error:
            logger.info("%s", error)
            return False
        if not await engine.answers():
            return False
        host.doubted = False
        await host.sweep()
        logger.info("%s answers again", host)
        return True

    def _note(self, host: Host, why: str) -> None:
        host.doubted = True
        if str(host) not in self._noted:
            self._noted.add(str(host))
            self._context.warn(f"type: docker: {host} is lost ({why}); its trials go to the other hosts until it answers again")


def _refusal(host: Host) -> SandboxError | None:
    try:
        host.open()
    except SandboxError as error:
        return error
    return None
