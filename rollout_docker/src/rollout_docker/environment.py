"""One started container: commands, files, the end."""

from __future__ import annotations

import asyncio
import errno
import posixpath
import tempfile
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import docker
import docker.errors
import requests.exceptions
import urllib3.exceptions

from rollout.core.aio import Blocking, joined, run_shielded, settled
from rollout.core.archive import pack, unpack
from rollout.core.archive.transfer import Owners, check_path
from rollout.core.capture import OutputCapture
from rollout.core.errors import EnvironmentLostError, SandboxError, TeardownError, TransferError
from rollout.core.live import LiveOutput, in_time
from rollout.core.types import (
    DEFAULT_TRANSFER_LIMITS,
    Command,
    ExecResult,
    NetworkAccess,
    OutputSink,
    Stream,
    TransferLimits,
    TransferReport,
)
from rollout_docker.command import Container, RunningCommand, run_command
from rollout_docker.engine import Refused

_SPOOLED_BYTES = 4 * 1024 * 1024
_MIN_STREAM_BYTES = 8 * 1024**3  # what is left out by its size comes over the wire all the same
_MAX_LOG_LINES = 100_000
_KILLED = 137
_GO_SYMLINK = 1 << 27
"""The bit of a link in the modes of Go, in which engines are written."""
_OOM_GRACE_SEC = 0.25
_REMOVAL_TIMEOUT_SEC = 60.0
_FOREIGN = (docker.errors.DockerException, requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError)


