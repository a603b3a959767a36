"""`mode: namespace` and `mode: host`: trials on the least loaded host, layers, and what a dead job left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from rollout.core.aio import Blocking
from rollout.core.errors import EnvironmentLostError, HostLostError, SandboxError, TaskError, TeardownError
from rollout.core.pool import Lease, Machine, Pool
from rollout.core.protocols import EXEC_USER, LIVE_STDIO, NETWORK_NONE, SNAPSHOT, BackendContext, Environment
from rollout.core.sandbox import layers
from rollout.core.sandbox.config import sandbox_config
from rollout.core.sandbox.limits import unenforced
from rollout.core.types import EnvironmentSpec, OutputSink
from rollout_ssh.address import find_hosts, read_ssh_config, resolve
from rollout_ssh.bare import BareEnvironment
from rollout_ssh.connection import Login, Refused, Unreachable
from rollout_ssh.host import Host, engine_programs
from rollout_ssh.layering import HostLayers
from rollout_ssh.leases import Facts, probe, put_back, start_bare
from rollout_ssh.namespace import NamespaceEnvironment
from rollout_ssh.options import SshOptions
from rollout_ssh.session import Session

T = TypeVar("T")

_MAX_THREADS = 64
_MAX_CONNECTING = 16


class OwnHosts:
    """Sandboxes of namespaces on other machines, or those machines themselves."""

    def __init__(self, options: SshOptions, context: BackendContext) -> None:
        self._options = options
        self._context = context
        self._blocking = Blocking(min(context.concurrency, _MAX_THREADS) + 8, "rollout-ssh")
        self._pool: Pool[Host] | None = None
        self._checked: SandboxError | bool = False
        self._layers = HostLayers(options.rootfs, self._network, self._start_sandbox)
        self._warned: set[str] = set()
        self._facts: dict[str, Facts] = {}
        """Of bare hosts, by name, as far as they are known."""

    @property
    def capabilities(self) -> frozenset[str]:
        if self._options.mode == "host":
            cuts = all(facts.cuts_network for facts in self._facts.values())
            return frozenset({LIVE_STDIO, EXEC_USER, *([NETWORK_NONE] if cuts else [])})
        found = {LIVE_STDIO, NETWORK_NONE, SNAPSHOT}
        sessions = [session for host in self.hosts() if (session := host.last_session) is not None]
        if all(session.ids != "one" for session in sessions):
            found.add(EXEC_USER)
        return frozenset(found)

    def check(self, spec: EnvironmentSpec) -> None:
        self.check_hosts()
        if spec.resources.gpus:
            raise TaskError(f"{spec.task_name} needs {spec.resources.gpus} GPUs, which type: ssh cannot give to one sandbox")
        recipe = layers.read(spec)
        if recipe is None and spec.docker_image is not None and self._options.rootfs is None:
            raise TaskError(
                f"{spec.task_name} needs the image {spec.docker_image}: use `mode: docker`, or give its root file system in "
                "`environment.options.rootfs`"
            )
        if recipe is not None and recipe.base != "scratch" and self._options.rootfs is None:
            self.warn_once("from", f"FROM {recipe.base} is not used: the host is the base (type: ssh, task {spec.task_name})")
        for host in self.hosts():
            self.warn_of(host, spec)

    async def prepare(self, spec: EnvironmentSpec, *, force: bool = False, sink: OutputSink | None = None) -> str:
        """Make the layer on one host; the others make it when they first need it."""
        image = self._layers.image(spec)
        if image == layers.NO_IMAGE or self._options.mode == "host":
            return layers.NO_IMAGE
        await self._on_one_host(lambda session: self._layers.build(session, spec, force=force, sink=sink))
        return image

    async def snapshot(
        self,
        spec: EnvironmentSpec,
        image: str,
        key: str,
        change: Callable[[Environment], Awaitable[None]],
        *,
        force: bool = False,
    ) -> str | None:
        """As `prepare` does it; a host that is put back after each trial keeps nothing."""
        if self._options.mode == "host":
            return None
        name = self._layers.snapshot(spec, image, key, change, force=force)
        if not self._layers.is_kept(name):
            await self._on_one_host(lambda session: self._layers.keep(session, name))
        return name

    async def _on_one_host(self, work: Callable[[Session], Awaitable[object]]) -> None:
        """Do something on the least loaded host, and on another when that is lost meanwhile."""
        while True:
            lease = await self._lease()
            try:
                session = await self._session(lease)
                if session is not None:
                    await work(session)
                    return
            except HostLostError as error:
                lease.failed(str(error))
            finally:
                lease.release()

    async def start(self, spec: EnvironmentSpec, image: str) -> NamespaceEnvironment | BareEnvironment:
        if self._options.mode == "host":
            return await self._on_a_lease(lambda lease: self._start_bare(lease, spec))
        return await self.start_on_some_host(lambda lease, session: self._start(lease, session, spec, image))

    async def start_on_some_host(
        self, start: Callable[[Lease[Host], Session], Awaitable[NamespaceEnvironment]]
    ) -> NamespaceEnvironment:
        """Start a sandbox on the least loaded host. It has the lease until `ended` is told that it has stopped."""

        async def on(lease: Lease[Host]) -> NamespaceEnvironment | None:
            session = await self._session(lease)
            return await start(lease, session) if session is not None else None

        return await self._on_a_lease(on)

    async def _on_a_lease(self, start: Callable[[Lease[Host]], Awaitable[T | None]]) -> T:
        while True:
            lease = await self._lease()
            try:
                started = await start(lease)
                if started is not None:
                    return started
            except HostLostError as error:
                lease.failed(str(error))
                lease.release()
                raise
            except BaseException:
                lease.release()
                raise
            lease.release()

    async def remove(self, image: str) -> None:
        sessions = [session for host in self.hosts() if (session := host.last_session) is not None and session.ended is None]
        await self._layers.remove(image, sessions)

    async def reap(self, job_id: str) -> Sequence[str]:
        machines = self._machines().machines
        found = await asyncio.gather(*(self._reap(machine.value, job_id) for machine in machines))
        removed = [line for lines, _ in found for line in lines]
        faults = [fault for _, fault in found if fault is not None]
        if faults:
            raise TeardownError(f"what the job left there was not looked for: {'; '.join(faults)}", removed)
        return removed

    async def _reap(self, host: Host, job_id: str) -> tuple[list[str], str | None]:
        """What was removed on one host, and why not all of it."""
        try:
            if self._options.mode == "host":
                return await put_back(host, job_id, self._blocking, self._options.lost_after_sec), None
            return await _reap(await host.session(self._blocking), job_id), None
        except (Refused, Unreachable, TeardownError, EnvironmentLostError) as error:
            return [], str(error)

    async def aclose(self) -> None:
        await asyncio.gather(*(host.aclose(self._blocking) for host in self.hosts() if self._pool is not None))
        self._blocking.close()

    # --- hosts ---

    def _machines(self) -> Pool[Host]:
        if self._pool is None:
            options, base = self._options, self._context.base_dir
            config = read_ssh_config(_local(options.config, base) if options.config else None)
            entries = find_hosts(options.hosts, _local(options.host_file, base) if options.host_file else None)
            login = Login(
                key=_local(options.identity_file, base) if options.identity_file else None,
                agent=options.agent,
                password_file=_local(options.password_file, base) if options.password_file else None,
                known_hosts=_local(options.known_hosts, base),
                accept_new=options.unknown_hosts == "accept_new",
                timeout_sec=options.connect_timeout_sec,
            )
            machines = []
            for entry in entries:
                host = Host(resolve(entry, config), login, options, self._context.job_id)
                slots = 1 if options.mode == "host" else entry.slots or options.slots
                machines.append(Machine(entry.text, host, slots))
            self._pool = Pool(machines, self._context.warn)
        return self._pool

    def hosts(self) -> list[Host]:
        return [machine.value for machine in self._machines().machines]

    def check_hosts(self) -> None:
        """Connect to every host, once, all at a time. One that is merely down is left to the pool."""
        if isinstance(self._checked, SandboxError):
            raise self._checked
        if self._checked:
            return
        machines = self._machines().machines
        with ThreadPoolExecutor(min(len(machines), _MAX_CONNECTING), "rollout-ssh") as threads:
            faults = list(threads.map(lambda machine: self._fault(machine.value), machines))
        refused = [str(fault) for fault in faults if isinstance(fault, Refused)]
        down = [str(fault) for fault in faults if isinstance(fault, Unreachable)]
        if refused or len(down) == len(machines):
            self._checked = SandboxError("; ".join([*refused, *down]))
            raise self._checked
        for machine, fault in zip(machines, faults, strict=True):
            if fault is not None:
                self._context.warn(f"{fault}; the job begins without it")
                self._machines().failed(machine, str(fault))
        self._checked = True

    def _fault(self, host: Host) -> SandboxError | None:
        """Why nothing can run on a host. Blocks."""
        try:
            if self._options.mode == "host":
                self._facts[host.name] = probe(host)
            else:
                _refuse_lacking(host.name, host.launch(), self._options)
        except (Refused, Unreachable) as error:
            return error
        return None

    async def _lease(self) -> Lease[Host]:
        return await self._machines().take()

    async def _session(self, lease: Lease[Host]) -> Session | None:
        """The host's relay; None when there is none to be had now, which the pool has been told."""
        try:
            return await lease.value.session(self._blocking)
        except Unreachable as error:
            lease.failed(str(error))
        except Refused as error:
            lease.set_aside(str(error))
        return None

    # --- sandboxes ---

    async def _start_bare(self, lease: Lease[Host], spec: EnvironmentSpec) -> BareEnvironment | None:
        """None when the host is not to be had, which the pool has been told."""

        def ended(worked: bool) -> None:
            if not worked:
                lease.failed("it was lost")
            lease.release(worked=worked)

        def busy() -> None:
            self.warn_once(f"busy {lease.name}", f"{lease.name} is leased to another job: its trials wait for their turn")

        options, job_id = self._options, self._context.job_id
        try:
            environment = await start_bare(
                lease.value,
                spec,
                job_id,
                self._blocking,
                options.lost_after_sec,
                ended,
                busy,
                network=self._network(spec),
                pids=options.pids,
            )
            self._warn_of_limits(lease.value, spec, environment.enforced)
            return environment
        except Unreachable as error:
            lease.failed(str(error))
        except Refused as error:
            lease.set_aside(str(error))
        return None

    async def _start(self, lease: Lease[Host], session: Session, spec: EnvironmentSpec, image: str) -> NamespaceEnvironment:
        config = await self._layers.config(session, spec, image)
        self.warn_of(lease.value, spec)
        return await self._start_sandbox(session, spec, config, ended=ended(lease, session))

    async def _start_sandbox(
        self,
        session: Session,
        spec: EnvironmentSpec,
        image: layers.ImageConfig,
        upper: str | None = None,
        ended: Callable[[bool], None] = lambda worked: None,
    ) -> NamespaceEnvironment:
        config = self.config(session, spec, image, upper)
        return await NamespaceEnvironment.start(session, self._blocking, config, ended)

    def config(
        self, session: Session, spec: EnvironmentSpec, image: layers.ImageConfig, upper: str | None = None
    ) -> dict[str, Any]:
        """What a host is told of a sandbox."""
        return sandbox_config(
            spec,
            image,
            name=f"rollout-{self._context.job_id}-{os.urandom(4).hex()}",
            network=self._network(spec),
            groups=session.groups,
            pids=self._options.pids,
            tmpfs=self._options.tmpfs,
            upper=upper,
        )

    def _network(self, spec: EnvironmentSpec) -> str:
        return self._options.network or ("none" if spec.network == "none" else "host")

    def warn_of(self, host: Host, spec: EnvironmentSpec) -> None:
        """Tell what a host does not do for a task, once; one that nothing is known of is warned of when it is."""
        if self._options.mode == "host":
            facts = self._facts.get(host.name)
            if facts is not None:
                self._warn_of_limits(host, spec, facts.limits)
            return
        session = host.last_session
        if session is None:
            return
        if self._network(spec) == "host" and self._context.concurrency > 1:
            text = "trials that run on one host at once share its network: two that listen on the same port collide"
            self.warn_once("ports", f"type: ssh: {text} (`network: none` in the task, or options.network, separates them)")
        self._warn_of_limits(host, spec, session.groups)

    def _warn_of_limits(self, host: Host, spec: EnvironmentSpec, groups: Container[str]) -> None:
        """`groups`: the controllers that there are on the host."""
        options = self._options
        bare = options.mode == "host"
        instead = None if bare else "environment.options.tmpfs: true"
        tmpfs = options.tmpfs and not bare
        line = unenforced(spec.resources, options.pids, groups, tmpfs=tmpfs, where=host.name, instead=instead)
        if line is not None:
            self.warn_once(f"limits {host.name}", line)

    def warn_once(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            self._context.warn(message)


def ended(lease: Lease[Host], session: Session) -> Callable[[bool], None]:
    """What hears that a sandbox has stopped, and whether its host did well: gives the lease back."""

    def hears(worked: bool) -> None:
        if not worked:
            lease.failed(session.ended or "it was lost")
        lease.release(worked=worked)

    return hears


def _local(path: str, base: Path) -> Path:
    return base / os.path.expanduser(path)


def _refuse_lacking(name: str, session: Session, options: SshOptions) -> None:
    """Raises Refused when `mode: apptainer` needs something that the host does not have."""
    if options.mode == "apptainer" and session.program is None:
        names = " or ".join(engine_programs(options))
        raise Refused(
            f"{name}: there is no {names} there: install Apptainer, or give its path on the hosts in "
            "environment.options.engine.program"
        )
    if options.image is not None and session.image is None:
        raise Refused(f"{name}: there is no image {options.image} there (environment.options.image)")


async def _reap(session: Session, job_id: str) -> list[str]:
    found = await session.file("leftovers", session.folder, job=job_id)
    if found["paths"]:
        await session.remove(*found["paths"])
    again = await session.file("leftovers", session.folder, job=job_id)
    return [
        *(f"sandbox files {session.name}:{path}" for path in found["paths"]),
        *(f"control group {session.name}:{path}" for path in [*found["groups"], *again["groups"]]),
    ]
