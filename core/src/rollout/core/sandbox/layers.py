"""Image layers: what an `environment/Dockerfile` makes of the base, cached per content."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from rollout.core.aio import run_shielded
from rollout.core.errors import StartError
from rollout.core.sandbox.build import BuildEnvironment, ImageState, run_steps
from rollout.core.sandbox.recipe import Recipe, read_dockerfile
from rollout.core.types import EnvironmentSpec, OutputSink, Struct

NO_IMAGE = "none"
_FORMAT = "1"


class ImageConfig(Struct, frozen=True, kw_only=True):
    """What an image says about the processes that run on it."""

    env: dict[str, str] = {}
    workdir: str | None = None
    user: str | None = None
    files: str | None = None
    """The layer's folder; None without a layer."""
    below: tuple[str, ...] = ()
    """The folders of the layers that it was made on, the topmost first."""

    @property
    def layers(self) -> list[str]:
        """The topmost first."""
        return [*([self.files] if self.files else []), *self.below]


Starter = Callable[[EnvironmentSpec, ImageConfig, str], Awaitable[BuildEnvironment]]
"""Starts a sandbox whose writes go to the folder that is the third argument."""


SomeEnvironment = TypeVar("SomeEnvironment", bound=BuildEnvironment)


class LayerDisk(Protocol):
    """The folder of layers, on whichever machine sandboxes are started. Paths are that machine's."""

    root: str
    """Nobody but the user may enter it: a layer may hold set-uid programs of the sandbox's root."""

    def locked(self, name: str) -> AbstractAsyncContextManager[None]:
        """Hold the lock `name` of the folder, against other jobs too. Makes the folder."""
        ...

    async def read(self, path: str) -> bytes | None:
        """A file's content, or None when there is none."""
        ...

    async def write(self, path: str, data: bytes) -> None: ...

    async def make_folder(self, path: str) -> None: ...

    async def rename(self, path: str, target: str) -> None: ...

    async def remove(self, path: str) -> None:
        """Remove a folder that may hold files of a sandbox's users, if it is there."""
        ...


class LayerStore:
    """Layers below a cache folder, shared by jobs: made under a lock, put in place in one step."""

    def __init__(self, disk: LayerDisk, machine: str) -> None:
        """`machine`: the architecture as `uname -m` says it."""
        self._disk = disk
        self._machine = machine

    async def config(self, key: str) -> ImageConfig:
        """Raises StartError when the layer is gone."""
        if key == NO_IMAGE:
            return ImageConfig()
        data = await self._disk.read(f"{self._disk.root}/{key}/config.json")
        if data is None:
            raise StartError(f"the image layer {key[:12]} is gone from {self._disk.root}: run the job again")
        return msgspec.json.decode(data, type=ImageConfig)

    async def build(
        self, key: str, recipe: Recipe, start: Starter, spec: EnvironmentSpec, *, force: bool, sink: OutputSink | None
    ) -> bool:
        """Make the layer unless it is there. Returns whether it was made.

        Raises:
            BuildError
        """

        async def fill(files: str) -> ImageConfig:
            state = await self._run(recipe, start, spec, files, sink)
            return ImageConfig(env=state.env, workdir=state.workdir, user=state.user)

        return await self._make(key, fill, force=force)

    async def keep(
        self,
        key: str,
        image: ImageConfig,
        start: Callable[[EnvironmentSpec, ImageConfig, str], Awaitable[SomeEnvironment]],
        spec: EnvironmentSpec,
        change: Callable[[SomeEnvironment], Awaitable[None]],
        *,
        force: bool,
    ) -> bool:
        """Make a layer of what `change` does on top of `image`, unless it is there. Returns whether it was made."""

        async def fill(files: str) -> ImageConfig:
            environment = await start(spec, image, files)
            try:
                await change(environment)
            finally:
                await run_shielded(environment.stop())
            return msgspec.structs.replace(image, below=tuple(image.layers))

        return await self._make(key, fill, force=force)

    async def _make(self, key: str, fill: Callable[[str], Awaitable[ImageConfig]], *, force: bool) -> bool:
        """Let `fill` write a layer's folder, and put it in its place when it is whole."""
        disk = self._disk
        async with disk.locked(f"{key}.lock"):
            final = f"{disk.root}/{key}"
            if await disk.read(f"{final}/config.json") is not None:
                if not force:
                    return False
                await disk.remove(final)
            fresh = f"{disk.root}/{key}.new"
            await disk.remove(fresh)
            await disk.make_folder(f"{fresh}/files")
            try:
                config = msgspec.structs.replace(await fill(f"{fresh}/files"), files=f"{final}/files")
                await disk.write(f"{fresh}/config.json", msgspec.json.encode(config))
                await disk.rename(fresh, final)
            except BaseException:
                await run_shielded(disk.remove(fresh))
                raise
        return True

    async def remove(self, key: str) -> None:
        async with self._disk.locked(f"{key}.lock"):
            await self._disk.remove(f"{self._disk.root}/{key}")

    async def _run(
        self, recipe: Recipe, start: Starter, spec: EnvironmentSpec, files: str, sink: OutputSink | None
    ) -> ImageState:
        # the image's own working directory applies while it is built, and no limit of the trial's
        plain = msgspec.structs.replace(spec, workdir="/", env={}, resources=type(spec.resources)())
        environment = await start(plain, ImageConfig(), files)
        try:
            return await run_steps(recipe, environment, self._machine, sink)
        finally:
            await run_shielded(environment.stop())


def read(spec: EnvironmentSpec) -> Recipe | None:
    """The task's Dockerfile, or None when there is none.

    Raises:
        TaskError: it asks for something that cannot be done without an engine.
    """
    if spec.directory is None:
        return None
    path = Path(spec.directory, "Dockerfile")
    return read_dockerfile(path) if path.is_file() else None


def snapshot_key(image: str, key: str, base: str, network: str) -> str:
    """Of a layer that is made on `image` (or on `base`, when that is no image) in a way that `key` describes."""
    parts = [_FORMAT, "snapshot", image, base if image == NO_IMAGE else "", key, network]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def layer_key(recipe: Recipe, spec: EnvironmentSpec, base: str, network: str) -> str:
    """Equal for equal content on an equal base."""
    parts = [_FORMAT, spec.digest, recipe.text, base, network]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]
