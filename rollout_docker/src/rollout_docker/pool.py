"""The engines of a job: where the next trial goes, and what happens when one of them is lost."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rollout.core.aio import Blocking
from rollout.core.errors import EnvironmentLostError, HostLostError, SandboxError, StartError
from rollout.core.protocols import BackendContext
from rollout.core.types import EnvironmentSpec
from rollout_docker.host import Host

logger = logging.getLogger(__name__)
_FIRST_WAIT_SEC = 1.0
_MAX_WAIT_SEC = 60.0


class Slot:
    """A trial's place on a host."""

    def __init__(self, pool: Pool, host: Host) -> None:
        self.host = host
        self._pool = pool
        self._held = True
        host.used += 1

    def free(self) -> None:
        """Idempotent."""
        if self._held:
            self._held = False
            self.host.used -= 1
            self._pool.wake()


class Pool:
    """One engine or several. A single one is never set aside: there is nothing else to use."""

    def __init__(self, hosts: Sequence[Host], context: BackendContext, blocking: Blocking) -> None:
        self.hosts = hosts
        self._context = context
        self._blocking = blocking
        self._opening = threading.Lock()
        self._opened = False
        self._refused: SandboxError | None = None
        self._aside: dict[Host, str] = {}
        """Hosts that do not answer, and why."""
        self._noted: set[Host] = set()
        self._waiting: dict[Host, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    @property
    def ready(self) -> list[Host]:
        """The hosts that answered when they were last asked."""
        return [host for host in self.hosts if host not in self._aside and host.found is not None]

    def open(self) -> list[Host]:
        """Find the engines; those that answer. Blocks. None that answers is not asked again for every task.

        Raises:
            SandboxError: not one does.
        """
        with self._opening:
            if self._refused is not None:
                raise self._refused
            if not self._opened:
                self._open()
                self._opened = True
        return self.ready

    def _open(self) -> None:
        with ThreadPoolExecutor(min(len(self.hosts), 16), "rollout-docker-open") as threads:
            failures = [failure for failure in threads.map(_try_to_open, self.hosts) if failure is not None]
        if len(failures) == len(self.hosts):
            text = "\n  ".join(str(error) for _, error in failures)
            self._refused = failures[0][1] if len(failures) == 1 else SandboxError(f"no host of `hosts` can be used:\n  {text}")
            raise self._refused
        for host, error in failures:
            self._put_aside(host, str(error))
        for host in self.ready:
            self._adopt(host)
        slots = [host.slots for host in self.hosts]
        if None not in slots and sum(filter(None, slots)) < self._context.concurrency:
            self._context.warn(
                f"type: docker: {self._context.concurrency} trials at once were asked for, and the hosts have "
                f"{sum(filter(None, slots))} slots: no more trials than that run at once"
            )
        self._tell_room()

    async def reach(self) -> list[Host]:
        """The hosts that answer; those that were set aside before there was an event loop are asked again from now on.

        Raises:
            SandboxError
        """
        if not self._opened:
            await self._blocking(self.open)
        for host in self._aside:
            self._watch(host)
        return self.ready

    async def pick(self, spec: EnvironmentSpec) -> Host:
        """The least loaded host that the task can run on.

        Raises:
            StartError: no host answers.
        """
        await self.reach()
        hosts = [host for host in self.ready if host.suits(spec)] or await self._ask_all(spec)
        return min(hosts, key=lambda host: (host.is_full, host.load))

    async def take(self, spec: EnvironmentSpec) -> Slot:
        """A place on the least loaded host; waits while all of them are full.

        Raises:
            StartError: no host answers.
        """
        while (host := await self.pick(spec)).is_full:
            self._changed.clear()
            await self._changed.wait()
        return Slot(self, host)

    def wake(self) -> None:
        """There may be a free slot."""
        self._changed.set()

    async def is_lost(self, host: Host) -> bool:
        """Whether work that failed on a host is to be done on another one, because this one answers no more."""
        if len(self.hosts) == 1 or (host not in self._aside and await host.engine.answers()):
            return False
        self._put_aside(host, "it does not answer any more")
        return True

    async def aclose(self) -> None:
        for task in self._waiting.values():
            task.cancel()
        if self._waiting:
            await asyncio.wait(self._waiting.values())
        self._waiting.clear()
        for host in self.hosts:
            await host.aclose()

    def _adopt(self, host: Host) -> None:
        if len(self.hosts) > 1:
            host.engine.lost = lambda text: self._lost(host, text)

    def _lost(self, host: Host, text: str) -> EnvironmentLostError:
        """The error for what ran on a host that stopped answering."""
        self._put_aside(host, text)
        return HostLostError(f"{host} is lost: {text}")

    def _put_aside(self, host: Host, why: str) -> None:
        if host in self._aside:
            return
        self._aside[host] = why
        if host not in self._noted:
            self._noted.add(host)
            self._context.warn(f"type: docker: {host} is set aside ({why}); trials run on the other hosts until it answers")
        logger.info("%s is set aside: %s", host, why)
        if self._opened:
            self._tell_room()
            self._watch(host)
            self.wake()

    def _watch(self, host: Host) -> None:
        task = self._waiting.get(host)
        if task is None or task.done():
            self._waiting[host] = asyncio.ensure_future(self._ask_again(host))

    async def _ask_again(self, host: Host) -> None:
        wait = _FIRST_WAIT_SEC
        while host in self._aside:
            await asyncio.sleep(wait)
            wait = min(2 * wait, _MAX_WAIT_SEC)
            await self._ask(host)

    async def _ask(self, host: Host) -> bool:
        """Take a host back if it answers, and remove what trials could not remove there."""
        try:
            engine = await asyncio.to_thread(host.open)
        except SandboxError as error:
            self._aside[host] = str(error)
            return False
        if not await engine.answers():
            return False
        if host in self._aside:
            await host.sweep()
            self._adopt(host)
            self._aside.pop(host, None)
            logger.info("%s answers again", host)
            self._tell_room()
            self.wake()
        return True

    async def _ask_all(self, spec: EnvironmentSpec) -> list[Host]:
        await asyncio.gather(*(self._ask(host) for host in list(self._aside)))
        hosts = [host for host in self.ready if host.suits(spec)]
        if not hosts:
            listed = "; ".join(f"{host} ({why})" for host, why in self._aside.items())
            raise StartError(f"no host is left for task {spec.task_name}: {listed}")
        return hosts

    def _tell_room(self) -> None:
        slots = [host.slots for host in self.ready]
        self._context.limit(None if None in slots else sum(filter(None, slots)))


def _try_to_open(host: Host) -> tuple[Host, SandboxError] | None:
    try:
        host.open()
    except SandboxError as error:
        return host, error
    return None
