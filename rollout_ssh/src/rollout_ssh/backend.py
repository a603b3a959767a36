"""`type: ssh`: the backend of its mode."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, cast

from rollout.core.protocols import API_VERSION, BackendContext, Environment, EnvironmentBackend, SnapshotBackend
from rollout.core.types import EnvironmentSpec, OutputSink, Struct
from rollout_ssh.containers import ContainerHosts
from rollout_ssh.engines import container_hosts, docker_hosts
from rollout_ssh.hosts import OwnHosts
from rollout_ssh.options import SshOptions


class SshBackend:
    """Environments on other machines."""

    api_version: ClassVar[tuple[int, int]] = API_VERSION
    options_type: ClassVar[type[Struct]] = SshOptions

    def __init__(self, options: SshOptions, context: BackendContext) -> None:
        self._options = options
        self._context = context
        self._made: OwnHosts | ContainerHosts | EnvironmentBackend | None = None

    @property
    def _backend(self) -> OwnHosts | ContainerHosts | EnvironmentBackend:
        if self._made is None:
            if self._options.mode == "docker":
                self._made = docker_hosts(self._options, self._context)
            elif self._options.mode == "apptainer":
                self._made = container_hosts(self._options, self._context)
            else:
                self._made = OwnHosts(self._options, self._context)
        return self._made

    @property
    def capabilities(self) -> frozenset[str]:
        return self._backend.capabilities

    def check(self, spec: EnvironmentSpec) -> None:
        self._backend.check(spec)

    async def prepare(self, spec: EnvironmentSpec, *, force: bool = False, sink: OutputSink | None = None) -> str:
        return await self._backend.prepare(spec, force=force, sink=sink)

    async def start(self, spec: EnvironmentSpec, image: str) -> Environment:
        return await self._backend.start(spec, image)

    async def snapshot(
        self,
        spec: EnvironmentSpec,
        image: str,
        key: str,
        change: Callable[[Environment], Awaitable[None]],
        *,
        force: bool = False,
    ) -> str | None:
        return await cast(SnapshotBackend, self._backend).snapshot(spec, image, key, change, force=force)

    async def remove(self, image: str) -> None:
        await self._backend.remove(image)

    async def reap(self, job_id: str) -> Sequence[str]:
        return await self._backend.reap(job_id)

    async def aclose(self) -> None:
        if self._made is not None:
            await self._made.aclose()
