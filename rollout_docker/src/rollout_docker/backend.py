"""`type: docker`: what it can do here, images, starting containers, and what a dead job left."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from rollout.core.aio import Blocking, Once, run_shielded
from rollout.core.errors import EnvironmentLostError, ResourceError, SandboxError, StartError, TaskError, TeardownError
from rollout.core.protocols import API_VERSION, DOCKER_IMAGE, EXEC_USER, GPUS, LIVE_STDIO, NETWORK_NONE, BackendContext
from rollout.core.quantity import parse_bytes
from rollout.core.types import EnvironmentSpec, OutputSink, Struct
from rollout_docker.command import Container
from rollout_docker.compose import MAIN, Project, built_services, compose_file_of, remove_projects, service_image, why_not
from rollout_docker.engine import Engine
from rollout_docker.environment import DockerEnvironment, remove_container
from rollout_docker.images import Images, dockerfile_of
from rollout_docker.oom import OomWatch
from rollout_docker.options import DockerOptions

logger = logging.getLogger(__name__)
_MAX_THREADS = 64
_MIN_MEMORY_BYTES = 6 * 1024**2
_FULL = re.compile(r"no space left|cannot allocate memory|non-overlapping IPv4|no available IPv4|device driver|cannot fork", re.I)


class DockerBackend:
    """Containers of a Docker engine, one per trial."""

    api_version: ClassVar[tuple[int, int]] = API_VERSION
    options_type: ClassVar[type[Struct]] = DockerOptions

    def __init__(self, options: DockerOptions, context: BackendContext) -> None:
        self._options = options
        self._context = context
        self._threads = min(context.concurrency, _MAX_THREADS) + 4
        self._blocking = Blocking(self._threads, "rollout-docker")
        self._found: Engine | None = None
        self._refused: SandboxError | None = None
        self._finding = asyncio.Lock()
        self._images: Images | None = None
        self._oom: OomWatch | None = None
        self._inspected: Once[dict[str, Any]] = Once(keep_errors=False)
        self._usable: Once[None] = Once(keep_errors=False)  # one look per image
        self._warned: set[str] = set()
        self._compose: tuple[str | None] | None = None  # why it cannot be used, once that is known
        self._configs: dict[str, dict[str, Any]] = {}
        self._service_images: dict[str, list[str]] = {}

    @property
    def capabilities(self) -> frozenset[str]:
        found = {EXEC_USER, LIVE_STDIO, NETWORK_NONE, DOCKER_IMAGE}
        if self._found is not None and "nvidia" in self._found.runtimes:
            found.add(GPUS)
        return frozenset(found)

    def check(self, spec: EnvironmentSpec) -> None:
        engine = self._engine_now()
        task = spec.task_name
        file = compose_file_of(spec)
        if file is not None and (missing := self._compose_missing()) is not None:
            raise TaskError(f"{task} has environment/{file.name}, and {missing}")
        if file is None and spec.docker_image is None and dockerfile_of(spec) is None:
            raise TaskError(f"{task} has no environment/Dockerfile and names no docker_image, and type: docker needs one of them")
        if spec.resources.gpus and "nvidia" not in engine.runtimes:
            raise TaskError(
                f"{task} needs {spec.resources.gpus} GPUs: the engine has no nvidia runtime (nvidia-container-toolkit)"
            )
        if (spec.resources.memory_bytes or _MIN_MEMORY_BYTES) < _MIN_MEMORY_BYTES:
            raise TaskError(f"{task} asks for {spec.resources.memory_bytes} bytes of memory; a container has at least 6Mi")
        self._warn_of(engine, spec)

    async def prepare(self, spec: EnvironmentSpec, *, force: bool = False, sink: OutputSink | None = None) -> str:
        images = await self._image_store()
        if compose_file_of(spec) is None:
            return await images.prepare(spec, force=force, sink=sink)
        return await self._prepare_services(images, spec, force, sink)

    async def start(self, spec: EnvironmentSpec, image: str) -> DockerEnvironment:
        engine = await self._engine()
        if self._oom is None:
            self._oom = OomWatch(engine, self._context.job_id)
        name = f"{_prefix(self._context.job_id)}-{os.urandom(6).hex()}"
        if compose_file_of(spec) is not None:
            return await self._start_services(engine, spec, image, name)
        starting = asyncio.ensure_future(self._start(engine, spec, image, name))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await run_shielded(_undo(starting))
            raise

    async def remove(self, image: str) -> None:
        if self._images is not None:
            for name in [*self._service_images.pop(image, []), image]:
                await self._images.remove(name)

    async def reap(self, job_id: str) -> Sequence[str]:
        engine = await self._engine()
        removed = list(await remove_projects(engine, f"{_prefix(job_id)}-"))
        query = {"all": 1, "filters": f'{{"label": ["rollout.job={job_id}"]}}'}
        for found in await engine.call("GET", "/containers/json", query=query):
            name = found["Names"][0].lstrip("/") if found.get("Names") else found["Id"][:12]
            await remove_container(Container(engine, found["Id"], found["Id"], "/"))
            removed.append(f"container {name}")
        return removed

    async def aclose(self) -> None:
        oom, self._oom = self._oom, None
        if oom is not None:
            await oom.aclose()
        engine, self._found = self._found, None
        if engine is not None:
            engine.close()
        self._blocking.close()

    async def _start(self, engine: Engine, spec: EnvironmentSpec, image: str, name: str) -> DockerEnvironment:
        images = await self._image_store()
        assert self._oom is not None
        container = Container(engine, name, name, "/")
        try:
            details = await self._inspected(image, lambda: self._inspect(images, spec, image))
            container.workdir = spec.workdir or details.get("WorkingDir") or "/"
            body = self._body(engine, spec, image, container.workdir)
            query = {"name": name, **({"platform": self._options.platform} if self._options.platform else {})}
            container.id = (await engine.call("POST", "/containers/create", body, query))["Id"]
            await engine.call("POST", f"/containers/{container.id}/start")
            await self._usable(image, container.probe)
        except SandboxError as error:
            self._inspected.forget(image)
            if isinstance(error, EnvironmentLostError):
                error = StartError(f"its image's /bin/sh does not run, or the container ended at once: {error}")
            try:
                await remove_container(container)
            except TeardownError as left:
                logger.warning("%s; `rollout clean` tries again", left)
            kind = ResourceError if _FULL.search(str(error)) else StartError
            raise kind(f"the container of task {spec.task_name} does not start: {error}") from error
        limited = spec.resources.memory_bytes is not None
        return DockerEnvironment(container, self._blocking, self._oom.count if limited else None)

    async def _prepare_services(self, images: Images, spec: EnvironmentSpec, force: bool, sink: OutputSink | None) -> str:
        """Make the images of a task of several services; the reference of the one that `main` is."""
        engine = await self._engine()
        tag = images.tag(spec)
        usual = spec.docker_image or tag
        folder = self._context.work_dir / "compose"
        project = Project(engine, f"{_prefix(self._context.job_id)}-build", spec, usual, folder / f"build-{spec.digest[:40]}")
        config = await project.read()
        image = str(config["services"][MAIN]["image"])
        names = [service_image(tag, service) for service in built_services(config)]
        if force or None in [await images.inspect(name) for name in names]:
            await project.build(config, tag, force=force, sink=sink)
            for name in names:
                images.made(name)
        if MAIN in built_services(config):
            image = service_image(tag, MAIN)
        elif image == usual:
            image = await images.prepare(spec, force=force, sink=sink)
        self._service_images[image] = [name for name in names if name != image]
        self._configs[spec.digest] = config
        return image

    async def _start_services(self, engine: Engine, spec: EnvironmentSpec, image: str, name: str) -> DockerEnvironment:
        images = await self._image_store()
        if spec.digest not in self._configs:
            await self._prepare_services(images, spec, False, None)
        project = Project(engine, name, spec, image, self._context.work_dir / "compose" / name)
        try:
            container = await project.up(self._configs[spec.digest], images.tag(spec), self._main(engine, spec))
            await container.probe()
        except SandboxError as error:
            await project.down()
            raise StartError(str(error)) from error
        except asyncio.CancelledError:
            await run_shielded(project.abandon())
            raise
        assert self._oom is not None
        limited = spec.resources.memory_bytes is not None
        return DockerEnvironment(container, self._blocking, self._oom.count if limited else None, project.down)

    def _main(self, engine: Engine, spec: EnvironmentSpec) -> dict[str, Any]:
        """What holds for the service `main`, whatever the task's file says. Values of variables are not written to disk."""
        resources, options = spec.resources, self._options
        main: dict[str, Any] = {
            "labels": {**spec.labels, "rollout.job": self._context.job_id},
            "environment": dict.fromkeys(spec.env),
        }
        if resources.cpus is not None:
            main["cpus"] = min(resources.cpus, engine.cpus or resources.cpus)
        if resources.memory_bytes is not None:
            main["mem_limit"] = main["memswap_limit"] = resources.memory_bytes
        if options.pids is not None:
            main["pids_limit"] = options.pids
        if options.shm_size is not None:
            main["shm_size"] = parse_bytes(options.shm_size)[0]
        if options.ulimits:
            main["ulimits"] = options.ulimits
        if options.mounts:
            main["volumes"] = options.mounts
        if spec.workdir is not None:
            main["working_dir"] = spec.workdir
        return main

    def _compose_missing(self) -> str | None:
        if self._compose is None:
            self._compose = (why_not(),)
        return self._compose[0]

    async def _inspect(self, images: Images, spec: EnvironmentSpec, image: str) -> dict[str, Any]:
        details = await images.inspect(image)
        if details is None:  # somebody removed it since
            remade = await images.prepare(spec, force=False, sink=None)
            details = await images.inspect(image)
            if details is None:
                raise StartError(f"the image {image} of task {spec.task_name} is gone; it was made anew as {remade}")
        return dict(details.get("Config") or {})

    def _body(self, engine: Engine, spec: EnvironmentSpec, image: str, workdir: str) -> dict[str, Any]:
        options, resources = self._options, spec.resources
        host: dict[str, Any] = {
            "Init": True,
            "NetworkMode": "none" if spec.network == "none" else options.network or "default",
            "LogConfig": {"Type": "none"},
            "PidsLimit": options.pids,
            "Binds": options.mounts,
            "Ulimits": [{"Name": name, "Soft": limit, "Hard": limit} for name, limit in options.ulimits.items()],
        }
        if resources.cpus is not None:
            host["NanoCpus"] = int(min(resources.cpus, engine.cpus or resources.cpus) * 1e9)
        if resources.memory_bytes is not None:
            host["Memory"] = host["MemorySwap"] = resources.memory_bytes
        if resources.storage_bytes is not None and engine.storage_limits:
            host["StorageOpt"] = {"size": str(resources.storage_bytes)}
        if resources.gpus:
            host["DeviceRequests"] = [{"Driver": "nvidia", "Count": resources.gpus, "Capabilities": [["gpu"]]}]
        if options.shm_size is not None:
            host["ShmSize"] = parse_bytes(options.shm_size)[0]
        return {
            "Image": image,
            "Entrypoint": ["/bin/sh", "-c", "read _"],  # ends at once when told to, and needs no program but the shell
            "Cmd": [],
            "OpenStdin": True,
            "WorkingDir": workdir,
            "Env": [f"{name}={value}" for name, value in spec.env.items()],
            "Labels": {**spec.labels, "rollout.job": self._context.job_id},
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": host,
        }

    def _warn_of(self, engine: Engine, spec: EnvironmentSpec) -> None:
        resources = spec.resources
        if engine.missing_limits:
            self._warn("limits", f"type: docker: the engine cannot limit {', '.join(engine.missing_limits)} on this machine")
        if resources.storage_bytes is not None and not engine.storage_limits:
            self._warn("storage", "type: docker: limits of storage are not enforced; the engine's storage driver cannot")
        if engine.cpus and (resources.cpus or 0) > engine.cpus:
            self._warn(
                "cpus", f"type: docker: the engine has {engine.cpus} CPUs, and {spec.task_name} asks for {resources.cpus:g}"
            )

    def _warn(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            self._context.warn(message)

    async def _image_store(self) -> Images:
        engine = await self._engine()
        if self._images is None:
            self._images = Images(
                engine, self._blocking, self._options, offline=self._context.offline, job_id=self._context.job_id
            )
        return self._images

    async def _engine(self) -> Engine:
        async with self._finding:
            if self._found is not None:
                return self._found
            return await self._blocking(self._engine_now)

    def _engine_now(self) -> Engine:
        """The engine. One that does not answer is not asked again for every task."""
        if self._refused is not None:
            raise self._refused
        if self._found is None:
            try:
                self._found = Engine.find(self._options.host, self._threads)
            except SandboxError as error:
                self._refused = error
                raise
        assert self._found is not None
        return self._found


def _prefix(job_id: str) -> str:
    """What the names of everything begin with that is made for a job."""
    return f"rollout-{job_id[:40]}"


async def _undo(starting: asyncio.Task[DockerEnvironment]) -> None:
    """Let a start that nobody wants any more come to its end, and remove what it made."""
    try:
        environment = await starting
    except SandboxError:
        return
    await environment.stop()