class DockerEnvironment:
    """The Environment of `type: docker`."""

    def __init__(
        self,
        container: Container,
        blocking: Blocking,
        oom_kills: Callable[[str], int] | None,
        remove: Callable[[], Awaitable[None]] | None = None,
        services: Mapping[str, Container] = MappingProxyType({}),
        set_network: Callable[[NetworkAccess], Awaitable[None]] | None = None,
    ) -> None:
        """`remove`: what ends it, if that is more than the container. `services`: the task's other containers.
        `oom_kills`: how often the kernel killed in a container for memory; None when it has no limit of memory."""
        self._container = container
        self._blocking = blocking
        self._oom_kills = oom_kills
        self._owners = Owners(self.exec)
        self._remove = remove or (lambda: remove_container(container))
        self._set_network = set_network
        self._services = {name: DockerEnvironment(each, blocking, None, remove=_nothing) for name, each in services.items()}
        self._stopping: asyncio.Task[None] | None = None

    @property
    def container_id(self) -> str:
        return self._container.id

    async def exec(self, command: Command, sink: OutputSink | None = None) -> ExecResult:
        if not command.argv:
            raise ValueError("a command needs at least a program")
        capture = OutputCapture(command.max_output_bytes, sink)
        before = self._oom_count()
        running = RunningCommand(self._container, capture.feed)
        async with in_time(command, running.kill):
            await run_command(running, command)
            code = await asyncio.shield(running.done)
        return capture.result(code, out_of_memory=await self._ran_out_of_memory(before, code))

    async def open(self, command: Command, sink: OutputSink | None = None) -> DockerProcess:
        process = DockerProcess(self._container, sink)
        await run_command(process.running, command, live=True)
        return process

    async def upload(self, source: Path, target: str, *, owner: str | None = None) -> None:
        check_path(target)
        self._check_alive()
        ids = await self._owners.ids(owner)
        name = posixpath.normpath(target).strip("/") or "."
        try:
            await self._transfer(lambda: self._put(source, name, ids))
        except TransferError as error:
            raise TransferError(f"cannot copy {source} to {target}: {error}") from error

    async def download(self, source: str, target: Path, limits: TransferLimits = DEFAULT_TRANSFER_LIMITS) -> TransferReport:
        check_path(source)
        self._check_alive()
        unwanted = threading.Event()
        try:
            report = await self._transfer(lambda: self._get(posixpath.normpath(source), target, limits, unwanted), unwanted)
        except TransferError as error:
            raise TransferError(f"cannot copy {source} out of the environment: {error}") from error
        if report is None:
            raise FileNotFoundError(errno.ENOENT, "no such file or folder in the environment", source)
        return cast(TransferReport, report)

    async def set_network(self, access: NetworkAccess) -> None:
        self._check_alive()
        if self._set_network is None:
            raise SandboxError("the network of a container of several cannot be changed")
        await self._set_network(access)

    def services(self) -> Sequence[str]:
        return tuple(self._services)

    def service(self, name: str) -> DockerEnvironment:
        return self._services[name]

    async def service_output(self, name: str, max_bytes: int) -> bytes:
        service = self._services[name]
        return bytes(await service._transfer(lambda: service._output(max_bytes)))

    async def stop(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await run_shielded(joined(self._stopping))

    async def _stop(self) -> None:
        container = self._container
        container.gone = container.gone or "it was stopped"
        for running in list(container.running):
            running.lose(EnvironmentLostError("the environment was stopped"))
        for service in self._services.values():
            await service.stop()
        await self._remove()

    def _output(self, max_bytes: int) -> bytes:
        """The end of what the container's own program printed. Blocks."""
        chunks: deque[bytes] = deque()
        size = 0
        for chunk in self._container.engine.sdk.api.logs(self._container.id, stream=True, follow=False, tail=_MAX_LOG_LINES):
            chunks.append(chunk)
            size += len(chunk)
            while size - len(chunks[0]) >= max_bytes:
                size -= len(chunks.popleft())
        return b"".join(chunks)[-max_bytes:]

    def _check_alive(self) -> None:
        if self._container.gone is not None:
            raise EnvironmentLostError(f"the environment is gone: {self._container.gone}")

    def _oom_count(self) -> int:
        return self._oom_kills(self._container.id) if self._oom_kills else 0

    async def _ran_out_of_memory(self, before: int, code: int) -> bool:
        if self._oom_kills is None:
            return False
        if code == _KILLED and self._oom_count() == before:
            await asyncio.sleep(_OOM_GRACE_SEC)  # the engine's news of it may come after the command's end
        return self._oom_count() > before

    def _archives(self) -> docker.APIClient:
        """The SDK, of an engine that answers: it forgets to close a socket that does not connect. Raises OSError."""
        engine = self._container.engine
        engine.reachable()
        return engine.sdk.api

    def _put(self, source: Path, name: str, owner: tuple[int, int]) -> None:
        with tempfile.SpooledTemporaryFile(_SPOOLED_BYTES) as archive:
            pack(source, archive, name=name, owner=owner)
            archive.seek(0)
            self._archives().put_archive(self._container.id, "/", archive)

    def _get(self, source: str, target: Path, limits: TransferLimits, unwanted: threading.Event) -> TransferReport | None:
        """None: there is no such file."""
        try:
            chunks, about = self._archives().get_archive(self._container.id, source)
        except docker.errors.NotFound as error:
            if "No such container" in str(error.explanation):
                raise
            return None
        try:
            if self._container.engine.podman and int(about.get("mode", 0)) & _GO_SYMLINK:
                return TransferReport(
                    skipped=((posixpath.basename(source), "a link"),), skipped_count=1
                )  # it packs what is behind
            return unpack(_Chunks(chunks, max(4 * limits.max_total_bytes, _MIN_STREAM_BYTES), unwanted), target, limits)
        finally:
            chunks.close()

    async def _transfer(self, work: Callable[[], Any], unwanted: threading.Event | None = None) -> Any:
        thread = asyncio.ensure_future(self._blocking(work))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            if unwanted is not None:
                unwanted.set()
            await run_shielded(settled(thread))
            raise
        except (*_FOREIGN, TransferError) as error:
            lost = await self._container.lost()
            if lost is not None:
                raise lost from error
            if isinstance(error, TransferError):
                raise
            text = error.explanation if isinstance(error, docker.errors.APIError) else error
            raise TransferError(str(text)) from error


class DockerProcess:
    """A command with live standard streams."""

    def __init__(self, container: Container, sink: OutputSink | None) -> None:
        self._live = LiveOutput(sink, lambda size: self.running.room.set())
        self.running = RunningCommand(container, self._take)
        self.running.done.add_done_callback(lambda done: self._live.end())

    def _take(self, stream: Stream, chunk: bytes) -> None:
        self._live.feed(stream, chunk)
        if not self._live.has_room:
            self.running.room.clear()

    async def write(self, data: bytes) -> None:
        """Raises BrokenPipeError when the program no longer reads."""
        try:
            await self.running.write(data)
        except ConnectionError as error:
            raise BrokenPipeError(errno.EPIPE, "the program closed its standard input") from error

    async def close_stdin(self) -> None:
        self.running.close_stdin()

    def output(self) -> AsyncIterator[bytes]:
        return self._live.chunks()

    async def wait(self) -> int:
        self._live.wait()
        return await asyncio.shield(self.running.done)

    async def kill(self) -> None:
        await run_shielded(self.running.kill())


class _Chunks:
    """An iterator of chunks as a stream to read, up to a size and until somebody no longer wants it."""

    def __init__(self, chunks: Iterator[bytes], max_bytes: int, unwanted: threading.Event) -> None:
        self._chunks = chunks
        self._left = max_bytes
        self._unwanted = unwanted
        self._rest = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
            self._left -= len(self._rest)
            if self._left < 0 or self._unwanted.is_set():
                raise TransferError("it holds far more than may be copied" if self._left < 0 else "the copying was cancelled")
        data, self._rest = self._rest[:size], self._rest[size:]
        return bytes(data)


async def remove_container(container: Container) -> None:
    """Kill and remove; fine when it is gone already.

    Raises:
        TeardownError
    """
    try:
        async with asyncio.timeout(_REMOVAL_TIMEOUT_SEC):
            while True:
                try:
                    await container.engine.call("DELETE", f"/containers/{container.name}", query={"force": 1, "v": 1})
                except Refused as error:
                    if error.status == 404:
                        return
                    if error.status != 409:
                        raise
                    await asyncio.sleep(0.1)  # somebody else removes it right now
                else:
                    return
    except (SandboxError, TimeoutError) as error:
        raise TeardownError(f"container {container.name} cannot be removed: {error or 'the engine takes too long'}") from error


async def _nothing() -> None:
    """A service is removed with its whole task."""
