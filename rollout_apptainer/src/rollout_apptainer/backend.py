"""`type: apptainer`: what it can do here, starting instances, and what a dead job left."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import stat
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import ClassVar

from rollout.core.aio import Blocking
from rollout.core.errors import ResourceError, SandboxError, StartError, TaskError
from rollout.core.protocols import (
    API_VERSION,
    BESIDE,
    DOCKER_IMAGE,
    EXEC_USER,
    GPUS,
    LIVE_STDIO,
    NETWORK_NONE,
    SNAPSHOT,
    BackendContext,
    ContainerCommands,
    Environment,
)
from rollout.core.sandbox.config import DEFAULT_WORKDIR
from rollout.core.sandbox.environment import SandboxEnvironment
from rollout.core.sandbox.inside import cgroups
from rollout.core.sandbox.inside.accounts import subordinate_ids
from rollout.core.sandbox.layers import ImageConfig
from rollout.core.sandbox.limits import group_limits, unenforced
from rollout.core.types import EnvironmentSpec, OutputSink, Struct
from rollout_apptainer import gpus, images, namespaces, program, sif
from rollout_apptainer.cache import ImageCache
from rollout_apptainer.images import Images
from rollout_apptainer.instance import Instances, Wanted, owned, wait_for_end
from rollout_apptainer.options import ApptainerOptions
from rollout_apptainer.program import Program, complaint
from rollout_apptainer.sources import Finder

logger = logging.getLogger(__name__)
_MAX_THREADS = 64
_ENDED_AT_ONCE = 8
_MEBIBYTE = 1 << 20
_MIN_IMAGE_MEBIBYTES = 64
_DEFAULT_STORAGE = 10 * 1024**3
_ELSEWHERE = "name another folder in environment.options.scratch"
_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
# Nothing of this machine: no home, no /tmp, no working folder, no variables, and no privileges for what the instance itself runs.
_ISOLATION = ("--containall", "--cleanenv", "--no-mount", "home,tmp,cwd,hostfs,bind-paths", "--no-privs")
_ONE_ID = (
    "this user has no subordinate ids (a line in /etc/subuid and /etc/subgid, and newuidmap): a trial has root and no one else, "
    "so that apt-get, useradd and chown fail in it, also while an image is built"
)


class ApptainerBackend:
    """Instances of Apptainer or Singularity, one per trial."""

    api_version: ClassVar[tuple[int, int]] = API_VERSION
    options_type: ClassVar[type[Struct]] = ApptainerOptions
    placement: ClassVar[frozenset[str]] = frozenset({"cache", "images", "program", "scratch"})

    def __init__(self, options: ApptainerOptions, context: BackendContext) -> None:
        self._options = options
        self._context = context
        self._blocking = Blocking(min(context.concurrency, _MAX_THREADS) + 4, "rollout-apptainer")
        self._finder = Finder(options, context.base_dir, offline=context.offline)
        cache = context.base_dir / os.path.expanduser(options.cache) if options.cache else context.cache_dir / "images"
        self._cache = ImageCache(cache, self._blocking, context.job_id)
        self._program: Program | None = None
        self._refused: SandboxError | None = None
        self._ids = "all" if os.geteuid() == 0 else "one"
        self._groups: dict[str, list[str]] = {}
        self._gpus: gpus.Gpus | None = None
        self._images: Images | None = None
        self._warned: set[str] = set()
        self._finding = asyncio.Lock()

    @property
    def capabilities(self) -> frozenset[str]:
        found = {BESIDE, LIVE_STDIO, NETWORK_NONE, DOCKER_IMAGE, SNAPSHOT}
        if self._ids != "one":
            found.add(EXEC_USER)
        if self._gpus is not None:
            found.add(GPUS)
        return frozenset(found)

    def check(self, spec: EnvironmentSpec) -> None:
        self._find()
        wanted = spec.resources.gpus or 0
        if wanted and self._gpus is None:
            raise TaskError(f"{spec.task_name} needs {wanted} GPUs, and this machine has neither /dev/nvidiactl nor /dev/kfd")
        if self._gpus is not None and wanted > self._gpus.total:
            raise TaskError(f"{spec.task_name} needs {wanted} GPUs, and there are {self._gpus.total}")
        self._check_source(spec)
        self._warn_of(spec)

    async def prepare(self, spec: EnvironmentSpec, *, force: bool = False, sink: OutputSink | None = None) -> str:
        image = await (await self._image_store()).prepare(spec, force=force, sink=sink)
        if not Path(image).is_dir():
            self._context.resolved(image, f"sif:{(await self._blocking(sif.read, Path(image))).id}")
        return image

    async def start(self, spec: EnvironmentSpec, image: str) -> SandboxEnvironment:
        store = await self._image_store()
        assert self._program is not None
        try:
            await store.check(image)
        except StartError:
            store.forget(image)
            if not await self._made_anew(store, spec, image):
                raise
        config = await store.config(image)
        lent = await self._gpus.lend(spec.resources.gpus) if self._gpus is not None and spec.resources.gpus else []
        try:
            name = self._name()
            folder = self._scratch(self._context.job_id) / name
            disk = ("--overlay", str(folder / ("overlay" if self._options.disk == "folder" else "disk.img")))
            wanted = self._wanted(spec, config, name, image, folder, disk, lent)
        except BaseException:
            await self._give_back(lent)
            raise
        return await self._instances().start(wanted, lambda: self._give_back(lent), self._disk(spec, folder))

    async def snapshot(
        self,
        spec: EnvironmentSpec,
        image: str,
        key: str,
        change: Callable[[Environment], Awaitable[None]],
        *,
        force: bool = False,
    ) -> str | None:
        if self._options.mounts or spec.resources.gpus:
            return None  # what is bound needs its place in a folder that is written to, and would leave it there

        def wanted(config: ImageConfig, root: Path, folder: Path) -> Wanted:
            return self._wanted(spec, config, self._name(), str(root), folder, ("--writable",), [])

        store = await self._image_store()
        if not store.packs:
            return None
        return await store.snapshot(Path(image), (key, self._network(spec)), wanted, change, force=force)

    def check_elsewhere(self, spec: EnvironmentSpec, *, has_image: bool) -> None:
        if spec.resources.gpus:
            raise TaskError(f"{spec.task_name} needs {spec.resources.gpus} GPUs, which can be lent on this machine only")
        self._finder.refuse_services(spec)
        if not has_image:
            self._find()
            self._check_source(spec)

    async def commands(self, spec: EnvironmentSpec, image: str | None, *, ids: str) -> ContainerCommands:
        config = await (await self._image_store()).config(image) if image is not None else ImageConfig()
        privileges = self._privileges(ids)
        disk = "overlay" if self._options.disk == "folder" else "disk.img"
        arguments = self._arguments(spec, ("--overlay", f"{{folder}}/{disk}"), False, privileges)
        look = ("-s", "exec", *_ISOLATION, *privileges, "--pwd", "/", "{image}", "cat", "/proc/self/environ")
        return ContainerCommands(
            programs=(self._options.program,) if self._options.program else program.NAMES,
            before=() if self._options.disk == "folder" else (self._disk_arguments(spec, f"{{folder}}/{disk}", privileges),),
            start=("-s", "instance", "start", *arguments, "--pid-file", "{folder}/pid", "{image}", "{name}"),
            end=("-s", "instance", "stop", "--signal", "KILL", "{name}"),
            environ=None if image is not None else look,
            env={**_ENV, **config.env, **spec.env},
            user=config.user,
            workdir=spec.workdir or config.workdir or DEFAULT_WORKDIR,
        )

    async def remove(self, image: str) -> None:
        await self._cache.remove(Path(image))

    async def reap(self, job_id: str) -> Sequence[str]:
        removed = []
        await self._found()
        instances = self._instances()
        at_once = asyncio.Semaphore(_ENDED_AT_ONCE)

        async def end(name: str) -> None:
            async with at_once:  # each takes a second or two, most of which is waiting
                await instances.end(name)
            removed.append(f"instance {name}")

        await asyncio.gather(*(end(name) for name in owned(await instances.names(), _prefix(job_id))))
        for path in await self._blocking(_remove_groups, _prefix(job_id)):
            removed.append(f"control group {path}")
        scratch = self._scratch_path(job_id)
        if scratch.exists():
            for folder in sorted(await self._blocking(lambda: list(scratch.iterdir()))):
                await self._blocking(wait_for_end, folder)
                await self._blocking(namespaces.remove, [folder])
                removed.append(f"sandbox files {folder}")
            await self._blocking(namespaces.remove, [scratch])
        elsewhere: dict[str, int] = {}
        for record in await self._blocking(lambda: list(self._records(job_id).glob("*.json"))):
            host = await self._blocking(_host_of, record)
            if host == socket.gethostname():
                await self._blocking(record.unlink, missing_ok=True)
            else:
                elsewhere[host] = elsewhere.get(host, 0) + 1
        for host, count in sorted(elsewhere.items()):
            self._context.warn(f"{count} instances of this job may still run on {host}: run `rollout clean` there too")
        return removed

    async def aclose(self) -> None:
        await self._blocking(self._cache.close)
        scratch = self._scratch_path(self._context.job_id)
        for folder in (scratch, self._records(self._context.job_id)):
            await self._blocking(_remove_if_empty, folder)
        self._blocking.close()

    def _name(self) -> str:
        return f"{_prefix(self._context.job_id)}{os.urandom(6).hex()}"

    def _wanted(
        self,
        spec: EnvironmentSpec,
        config: ImageConfig,
        name: str,
        image: str,
        folder: Path,
        disk: Sequence[str],
        lent: list[str],
    ) -> Wanted:
        """The instance for a trial. `disk`: the arguments that say where its writes go. `lent`: its GPUs."""
        limits = group_limits(spec.resources, self._options.pids)
        return Wanted(
            name=name,
            image=image,
            folder=folder,
            record=self._records(self._context.job_id) / f"{name}.json",
            about={"job": self._context.job_id, "trial": spec.labels.get("rollout.trial", spec.task_name)},
            arguments=self._arguments(spec, disk, bool(lent), self._privileges()),
            groups=self._groups,
            limits={limit: value for limit, value in limits.items() if limit in self._groups},
            env={**_ENV, **config.env, **self._variables(lent), **spec.env},
            user=config.user,
            workdir=spec.workdir or config.workdir or DEFAULT_WORKDIR,
            max_file_bytes=spec.resources.storage_bytes or 0,
            only_root=_ONE_ID if self._ids == "one" else None,
        )

    def _arguments(self, spec: EnvironmentSpec, disk: Sequence[str], gpu: bool, privileges: Sequence[str]) -> tuple[str, ...]:
        arguments = [*_ISOLATION, "--uts", *privileges]
        if self._network(spec) == "none":
            arguments += ["--net", "--network", "none"]
        arguments += disk
        if gpu and self._gpus is not None:
            arguments.append(f"--{self._gpus.kind}")
        for mount in self._options.mounts:
            arguments += ["--bind", mount]
        return tuple(arguments)

    def _check_source(self, spec: EnvironmentSpec) -> None:
        recipe = self._finder.source(spec).recipe
        if recipe is not None and recipe.unheard is not None:
            self._warn("healthcheck", recipe.unheard)

    def _disk(self, spec: EnvironmentSpec, folder: Path) -> Callable[[], Awaitable[None]] | None:
        """Makes what holds the writes of a trial, where that is more than a folder."""
        if self._options.disk != "image":
            return None
        found = self._program

        async def make() -> None:
            assert found is not None
            image = str(folder / "disk.img")
            done = await found.run(self._disk_arguments(spec, image, self._privileges()), tmp=folder)
            if done.exit_code != 0:
                raise ResourceError(f"the disk of a trial cannot be made in {folder}: {complaint(done.stderr)}")

        return make

    def _disk_arguments(self, spec: EnvironmentSpec, path: str, privileges: Sequence[str]) -> tuple[str, ...]:
        size = max((spec.resources.storage_bytes or _DEFAULT_STORAGE) // _MEBIBYTE, _MIN_IMAGE_MEBIBYTES)
        return ("-s", "overlay", "create", "--sparse", "--size", str(size), *privileges[:1], path)

    def _privileges(self, ids: str | None = None) -> tuple[str, ...]:
        ids = ids or self._ids
        if ids == "all" and not self._options.fakeroot:
            return ()
        # else the machine's `fakeroot` would be preloaded in the instance, which may have another C library
        return ("--fakeroot", "--ignore-fakeroot-command") if ids == "one" else ("--fakeroot",)

    def _variables(self, lent: list[str]) -> dict[str, str]:
        return self._gpus.variables(lent) if self._gpus is not None and lent else {}

    async def _give_back(self, lent: list[str]) -> None:
        if self._gpus is not None and lent:
            await self._gpus.give_back(lent)

    async def _made_anew(self, store: Images, spec: EnvironmentSpec, image: str) -> bool:
        """A cached image that was damaged or removed meanwhile is made once more."""
        return Path(image).parent == self._cache.root and await store.prepare(spec, force=False, sink=None) == image

    def _network(self, spec: EnvironmentSpec) -> str:
        return self._options.network or ("none" if spec.network == "none" else "host")

    def _instances(self) -> Instances:
        assert self._program is not None
        return Instances(self._program, self._blocking)

    async def _image_store(self) -> Images:
        await self._found()
        if self._images is None:
            assert self._program is not None
            self._images = Images(
                self._program,
                self._blocking,
                self._cache,
                self._finder,
                self._instances(),
                scratch=lambda kind: Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=self._scratch(self._context.job_id))),
                privileges=self._privileges(),
                owners="one" if self._ids == "one" else "own" if self._options.fakeroot and os.geteuid() == 0 else "all",
                name=self._name,
                isolation=_ISOLATION,
            )
        return self._images

    async def _found(self) -> None:
        async with self._finding:
            if self._program is None:
                try:
                    await self._blocking(self._find)
                except StartError:
                    raise
                except SandboxError as error:
                    raise StartError(str(error)) from error

    def _find(self) -> None:
        """Look at the machine, once. Raises SandboxError."""
        if self._refused is not None:
            raise self._refused
        if self._program is not None:
            return
        try:
            found = program.find(self._options.program)
            if os.geteuid() == 0 and self._options.fakeroot and subordinate_ids(0) is None:
                raise SandboxError(f"type: apptainer: `fakeroot: true` needs {images.ROOT_IDS}")
            if os.geteuid() != 0 or self._options.fakeroot:
                ids = namespaces.user_ids()
                self._ids = "ranges" if ids == "all" else ids
            self._scratch(self._context.job_id)
        except SandboxError as error:
            self._refused = error
            raise
        self._groups = cgroups.find()
        kind = self._options.gpu or gpus.kind_here()
        if kind is not None and (names := gpus.names_here(kind)):
            self._gpus = gpus.Gpus(kind, names)
        if self._ids == "one":
            self._warn("ids", f"type: apptainer: {_ONE_ID}")
        if os.geteuid() != 0 and not _mounts_in_user_space():
            self._warn("fuse", "type: apptainer: this user may not open /dev/fuse: SIF files are unpacked for each trial")
        self._program = found

    def _warn_of(self, spec: EnvironmentSpec) -> None:
        if self._network(spec) == "host" and self._context.concurrency > 1:
            text = "trials that run at once share this machine's network: two that listen on the same port collide"
            self._warn("ports", f"type: apptainer: {text} (`network: none` in the task, or options.network, separates them)")
        line = unenforced(
            spec.resources,
            self._options.pids,
            self._groups,
            tmpfs=self._options.disk != "folder",
            where="type: apptainer",
            instead="environment.options.disk: image",
        )
        if line is not None:
            self._warn("limits", line)

    def _warn(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            self._context.warn(message)

    def _records(self, job_id: str) -> Path:
        """Files that say which instances there are, and on which machine: in the job's work folder, which machines may share."""
        return (
            self._context.work_dir.absolute().parent / job_id / "instances"
            if job_id != self._context.job_id
            else (self._context.work_dir.absolute() / "instances")
        )

    def _scratch_path(self, job_id: str) -> Path:
        top = self._options.scratch
        folder = self._context.base_dir / os.path.expanduser(top) if top else Path(tempfile.gettempdir())
        return folder.absolute() / f"rollout-{os.geteuid()}-{job_id}"

    def _scratch(self, job_id: str) -> Path:
        """A folder on this machine's disk that only this user may enter. Raises SandboxError."""
        path = self._scratch_path(job_id)
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = path.lstat()
        except OSError as error:
            raise SandboxError(f"type: apptainer cannot keep its files in {path} ({error.strerror}): {_ELSEWHERE}") from error
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise SandboxError(f"type: apptainer: {path} belongs to somebody else: {_ELSEWHERE}")
        return path


def _prefix(job_id: str) -> str:
    """What the names of a job's instances begin with."""
    return f"rollout-{job_id}-"


def _mounts_in_user_space() -> bool:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _host_of(record: Path) -> str:
    try:
        return str(json.loads(record.read_text())["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return socket.gethostname()


def _remove_groups(prefix: str) -> list[str]:
    removed = []
    for path in cgroups.find_left(prefix):
        try:
            cgroups.remove([path])
        except OSError:
            logger.warning("the control group %s still has processes", path)
        else:
            removed.append(path)
    return removed


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
