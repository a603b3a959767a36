"""`mode: apptainer`: containers of the hosts' own Apptainer, from images that lie there or are sent there once."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast

import paramiko

from rollout.core.aio import Blocking, Once
from rollout.core.errors import HostLostError, StartError, TransferError
from rollout.core.pool import Lease
from rollout.core.protocols import (
    DOCKER_IMAGE,
    EXEC_USER,
    LIVE_STDIO,
    NETWORK_NONE,
    SNAPSHOT,
    BackendContext,
    Environment,
    PortableBackend,
    SnapshotBackend,
)
from rollout.core.sandbox.layers import ImageConfig
from rollout.core.types import EnvironmentSpec, OutputSink
from rollout_ssh.connection import Connection, Unreachable
from rollout_ssh.disk import RemoteDisk
from rollout_ssh.host import Host
from rollout_ssh.hosts import OwnHosts, ended
from rollout_ssh.namespace import NamespaceEnvironment
from rollout_ssh.options import SshOptions
from rollout_ssh.sending import in_words
from rollout_ssh.session import Session

_CHUNK = 1 << 20
# For a shell of whatever kind: PATH DIGEST; writes standard input to the file. Whoever runs it has the lock of that image.
_RECEIVE_SCRIPT = (
    'umask 077; mkdir -p "${1%/*}" && rm -f "$1".*.part || exit; part=$1.$$.part; cat > "$part"; '
    'if [ "$(sha256sum < "$part" | cut -c 1-64)" = "$2" ]; then mv "$part" "$1"; exit; fi; '
    'rm -f "$part"; echo "it did not arrive whole" >&2; exit 1'
)
_RECEIVE = f"exec sh -c {shlex.quote(_RECEIVE_SCRIPT)} sh"
_SENT_SEC = 600.0


class ContainerHosts:
    """Images are found and made here, by the engine's own environment; its containers start on the hosts."""

    def __init__(self, options: SshOptions, context: BackendContext, engine: PortableBackend) -> None:
        self._options = options
        self._context = context
        self._engine = engine
        self._hosts = OwnHosts(options, context)
        self._blocking = Blocking(8, "rollout-ssh images")
        self._digests: Once[str] = Once(keep_errors=False)
        self._sent: dict[tuple[str, str], asyncio.Lock] = {}
        self._made: dict[str, set[tuple[Host, str]]] = {}

    @property
    def capabilities(self) -> frozenset[str]:
        kept = self._engine.capabilities & {SNAPSHOT} if self._options.image is None else frozenset()
        return frozenset({LIVE_STDIO, NETWORK_NONE, DOCKER_IMAGE}) | kept | (self._hosts.capabilities & {EXEC_USER})

    def check(self, spec: EnvironmentSpec) -> None:
        self._hosts.check_hosts()
        self._engine.check_elsewhere(spec, has_image=self._options.image is not None)
        if self._options.image is not None and (spec.docker_image is not None or spec.directory is not None):
            text = "every task runs in the image that environment.options.image names, whatever it asks for"
            self._hosts.warn_once("image", f"type: ssh: {text}")
        for host in self._hosts.hosts():
            self._hosts.warn_of(host, spec)

    async def prepare(self, spec: EnvironmentSpec, *, force: bool = False, sink: OutputSink | None = None) -> str:
        return self._options.image or await self._engine.prepare(spec, force=force, sink=sink)

    async def start(self, spec: EnvironmentSpec, image: str) -> Environment:
        return await self._hosts.start_on_some_host(lambda lease, session: self._start(lease, session, spec, image))

    async def snapshot(
        self,
        spec: EnvironmentSpec,
        image: str,
        key: str,
        change: Callable[[Environment], Awaitable[None]],
        *,
        force: bool = False,
    ) -> str | None:
        if self._options.image is not None:
            return None
        return await cast(SnapshotBackend, self._engine).snapshot(spec, image, key, change, force=force)

    async def remove(self, image: str) -> None:
        if self._options.image is None:
            await self._engine.remove(image)
        for host, path in self._made.pop(image, set()):
            session = host.last_session
            if session is not None and session.ended is None:
                await session.remove(path)

    async def reap(self, job_id: str) -> Sequence[str]:
        here = await self._engine.reap(job_id) if self._options.image is None else []
        return [*here, *await self._hosts.reap(job_id)]

    async def aclose(self) -> None:
        await self._hosts.aclose()
        await self._engine.aclose()
        self._blocking.close()

    async def _start(self, lease: Lease[Host], session: Session, spec: EnvironmentSpec, image: str) -> NamespaceEnvironment:
        known = image if self._options.image is None else None
        commands = await self._engine.commands(spec, known, ids=session.ids)
        there = session.image if known is None else await self._send(lease.value, session, image)
        if there is None:
            raise StartError(f"{lease.name}: there is no image {self._options.image} there")
        config = {
            **self._hosts.config(session, spec, ImageConfig(env=commands.env, user=commands.user, workdir=commands.workdir)),
            "container": {
                "programs": commands.programs,
                "before": commands.before,
                "start": commands.start,
                "end": commands.end,
                "environ": commands.environ,
                "image": there,
            },
            "given": spec.env,
        }
        return await NamespaceEnvironment.start(session, self._blocking, config, ended(lease, session))

    async def _send(self, host: Host, session: Session, image: str) -> str:
        """The path of an image on a host, which gets it unless it has it already."""
        path = Path(image)
        if not path.is_file():
            raise StartError(f"{image} is a folder: on other machines only SIF files can be used")
        status = path.stat()
        digest = await self._digests((image, status.st_size, status.st_mtime_ns), lambda: self._blocking(_digest, path))
        there = f"{session.folder}/images/{digest}.sif"
        lock = self._sent.setdefault((host.name, digest), asyncio.Lock())
        async with lock, RemoteDisk(session).locked(f"{digest}.image"):
            if not (await session.file("exists", there))["exists"]:
                try:
                    connection = await self._blocking(host.lend)
                    try:
                        await self._blocking(_send, connection, path, there, digest)
                    finally:
                        host.keep(connection)
                except Unreachable as error:
                    raise HostLostError(f"{host.name} is lost: {error}") from error
                self._made.setdefault(image, set()).add((host, there))
        return there


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _send(connection: Connection, path: Path, there: str, digest: str) -> None:
    """Write a file to another machine, where it appears whole or not at all. Blocks.

    Raises:
        TransferError: the machine does not take it; the text says why.
        Unreachable
    """
    command = f"{_RECEIVE} {shlex.quote(there)} {digest}"
    try:
        channel = connection.run(command, _SENT_SEC)
    except paramiko.ChannelException as error:
        raise Unreachable(f"{connection.name}: it opens no channel: {error.text}") from error
    channel.settimeout(_SENT_SEC)
    try:
        with path.open("rb") as file:
            try:
                while data := file.read(_CHUNK):
                    channel.sendall(data)
                channel.shutdown_write()
            except OSError:
                if not connection.alive:
                    raise  # else it stopped reading, and says why
        said = channel.makefile_stderr("rb").read().decode("utf-8", "replace").strip()
        code = channel.recv_exit_status()
    except OSError as error:
        raise Unreachable(f"{connection.name}: {in_words(error)}") from error
    finally:
        channel.close()
    if code != 0:
        raise TransferError(f"{connection.name}: the image {path} cannot be written to {there}: {said or f'exit code {code}'}")
