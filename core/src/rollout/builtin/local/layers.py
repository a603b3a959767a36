"""Image layers: what an `environment/Dockerfile` makes of the base, cached per content."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from rollout.builtin.local.build import ImageState, run_steps
from rollout.builtin.local.dockerfile import Recipe, read_dockerfile
from rollout.builtin.local.environment import LocalEnvironment
from rollout.builtin.local.sandbox.accounts import subordinate_ranges
from rollout.builtin.local.zygote import Zygote
from rollout.core.aio import Blocking, run_shielded
from rollout.core.errors import StartError
from rollout.core.types import EnvironmentSpec, OutputSink, Struct

NO_IMAGE = "none"
_FORMAT = "1"
_LOCK_POLL_SEC = 0.1


class ImageConfig(Struct, frozen=True, kw_only=True):
    """What an image says about the processes that run on it."""

    env: dict[str, str] = {}
    workdir: str | None = None
    user: str | None = None
    files: str | None = None
    """The layer's folder; None without a layer."""


Starter = Callable[[EnvironmentSpec, ImageConfig, Path], Awaitable[LocalEnvironment]]


class LayerStore:
    """Layers below a cache folder, shared by jobs: made under a lock, put in place in one step."""

    def __init__(self, zygote: Zygote, blocking: Blocking) -> None:
        self._zygote = zygote
        self._blocking = blocking
        self._root = zygote.cache / "layers"

    def config(self, key: str) -> ImageConfig:
        """Raises StartError when the layer is gone."""
        if key == NO_IMAGE:
            return ImageConfig()
        try:
            data = (self._root / key / "config.json").read_bytes()
        except FileNotFoundError:
            raise StartError(f"the image layer {key[:12]} is gone from {self._root}: run the job again") from None
        return msgspec.json.decode(data, type=ImageConfig)

    async def build(
        self, key: str, recipe: Recipe, start: Starter, spec: EnvironmentSpec, *, force: bool, sink: OutputSink | None
    ) -> bool:
        """Make the layer unless it is there. Returns whether it was made.

        Raises:
            BuildError
        """
        await self._blocking(self._make_root)
        async with self._locked(key):
            final = self._root / key
            if final.exists():
                if not force:
                    return False
                await self._zygote.remove(final)
            fresh = self._root / f"{key}.new"
            if fresh.exists():
                await self._zygote.remove(fresh)
            files = fresh / "files"
            files.mkdir(parents=True)
            try:
                state = await self._run(recipe, start, spec, files, sink)
                config = ImageConfig(env=state.env, workdir=state.workdir, user=state.user, files=str(final / "files"))
                (fresh / "config.json").write_bytes(msgspec.json.encode(config))
                fresh.rename(final)
            except BaseException:
                await run_shielded(self._zygote.remove(fresh))
                raise
        return True

    async def remove(self, key: str) -> None:
        async with self._locked(key):
            await self._zygote.remove(self._root / key)

    async def _run(
        self, recipe: Recipe, start: Starter, spec: EnvironmentSpec, files: Path, sink: OutputSink | None
    ) -> ImageState:
        # the image's own working directory applies while it is built, and no limit of the trial's
        plain = msgspec.structs.replace(spec, workdir="/", env={}, resources=type(spec.resources)())
        environment = await start(plain, ImageConfig(), files)
        try:
            return await run_steps(recipe, environment, sink)
        finally:
            await run_shielded(environment.stop())

    def _make_root(self) -> None:
        # a layer may hold set-uid programs of the sandbox's root: nobody else may get at them
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)

    @asynccontextmanager
    async def _locked(self, key: str) -> AsyncIterator[None]:
        descriptor = os.open(self._root / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:  # another job is making it
                    await asyncio.sleep(_LOCK_POLL_SEC)
            yield
        finally:
            os.close(descriptor)


def read(spec: EnvironmentSpec) -> Recipe | None:
    """The task's Dockerfile, or None when there is none.

    Raises:
        TaskError: it asks for something that cannot be done without an engine.
    """
    if spec.directory is None:
        return None
    path = Path(spec.directory, "Dockerfile")
    return read_dockerfile(path) if path.is_file() else None


def layer_key(recipe: Recipe, spec: EnvironmentSpec, base: str, network: str) -> str:
    """Equal for equal content on an equal base."""
    parts = [_FORMAT, spec.digest, recipe.text, base, network]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def machine_identity() -> str:
    """Distribution and release of this machine, and its architecture."""
    try:
        lines = Path("/etc/os-release").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    return " ".join([*sorted(line for line in lines if line.startswith(("ID=", "VERSION_ID="))), os.uname().machine])


def file_identity(path: str) -> str:
    """A name for a file's present content, without reading it."""
    status = os.stat(path)
    text = f"{os.path.realpath(path)}\0{status.st_size}\0{status.st_mtime_ns}\0{os.geteuid()}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def has_subordinate_ids() -> bool:
    """Whether this user may map further user ids, as far as the files say."""
    return subordinate_ranges(os.geteuid()) is not None
