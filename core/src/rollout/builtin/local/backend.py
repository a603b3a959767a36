"""`type: local`: what it can do here, images, starting sandboxes, and what a dead job left."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from rollout.builtin.local.disk import LocalDisk
from rollout.builtin.local.environment import start_environment
from rollout.builtin.local.zygote import Zygote
from rollout.core.aio import Blocking
from rollout.core.egress.access import accesses
from rollout.core.errors import SandboxError, StartError, TaskError
from rollout.core.protocols import (
    API_VERSION,
    BESIDE,
    EXEC_USER,
    LIVE_STDIO,
    NETWORK_ALLOWLIST,
    NETWORK_NONE,
    NETWORK_SWITCH,
    SNAPSHOT,
    BackendContext,
    Environment,
)
from rollout.core.sandbox import layers
from rollout.core.sandbox.config import sandbox_config
from rollout.core.sandbox.environment import SandboxEnvironment
from rollout.core.sandbox.inside import cgroups
from rollout.core.sandbox.inside.accounts import subordinate_ranges
from rollout.core.sandbox.inside.machine import machine_identity
from rollout.core.sandbox.limits import unenforced
from rollout.core.types import EnvironmentSpec, OutputSink, Struct

_RELAYED = "a network that changes while it is used is the web alone where it is public: HTTP and HTTPS by name"
_GROUP_SEC = 2.0


class LocalOptions(Struct, frozen=True, kw_only=True):
    """`environment.options` of `type: local`. Paths are absolute or start with `~`."""

    rootfs: str | None = None
    """A root file system, as a folder or a tar archive, instead of this machine's own folders."""
    share: list[str] = []
    """Further folders of this machine that sandboxes see at the same path, copy-on-write."""
    mask: list[str] = []
    """Files and folders of this machine that sandboxes must not see."""
    network: Literal["none", "host"] | None = None
    """`none`: loopback only, whatever the task says. `host`: the machine's network. Unset: as the task says, and a task that may
    use the network has the machine's own: its addresses, ports and abstract sockets, shared with everything else on it."""
    pids: int | None = 4096
    """Processes and threads of one sandbox; null is no limit."""
    tmpfs: bool = False
    """Keep what a sandbox writes in memory, limited to the task's storage."""

    def __post_init__(self) -> None:
        for path in [*self.share, *self.mask, *([self.rootfs] if self.rootfs else [])]:
            if not path.startswith(("/", "~")) or "\0" in path:
                raise ValueError(f"{path!r} must be an absolute path or start with ~")
        if self.pids is not None and self.pids < 1:
            raise ValueError("`pids` must be at least 1")


