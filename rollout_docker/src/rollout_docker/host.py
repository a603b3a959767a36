"""One engine of a job, and everything that the job has there: images, containers, projects."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from rollout.core.aio import Blocking, Once, run_shielded
from rollout.core.egress.access import accesses
from rollout.core.errors import (
    BuildError,
    EnvironmentLostError,
    ImageGoneError,
    ResourceError,
    SandboxError,
    StartError,
    TeardownError,
)
from rollout.core.protocols import BackendContext
from rollout.core.types import EnvironmentSpec, OutputSink
from rollout_docker.body import container_body, main_service
from rollout_docker.check import same_platform
from rollout_docker.command import Container
from rollout_docker.compose import MAIN, Project, built_services, compose_file_of, remove_projects, service_image
from rollout_docker.egress import ContainerNetwork, Relay, needs_relay, reap_networks
from rollout_docker.engine import Engine, Refused
from rollout_docker.environment import DockerEnvironment, remove_container
from rollout_docker.images import Images
from rollout_docker.oom import OomWatch
from rollout_docker.options import DockerOptions
from rollout_docker.where import Endpoint

logger = logging.getLogger(__name__)
_FULL = re.compile(r"no space left|cannot allocate memory|non-overlapping IPv4|no available IPv4|device driver|cannot fork", re.I)
_CONCURRENT_BUILDS = 2


class Place(Protocol):
    """A trial's place on a host."""

    def lost(self, text: str) -> EnvironmentLostError:
        """The error for what was there when the engine stopped answering."""
        ...

    def free(self) -> None:
        """Nothing is there any more. Idempotent."""
        ...


