"""`mode: namespace`: layers of tasks and installed agents, each made on a host when a trial there first needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from rollout.core.aio import Once, off_the_clock
from rollout.core.errors import StartError
from rollout.core.protocols import Environment
from rollout.core.sandbox import layers
from rollout.core.sandbox.recipe import Recipe
from rollout.core.types import EnvironmentSpec, OutputSink
from rollout_ssh.disk import RemoteDisk
from rollout_ssh.namespace import NamespaceEnvironment
from rollout_ssh.session import Session

StartSandbox = Callable[[Session, EnvironmentSpec, layers.ImageConfig, str], Awaitable[NamespaceEnvironment]]
Change = Callable[[Environment], Awaitable[None]]

_SNAPSHOT = "snapshot-"


@dataclass
class _Snapshot:
    """How an image that was asked for is made, on one host after the other."""

    spec: EnvironmentSpec
    key: str
    change: Change
    force: bool
    kept: set[tuple[str, str]] = field(default_factory=set)
    """Host and key of where it is."""
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)


class HostLayers:
    """The layers of one job. A layer has one name here and on each host a key of its own, because their systems may differ."""

    def __init__(self, rootfs: str | None, network: Callable[[EnvironmentSpec], str], start: StartSandbox) -> None:
        """`network`: which a task's sandboxes have. `start`: a sandbox whose writes go to the folder at the end."""
        self._rootfs = rootfs
        self._network = network
        self._start = start
        self._once: Once[str] = Once(keep_errors=False)
        self._made: dict[str, set[tuple[str, str]]] = {}
        self._snapshots: dict[str, _Snapshot] = {}

    def image(self, spec: EnvironmentSpec) -> str:
        """The name of the task's layer."""
        recipe = layers.read(spec)
        return layers.NO_IMAGE if recipe is None else self._image(recipe, spec)

    async def build(self, session: Session, spec: EnvironmentSpec, *, force: bool = False, sink: OutputSink | None = None) -> str:
        """The key of the task's layer on this host, where it is made unless it is there.

        Raises:
            BuildError, StartError, HostLostError
        """
        recipe = layers.read(spec)
        if recipe is None:
            return layers.NO_IMAGE
        key = layers.layer_key(recipe, spec, self._base(session), self._network(spec))

        async def make() -> str:
            if await self._store(session).build(key, recipe, self._starter(session), spec, force=force, sink=sink):
                self._made.setdefault(self._image(recipe, spec), set()).add((session.name, key))
            return key

        return await self._once((session.name, key), make)

    async def config(self, session: Session, spec: EnvironmentSpec, image: str) -> layers.ImageConfig:
        """What sandboxes of an image start from on this host, where it is made unless it is there.

        Raises:
            BuildError, StartError, HostLostError; what the change of a snapshot raises.
        """
        key = await self.keep(session, image) if image.startswith(_SNAPSHOT) else await self.build(session, spec)
        return await self._store(session).config(key)

    def snapshot(self, spec: EnvironmentSpec, image: str, key: str, change: Change, *, force: bool) -> str:
        """The name of `image` with what `change` does to it; `keep` makes it."""
        name = _SNAPSHOT + layers.snapshot_key(image, key, self._rootfs or "", self._network(spec))
        known = self._snapshots.get(name)
        if known is None or force:
            for place in known.kept if known is not None else ():
                self._once.forget(place)
            self._snapshots[name] = _Snapshot(spec, key, change, force)
        return name

    def is_kept(self, name: str) -> bool:
        """Whether a host has the snapshot, as it was last asked for."""
        return bool(self._snapshots[name].kept)

    async def keep(self, session: Session, name: str) -> str:
        """The key of a snapshot on this host, where it is made unless it is there: no two hosts at a time."""
        snapshot = self._snapshots.get(name)
        if snapshot is None:
            raise StartError(f"the image {name} was made by another process: run the job again")
        spec = snapshot.spec
        below = await self.build(session, spec)
        key = layers.snapshot_key(below, snapshot.key, self._base(session), self._network(spec))
        store = self._store(session)

        async def make() -> str:
            async with snapshot.one_at_a_time:
                image = await store.config(below)
                if await store.keep(key, image, self._starter(session), spec, snapshot.change, force=snapshot.force):
                    self._made.setdefault(name, set()).add((session.name, key))
            snapshot.kept.add((session.name, key))
            return key

        async with off_the_clock():  # the change has a deadline of its own
            return await self._once((session.name, key), make)

    async def remove(self, image: str, sessions: list[Session]) -> None:
        """Remove what this job made for an image, on the hosts that it still reaches."""
        for session in sessions:
            for host, key in sorted(self._made.get(image, ())):
                if host == session.name:
                    self._once.forget((host, key))
                    await self._store(session).remove(key)
        self._made.pop(image, None)
        self._snapshots.pop(image, None)

    def _starter(self, session: Session) -> Callable[[EnvironmentSpec, layers.ImageConfig, str], Awaitable[NamespaceEnvironment]]:
        return lambda spec, config, upper: self._start(session, spec, config, upper)

    def _store(self, session: Session) -> layers.LayerStore:
        return layers.LayerStore(RemoteDisk(session), session.machine)

    def _image(self, recipe: Recipe, spec: EnvironmentSpec) -> str:
        return layers.layer_key(recipe, spec, self._rootfs or "", self._network(spec))

    def _base(self, session: Session) -> str:
        return "\n".join([session.ids, *session.shown, self._rootfs or session.identity])