class LocalBackend:
    """Sandboxes made of namespaces, overlays and control groups of this machine."""

    api_version: ClassVar[tuple[int, int]] = API_VERSION
    options_type: ClassVar[type[Struct]] = LocalOptions

    def __init__(self, options: LocalOptions, context: BackendContext) -> None:
        self._options = options
        self._context = context
        self._blocking = Blocking(context.concurrency + 4, "rollout-local")
        self._launched: Zygote | None = None
        self._launching = asyncio.Lock()
        self._refused: SandboxError | None = None
        self._dead: list[Zygote] = []
        self._made: set[str] = set()
        self._warned: set[str] = set()

    @property
    def capabilities(self) -> frozenset[str]:
        found = {BESIDE, LIVE_STDIO, NETWORK_NONE, NETWORK_ALLOWLIST, NETWORK_SWITCH, SNAPSHOT}
        if self._launched.ids != "one" if self._launched else os.geteuid() == 0 or subordinate_ranges(os.geteuid()) is not None:
            found.add(EXEC_USER)
        return frozenset(found)

    def check(self, spec: EnvironmentSpec) -> None:
        self._zygote_now()
        if spec.resources.gpus:
            raise TaskError(f"{spec.task_name} needs {spec.resources.gpus} GPUs, which type: local cannot give to one sandbox")
        recipe = layers.read(spec)
        if recipe is None and spec.docker_image is not None and self._options.rootfs is None:
            raise TaskError(
                f"{spec.task_name} needs the image {spec.docker_image}: use `type: docker`, or give its root file system in "
                "`environment.options.rootfs`"
            )
        if recipe is not None and recipe.base != "scratch" and self._options.rootfs is None:
            self._warn("from", f"FROM {recipe.base} is not used: the machine is the base (type: local, task {spec.task_name})")
        if self._network(spec) == "relay" and "public" in {access.mode for access in accesses(spec)}:
            self._warn("relayed", f"type: local: {_RELAYED} (task {spec.task_name})")
        if recipe is not None and recipe.unheard is not None:
            self._warn("healthcheck", recipe.unheard)
        self._warn_of(spec)

    async def prepare(self, spec: EnvironmentSpec, *, force: bool = False, sink: OutputSink | None = None) -> str:
        zygote = await self._zygote()
        recipe = layers.read(spec)
        if recipe is None:
            return layers.NO_IMAGE
        store = self._layers(zygote)
        key = layers.layer_key(recipe, spec, self._base_identity(zygote), self._network(spec))
        made = await store.build(key, recipe, self._start_for_build, spec, force=force, sink=sink)
        if made:
            self._made.add(key)
        return key

    async def start(self, spec: EnvironmentSpec, image: str) -> SandboxEnvironment:
        zygote = await self._zygote()
        config = await self._layers(zygote).config(image)
        self._warn_of(spec)
        return await self._start(zygote, spec, config)

    async def snapshot(
        self,
        spec: EnvironmentSpec,
        image: str,
        key: str,
        change: Callable[[Environment], Awaitable[None]],
        *,
        force: bool = False,
    ) -> str:
        zygote = await self._zygote()
        store = self._layers(zygote)
        layer = layers.snapshot_key(image, key, self._base_identity(zygote), self._network(spec))
        if await store.keep(layer, await store.config(image), self._start_for_snapshot, spec, change, force=force):
            self._made.add(layer)
        return layer

    async def remove(self, image: str) -> None:
        if image in self._made:
            self._made.discard(image)
            zygote = await self._zygote()
            await self._layers(zygote).remove(image)

    async def reap(self, job_id: str) -> Sequence[str]:
        removed = [f"control group {path}" for path in await self._blocking(_remove_groups, f"rollout-{job_id}-")]
        folders = [folder for folder in self._scratch_folders(job_id) if folder.exists()]
        if folders:
            zygote = await self._zygote()
            own = [zygote.base, zygote.cache] if zygote.scratch in folders else []
            for folder in folders:
                for entry in sorted(await self._blocking(lambda folder=folder: list(folder.iterdir()))):  # type: ignore[misc]
                    if entry not in own and entry.name != "zygote.log":
                        await zygote.remove(entry)
                        removed.append(f"sandbox files {entry}")
        return removed

    async def aclose(self) -> None:
        zygote, self._launched = self._launched, None
        if zygote is not None:
            try:
                for dead in self._dead:
                    await zygote.remove(*await self._blocking(dead.leftovers))
                    await self._blocking(_remove_groups, f"rollout-{self._context.job_id}-")
                await zygote.aclose(self._blocking)
            finally:
                self._blocking.close()
                for folder in self._scratch_folders(self._context.job_id)[1:]:
                    _remove_if_empty(folder)
        else:
            self._blocking.close()

    def _layers(self, zygote: Zygote) -> layers.LayerStore:
        return layers.LayerStore(LocalDisk(zygote, self._blocking), os.uname().machine)

    async def _start_for_build(self, spec: EnvironmentSpec, config: layers.ImageConfig, upper: str) -> SandboxEnvironment:
        network = self._network(spec)
        return await self._start(await self._zygote(), spec, config, upper, "host" if network == "relay" else network)

    async def _start_for_snapshot(self, spec: EnvironmentSpec, config: layers.ImageConfig, upper: str) -> SandboxEnvironment:
        return await self._start(await self._zygote(), spec, config, upper)

    async def _start(
        self,
        zygote: Zygote,
        spec: EnvironmentSpec,
        image: layers.ImageConfig,
        upper: str | None = None,
        network: str | None = None,
    ) -> SandboxEnvironment:
        network = network or self._network(spec)
        config = sandbox_config(
            spec,
            image,
            name=f"rollout-{self._context.job_id}-{os.urandom(4).hex()}",
            network=network,
            groups=zygote.groups,
            pids=self._options.pids,
            tmpfs=self._options.tmpfs,
            upper=upper,
        )
        return await start_environment(zygote, self._blocking, config, accesses(spec)[0] if network == "relay" else None)

    def _network(self, spec: EnvironmentSpec) -> str:
        if self._options.network is not None:
            return self._options.network
        asked = {access.mode for access in accesses(spec)}
        if len(asked) > 1 or "allowlist" in asked:
            return "relay"
        return "none" if asked == {"none"} else "host"

    def _base_identity(self, zygote: Zygote) -> str:
        return "\n".join([zygote.ids, *zygote.shown, self._options.rootfs or machine_identity()])

    def _warn_of(self, spec: EnvironmentSpec) -> None:
        if self._network(spec) == "host" and self._context.concurrency > 1:
            text = "trials that run at once share this machine's network: two that listen on the same port collide"
            self._warn("ports", f"type: local: {text} (`network: none` in the task, or options.network, separates them)")
        groups = self._launched.groups if self._launched else {}
        line = unenforced(spec.resources, self._options.pids, groups, tmpfs=self._options.tmpfs)
        if line is not None:
            self._warn("limits", line)

    def _warn(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            self._context.warn(message)

    async def _zygote(self) -> Zygote:
        async with self._launching:
            if self._launched is not None and not self._launched.alive:
                self._dead.append(self._launched)
                await self._launched.aclose(self._blocking)
                self._launched = None
            if self._launched is None:
                try:
                    await self._blocking(self._zygote_now)
                except StartError:
                    raise
                except SandboxError as error:
                    raise StartError(str(error)) from error
        assert self._launched is not None
        return self._launched

    def _zygote_now(self) -> Zygote:
        """The zygote, launched if need be. A machine that refuses once is not asked again."""
        if self._refused is not None:
            raise self._refused
        if self._launched is None:
            try:
                self._launched = Zygote.launch(self._view_config(), self._context.work_dir / "zygote.log")
            except SandboxError as error:
                self._refused = error
                raise
        return self._launched

    def _view_config(self) -> dict[str, Any]:
        options = self._options
        private = [str(path) for path in self._context.private_paths]
        private += [str(self._context.work_dir), str(self._context.cache_dir)]
        share = [os.path.expanduser(path) for path in options.share]
        for path in share:
            if not os.path.isdir(path):
                raise SandboxError(f"environment.options.share: {path} is not a folder of this machine")
            if os.path.realpath(path) == "/":
                raise SandboxError(
                    "environment.options.share: the root folder cannot be shared; name the folders that are needed"
                )
        rootfs, archive = os.path.expanduser(options.rootfs) if options.rootfs else None, None
        if rootfs is not None and not os.path.isdir(rootfs):
            if not os.path.isfile(rootfs):
                raise SandboxError(f"environment.options.rootfs: there is no {rootfs}")
            archive, rootfs = rootfs, str(self._context.cache_dir / "rootfs" / _file_identity(rootfs))
        return {
            "scratch": [str(folder) for folder in self._scratch_folders(self._context.job_id)],
            "cache": str(self._context.cache_dir),
            "share": share,
            "hide": [*private, *(os.path.expanduser(path) for path in options.mask)],
            "rootfs": rootfs,
            "rootfs_tar": archive,
        }

    def _scratch_folders(self, job_id: str) -> list[Path]:
        """Where sandboxes may write, best first. All but the first carry the job's id in their name."""
        name = f"rollout-{os.geteuid()}-{job_id}"
        others = dict.fromkeys([tempfile.gettempdir(), "/tmp", "/dev/shm"])
        first = [self._context.work_dir.absolute() / "sandboxes"] if job_id == self._context.job_id else []
        return [*first, *(Path(folder, name) for folder in others)]


def _file_identity(path: str) -> str:
    """A name for a file's present content, without reading it."""
    status = os.stat(path)
    text = f"{os.path.realpath(path)}\0{status.st_size}\0{status.st_mtime_ns}\0{os.geteuid()}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _remove_groups(prefix: str) -> list[str]:
    """Remove control groups without processes. One that keeps them for two seconds belongs to a trial that still runs."""
    removed = []
    deadline = time.monotonic() + _GROUP_SEC
    for path in cgroups.find_left(prefix):
        while True:
            try:
                os.rmdir(path)
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.01)
            else:
                removed.append(path)
                break
    return removed


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