class Host:
    """An engine that a job uses. Found when it is first needed."""

    def __init__(
        self, endpoint: Endpoint, options: DockerOptions, context: BackendContext, blocking: Blocking, threads: int
    ) -> None:
        self.endpoint = endpoint
        self.found: Engine | None = None
        self.doubted = False
        """It did not answer when it was last heard of."""
        self._options = options
        self._context = context
        self._blocking = blocking
        self._threads = threads
        self._finding = threading.Lock()
        self._images: Images | None = None
        self._oom: OomWatch | None = None
        self._inspected: Once[dict[str, Any]] = Once(keep_errors=False)
        self._usable: Once[None] = Once(keep_errors=False)  # one look per image
        self._ready: Once[str] = Once()
        self._building = asyncio.Semaphore(_CONCURRENT_BUILDS)
        self._configs: dict[str, dict[str, Any]] = {}
        self._service_images: dict[str, list[str]] = {}
        self._relay_image = options.egress_image
        self._left: list[Callable[[], Awaitable[None]]] = []

    def __str__(self) -> str:
        return str(self.endpoint)

    def open(self) -> Engine:
        """The engine. Blocks.

        Raises:
            SandboxError: it does not answer.
        """
        with self._finding:
            if self.found is None:
                self.found = Engine.find(self.endpoint, self._threads)
            return self.found

    def suits(self, spec: EnvironmentSpec) -> bool:
        """Whether a task can run here at all."""
        return not spec.resources.gpus or (self.found is not None and "nvidia" in self.found.runtimes)

    async def prepare(self, spec: EnvironmentSpec, *, force: bool, sink: OutputSink | None, pinned: str | None = None) -> str:
        """Make the task's image, or images, here. `pinned`: what is fetched instead of `docker_image`, by its digest.

        Raises:
            BuildError, ImagePullError
        """
        self._ready.forget(spec.digest)
        return await self._ready(spec.digest, lambda: self._prepare(spec, force, sink, pinned))

    async def image(self, spec: EnvironmentSpec, *, force: bool, pinned: str | None) -> str:
        """The task's image here, made when this is the first trial on it here.

        Raises:
            BuildError, ImagePullError
        """
        try:
            return await self._ready(spec.digest, lambda: self._prepare_apart(spec, force, pinned))
        except SandboxError as error:
            if error.retryable or not isinstance(error, BuildError):
                self._ready.forget(spec.digest)
            raise

    async def _prepare_apart(self, spec: EnvironmentSpec, force: bool, pinned: str | None) -> str:
        async with self._building:
            return await self._prepare(spec, force, None, pinned)

    async def _prepare(self, spec: EnvironmentSpec, force: bool, sink: OutputSink | None, pinned: str | None) -> str:
        if needs_relay(spec):
            self._relay_image = await self.images.fetch(self._options.egress_image, sink)
        if compose_file_of(spec) is None:
            return await self.images.prepare(spec, force=force, sink=sink, pinned=pinned)
        return await self._prepare_services(spec, force, sink)

    async def start(self, spec: EnvironmentSpec, image: str, place: Place) -> DockerEnvironment:
        """Start a container, or a project of several.

        Raises:
            StartError, ResourceError
        """
        if self._oom is None:
            self._oom = OomWatch(self.engine, self._context.job_id)
        name = f"{prefix_of(self._context.job_id)}-{os.urandom(6).hex()}"
        if compose_file_of(spec) is not None:
            return await self._start_services(spec, image, name, place)
        starting = asyncio.ensure_future(self._start(spec, image, name, place))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await run_shielded(_undo(starting))
            raise

    async def remove(self, image: str) -> None:
        """Remove the image, and those of its services, if this job made it here."""
        if self._images is not None:
            for name in [*self._service_images.pop(image, []), image]:
                await self._images.remove(name)

    async def reap(self, job_id: str) -> Sequence[str]:
        """Remove everything that a dead job left here; what it was, a line each."""
        engine = self.engine
        removed = list(await remove_projects(engine, f"{prefix_of(job_id)}-"))
        query = {"all": 1, "filters": json.dumps({"label": [f"rollout.job={job_id}"]})}
        for found in await engine.call("GET", "/containers/json", query=query):
            name = found["Names"][0].lstrip("/") if found.get("Names") else found["Id"][:12]
            await remove_container(Container(engine, found["Id"], found["Id"], "/"))
            removed.append(f"container {name}")
        removed += await reap_networks(engine, job_id)
        if self._context.delete:
            removed += [f"image {image}" for image in await self.images.reap(job_id)]
        return removed

    async def sweep(self) -> None:
        """Remove what could not be removed while the engine did not answer."""
        left, self._left = self._left, []
        for remove in left:
            try:
                await remove()
            except TeardownError as error:
                logger.warning("%s: %s; `rollout clean` tries again", self, error)

    async def aclose(self) -> None:
        if self.found is not None:
            await self.sweep()
        oom, self._oom = self._oom, None
        if oom is not None:
            await oom.aclose()
        engine, self.found = self.found, None
        if engine is not None:
            await asyncio.to_thread(engine.close)

    @property
    def engine(self) -> Engine:
        assert self.found is not None, "the engine is found before anything is asked of it"
        return self.found

    @property
    def images(self) -> Images:
        if self._images is None:
            self._images = Images(self.engine, self._blocking, self._options, self._context)
        return self._images

    async def _start(self, spec: EnvironmentSpec, image: str, name: str, place: Place) -> DockerEnvironment:
        engine = self.engine
        assert self._oom is not None
        container = Container(engine, name, name, "/")
        relay: Relay | None = None

        async def remove() -> None:
            await remove_container(container)
            if relay is not None:
                await relay.remove()

        try:
            if needs_relay(spec):
                relay = await Relay.start(
                    engine, self._blocking, self._options, spec, name, self._relay_image, self._context.job_id
                )
            details = await self._inspected(image, lambda: self._inspect(spec, image))
            container.workdir = spec.workdir or details.get("WorkingDir") or "/"
            body = container_body(
                engine,
                self._options,
                spec,
                image=image,
                workdir=container.workdir,
                job_id=self._context.job_id,
                relay=relay,
            )
            query = {"name": name, **({"platform": self._options.platform} if self._options.platform else {})}
            container.id = (await engine.call("POST", "/containers/create", body, query))["Id"]
            network = ContainerNetwork(container, spec, self._options.network or "bridge", relay)
            if relay is not None and spec.network == "public":
                await network.set(accesses(spec)[0])
            await engine.call("POST", f"/containers/{container.id}/start")
            await self._usable(image, container.probe)
        except SandboxError as error:
            self._inspected.forget(image)
            self._ready.forget(spec.digest)
            if isinstance(error, EnvironmentLostError):
                error = StartError(
                    f"its image's /bin/sh does not run{await self._why(image)}, or the container ended at once: {error}"
                )
            try:
                await self._removing(remove)()
            except TeardownError as left:
                logger.warning("%s; `rollout clean` tries again", left)
            raise _kind_of(error)(f"the container of task {spec.task_name} does not start: {error}") from error
        return self._environment(spec, container, remove, place, network=network)

    def _environment(
        self,
        spec: EnvironmentSpec,
        container: Container,
        remove: Callable[[], Awaitable[None]],
        place: Place,
        services: Mapping[str, Container] = MappingProxyType({}),
        network: ContainerNetwork | None = None,
    ) -> DockerEnvironment:
        assert self._oom is not None
        for each in (container, *services.values()):
            each.unreachable = place.lost
        removing = self._removing(remove)

        async def end() -> None:
            try:
                await removing()
            finally:
                place.free()

        limited = spec.resources.memory_bytes is not None
        counted = self._oom.count if limited else None
        return DockerEnvironment(container, self._blocking, counted, end, services, network.set if network else None)

    def _removing(self, remove: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """The same, remembered for later when it fails."""

        async def removing() -> None:
            try:
                await remove()
            except TeardownError:
                self._left.append(remove)
                raise

        return removing

    async def _prepare_services(self, spec: EnvironmentSpec, force: bool, sink: OutputSink | None) -> str:
        """Make the images of a task of several services; the reference of the one that `main` is."""
        images = self.images
        tag = images.tag(spec)
        usual = spec.docker_image or tag
        project = self._project(f"{prefix_of(self._context.job_id)}-build", spec, usual, f"build-{spec.digest[:40]}")
        config = await project.read()
        image = str(config["services"][MAIN]["image"])
        names = [service_image(tag, service) for service in built_services(config)]
        if force or None in [await images.inspect(name) for name in names]:
            await project.build(config, tag, images.labels(spec), force=force, sink=sink)
            for name in names:
                images.made(name)
        if MAIN in built_services(config):
            image = service_image(tag, MAIN)
        elif image == usual:
            image = await images.prepare(spec, force=force, sink=sink)
        self._service_images[image] = [name for name in names if name != image]
        self._configs[spec.digest] = config
        return image

    async def _start_services(self, spec: EnvironmentSpec, image: str, name: str, place: Place) -> DockerEnvironment:
        if spec.digest not in self._configs:
            await self._prepare_services(spec, False, None)
        project = self._project(name, spec, image, name)
        main = main_service(self.engine, self._options, spec, job_id=self._context.job_id)
        try:
            containers = await project.up(self._configs[spec.digest], self.images.tag(spec), main)
            container = containers.pop(MAIN)
            await container.probe()
        except SandboxError as error:
            await self._removing(project.down)()
            raise StartError(str(error)) from error
        except asyncio.CancelledError:
            await run_shielded(project.abandon())
            raise
        return self._environment(spec, container, project.down, place, containers)

    def _project(self, name: str, spec: EnvironmentSpec, image: str, folder: str) -> Project:
        return Project(self.engine, name, spec, image, self._context.work_dir / "compose" / folder)

    async def _why(self, image: str) -> str:
        """What may keep an image's programs from running, in brackets."""
        platform = await self._blocking(self.engine.platform_of, image)
        if platform is None or same_platform(platform, self.engine.platform):
            return ""
        return f" (the image is for {platform}, the engine is {self.engine.platform})"

    async def _inspect(self, spec: EnvironmentSpec, image: str) -> dict[str, Any]:
        details = await self.images.inspect(image)
        if details is None:  # somebody removed it since
            remade = await self.images.prepare(spec, force=False, sink=None)
            details = await self.images.inspect(image)
            if details is None:
                raise StartError(f"the image {image} of task {spec.task_name} is gone; it was made anew as {remade}")
        return dict(details.get("Config") or {})


def prefix_of(job_id: str) -> str:
    """What the names of everything begin with that is made for a job."""
    return f"rollout-{job_id[:40]}"


async def _undo(starting: asyncio.Task[DockerEnvironment]) -> None:
    """Let a start that nobody wants any more come to its end, and remove what it made."""
    try:
        environment = await starting
    except SandboxError:
        return
    await environment.stop()


def _kind_of(error: SandboxError) -> type[SandboxError]:
    """Why a container did not start, as core wants to know it."""
    if isinstance(error, Refused) and error.status == 404 and "no such image" in str(error).lower():
        return ImageGoneError
    return ResourceError if _FULL.search(str(error)) else StartError
