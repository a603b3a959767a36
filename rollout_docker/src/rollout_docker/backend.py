"""`type: docker`: what can run here, images, starting containers, and what a dead job left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from rollout.core.aio import Blocking, run_shielded
from rollout.core.errors import EnvironmentLostError, SandboxError, TeardownError
from rollout.core.pool import Lease
from rollout.core.protocols import (
    API_VERSION,
    BESIDE,
    DOCKER_IMAGE,
    EXEC_USER,
    GPUS,
    LIVE_STDIO,
    NETWORK_ALLOWLIST,
    NETWORK_NONE,
    NETWORK_SWITCH,
    SERVICES,
    SNAPSHOT,
    BackendContext,
    Environment,
)
from rollout.core.types import EnvironmentSpec, OutputSink, Struct
from rollout_docker.check import Checks
from rollout_docker.compose import compose_file_of
from rollout_docker.environment import DockerEnvironment
from rollout_docker.host import Host
from rollout_docker.hosts import Hosts
from rollout_docker.options import DockerOptions
from rollout_docker.where import endpoints_of

_MAX_THREADS = 64


class DockerBackend:
    """Containers of Docker engines, one per trial."""

    api_version: ClassVar[tuple[int, int]] = API_VERSION
    options_type: ClassVar[type[Struct]] = DockerOptions
    placement: ClassVar[frozenset[str]] = frozenset({"host", "context", "tls", "hosts"})

    def __init__(self, options: DockerOptions, context: BackendContext) -> None:
        self._options = options
        self._context = context
        self._threads = min(context.concurrency, _MAX_THREADS) + 4
        self._blocking = Blocking(self._threads, "rollout-docker")
        self._found: Hosts | None = None
        self._checks = Checks(options, context)
        self._forced: set[str] = set()
        self._pinned: dict[str, str] = {}
        """Digest of an environment to the registry's digest of its image, so that all hosts run the same."""

    @property
    def capabilities(self) -> frozenset[str]:
        found = {EXEC_USER, LIVE_STDIO, NETWORK_NONE, NETWORK_ALLOWLIST, NETWORK_SWITCH, DOCKER_IMAGE, SNAPSHOT, SERVICES}
        if not self._options.hosts:
            found.add(BESIDE)  # where hosts have slots, trials that each hold one could wait for each other's
        if self._found is not None and any("nvidia" in host.engine.runtimes for host in self._found.found):
            found.add(GPUS)
        return frozenset(found)

    def check(self, spec: EnvironmentSpec) -> None:
        self._checks.task(spec, [host.engine for host in self._hosts.open()])

    async def prepare(self, spec: EnvironmentSpec, *, force: bool = False, sink: OutputSink | None = None) -> str:
        if force:
            self._forced.add(spec.digest)
        while True:
            host = await self._hosts.pick(spec)
            try:
                image = await host.prepare(spec, force=force, sink=sink, pinned=self._pinned.get(spec.digest))
            except SandboxError:
                if not await self._hosts.doubt(host):
                    raise
            else:
                if spec.docker_image is not None and (pinned := host.images.pinned(image)) is not None:
                    self._pinned[spec.digest] = pinned
                return image

    async def start(self, spec: EnvironmentSpec, image: str) -> DockerEnvironment:
        while True:
            lease = await self._hosts.take(spec)
            started = None
            try:
                image = await self._image(lease.value, spec, image)
                started = await lease.value.start(spec, image, _Place(self._hosts, lease))
                return started
            except SandboxError:
                if not await self._hosts.is_lost(lease):
                    raise
            finally:
                if started is None:
                    lease.release()

    async def snapshot(
        self,
        spec: EnvironmentSpec,
        image: str,
        key: str,
        change: Callable[[Environment], Awaitable[None]],
        *,
        force: bool = False,
    ) -> str | None:
        if self._hosts.several or compose_file_of(spec) is not None:
            return None  # it would have to be on every host; a task's own file names the image of each service
        images = (await self._hosts.reach())[0].images
        tag = await images.snapshot_tag(image, key)
        if not force and await images.inspect(tag) is not None:
            return tag
        environment = await self.start(spec, image)
        try:
            await change(environment)
            await images.commit(environment.container_id, tag, image)
        finally:
            await run_shielded(environment.stop())
        return tag

    async def remove(self, image: str) -> None:
        for host in await self._hosts.reach():
            await host.remove(image)

    async def reap(self, job_id: str) -> Sequence[str]:
        removed: list[str] = []
        several = self._hosts.several
        found = await self._hosts.reach()
        faults = [f"{host} does not answer" for host in self._hosts.hosts if host not in found]
        for host in found:
            try:
                removed += [f"{line} of {host}" if several else line for line in await host.reap(job_id)]
            except SandboxError as error:
                faults.append(f"{host}: {error}" if several else str(error))
        if faults:
            raise TeardownError(f"what the job left there was not all looked for: {'; '.join(faults)}", removed)
        return removed

    async def aclose(self) -> None:
        if self._found is not None:
            await self._found.aclose()
        self._blocking.close()

    @property
    def _hosts(self) -> Hosts:
        if self._found is None:
            hosts = [
                Host(endpoint, self._options, self._context, self._blocking, self._threads)
                for endpoint in endpoints_of(self._options, self._context.base_dir)
            ]
            self._found = Hosts(hosts, self._context)
        return self._found

    async def _image(self, host: Host, spec: EnvironmentSpec, image: str) -> str:
        if not self._hosts.several:
            return image
        return await host.image(spec, force=spec.digest in self._forced, pinned=self._pinned.get(spec.digest))


class _Place:
    """The Place of a trial on the host of its lease."""

    def __init__(self, hosts: Hosts, lease: Lease[Host]) -> None:
        self._hosts = hosts
        self._lease = lease

    def lost(self, text: str) -> EnvironmentLostError:
        return self._hosts.lost(self._lease, text)

    def free(self) -> None:
        self._lease.release(worked=True)
