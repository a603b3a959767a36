"""One started sandbox, seen from Rollout: commands, files, the end. The other side of its socket is `inside.init`."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import posixpath
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from rollout.core.aio import Blocking, joined, run_shielded
from rollout.core.archive import pack, unpack
from rollout.core.archive.transfer import BUFFER_BYTES, both_sides, check_path, said
from rollout.core.capture import OutputCapture
from rollout.core.egress.access import RELAY_ADDRESS, rules_of
from rollout.core.egress.relay import Relay
from rollout.core.errors import EnvironmentLostError, SandboxError, StartError, TransferError
from rollout.core.live import LiveOutput, in_time
from rollout.core.sandbox.inside.transfer import MISSING
from rollout.core.sandbox.link import Link
from rollout.core.sandbox.oom import OomCounter
from rollout.core.sandbox.running import OutputPipe, RunningCommand
from rollout.core.types import (
    DEFAULT_TRANSFER_LIMITS,
    Command,
    ExecResult,
    NetworkAccess,
    OutputSink,
    TransferLimits,
    TransferReport,
)


class SandboxEnvironment:
    """An Environment whose commands are run by an `inside.init`."""

    def __init__(
        self,
        control: socket.socket,
        blocking: Blocking,
        oom: OomCounter,
        end: Callable[[], Awaitable[None]],
        *,
        refused: Callable[[dict[str, Any]], StartError],
        only_root: str | None = None,
    ) -> None:
        """`end`: what ends the sandbox and removes what is left of it, once. `refused`: the error for a start that init reports
        as failed. `only_root`: why no other user can be had; None when it can."""
        self._blocking = blocking
        self._oom = oom
        self._end = end
        self._refused = refused
        self._only_root = only_root
        self._numbers = itertools.count(1)
        self._running: dict[int, RunningCommand] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gone: str | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._processes: set[SandboxProcess] = set()
        self._sockets: list[socket.socket] = []  # of the sandbox's network, served out here
        self._relay: Relay | None = None
        self._link = Link(control, self._on_message, self._on_lost)

    async def ready(self) -> None:
        """Wait until it accepts commands. Leaves nothing behind when that fails or is cancelled.

        Raises:
            StartError
        """
        try:
            await self._ready
        except BaseException:
            await run_shielded(self.stop())
            raise

    async def open_relay(self, access: NetworkAccess) -> None:
        """Serve the sockets that a sandbox with the network `relay` has sent: all that it reaches, it reaches through them."""
        relay = self._relay = Relay(rules_of(access), RELAY_ADDRESS, only_way=True)
        *listeners, names = self._sockets
        self._sockets = []
        await relay.serve(listeners, names)

    async def set_network(self, access: NetworkAccess) -> None:
        """Without a relay nothing happens: the job's options say what the network is, whatever the task wants."""
        if self._relay is not None:
            await self._relay.change(rules_of(access))

    async def exec(self, command: Command, sink: OutputSink | None = None) -> ExecResult:
        capture = OutputCapture(command.max_output_bytes, sink)
        oom_kills = self._oom.read()
        running = self._launch(self._request(command), _input(command.stdin), capture.feed)
        async with in_time(command, lambda: self._kill(running)):
            code = await asyncio.shield(running.done)
        return capture.result(code, out_of_memory=self._oom.read() > oom_kills)

    async def open(self, command: Command, sink: OutputSink | None = None) -> SandboxProcess:
        return await SandboxProcess.start(self, command, sink)

    async def upload(self, source: Path, target: str, *, owner: str | None = None) -> None:
        await self.send(source, target, owner=owner)

    async def send(
        self,
        source: Path,
        target: str,
        *,
        owner: str | None = None,
        mode: int | None = None,
        keep: Callable[[str], bool] = lambda path: True,
    ) -> None:
        """`upload`, with the modes replaced and files left out as `rollout.core.archive.pack` has it."""
        check_path(target)
        self._check_user(owner)
        read_end, write_end = os.pipe()
        complaint = OutputCapture(4096)
        arguments = {"target": posixpath.normpath(target), "owner": owner or "0"}
        try:
            running = self._launch({"transfer": "unpack", "arguments": arguments}, read_end, complaint.feed)
        except BaseException:
            os.close(write_end)
            raise
        code, _ = await self._transfer(running, lambda: _send(source, write_end, mode, keep))
        if code != 0:
            raise TransferError(f"cannot copy {source} to {target}: {said(complaint)}")

    async def download(self, source: str, target: Path, limits: TransferLimits = DEFAULT_TRANSFER_LIMITS) -> TransferReport:
        check_path(source)
        arguments = {
            "source": posixpath.normpath(source),
            "max_file_bytes": limits.max_file_bytes,
            "max_files": limits.max_files,
        }
        read_end, write_end = os.pipe()
        complaint = OutputCapture(4096)
        try:
            running = self._launch({"transfer": "pack", "arguments": arguments}, _input(None), complaint.feed, stdout=write_end)
        except BaseException:
            os.close(read_end)
            raise
        code, outcome = await self._transfer(running, lambda: _receive(read_end, target, limits))
        if code == MISSING:
            raise FileNotFoundError(errno.ENOENT, "no such file or folder in the environment", source)
        if isinstance(outcome, TransferReport):
            return outcome
        why = said(complaint) if code else str(outcome)
        raise TransferError(f"cannot copy {source} out of the environment: {why}") from outcome

    async def stop(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await run_shielded(joined(self._stopping))

    async def _stop(self) -> None:
        self._lose(EnvironmentLostError("the environment was stopped"))
        self._link.close()
        for each in self._sockets:
            each.close()
        if self._relay is not None:
            await self._relay.aclose()
        await self._end()

    def _request(self, command: Command) -> dict[str, Any]:
        if not command.argv:
            raise ValueError("a command needs at least a program")
        self._check_user(command.user)
        return {"argv": list(command.argv), "env": dict(command.env), "cwd": command.cwd, "user": command.user}

    def _check_user(self, user: str | None) -> None:
        if self._only_root is not None and user not in (None, "root", "0", "0:0", "root:root"):
            raise SandboxError(f"commands cannot run as user {user} here: {self._only_root}")

    def _launch(
        self, request: dict[str, Any], stdin: int, feed: Callable[[Any, bytes], None], *, stdout: int | None = None
    ) -> RunningCommand:
        """Ask init to run something. Takes over the descriptors."""
        if self._gone is not None:
            os.close(stdin)
            if stdout is not None:
                os.close(stdout)
            raise EnvironmentLostError(f"the environment is gone: {self._gone}")
        pipes: tuple[OutputPipe, ...] = (OutputPipe("stderr", feed),)
        if stdout is None:
            pipes = (OutputPipe("stdout", feed), *pipes)
            stdout = pipes[0].write_end
        running = RunningCommand(next(self._numbers), pipes)
        self._running[running.number] = running
        self._link.send({"op": "exec", "id": running.number, **request}, [stdin, stdout, pipes[-1].write_end])
        return running

    async def _kill(self, running: RunningCommand) -> None:
        """Kill everything in the command's session and wait until it is gone. A sandbox that is gone has nothing to kill."""
        if running.number not in self._running:
            return
        if running.killed is None:
            running.killed = asyncio.get_running_loop().create_future()
            self._link.send({"op": "kill", "id": running.number})
        try:
            await asyncio.shield(running.killed)
        except EnvironmentLostError:
            return

    async def _transfer(self, running: RunningCommand, work: Callable[[], Any]) -> tuple[int, Any]:
        """Run one side of a transfer in a thread and the other in the sandbox; the exit code there, the outcome here."""
        thread = asyncio.ensure_future(self._blocking(work))
        return await both_sides(thread, lambda outcome: asyncio.shield(running.done), lambda: self._kill(running))

    def _on_message(self, message: dict[str, Any]) -> None:
        if "exit" in message:
            running = self._running.get(message["exit"])
            if running is None:
                return
            if "error" in message:
                running.pipes[-1].feed_text(f"rollout: {message['error']}\n".encode())
            running.ended(message["code"], self._hand_over)
            if running.killed is None:
                del self._running[running.number]
        elif "killed" in message:
            running = self._running.pop(message["killed"], None)
            if running is not None and running.killed is not None and not running.killed.done():
                running.ended(137, self._hand_over)
                running.killed.set_result(None)
        elif "sockets" in message:
            self._sockets += [socket.socket(fileno=descriptor) for descriptor in message["descriptors"]]
        elif "ready" in message:
            if not self._ready.done():
                self._ready.set_result(None)
        elif "error" in message and not self._ready.done():
            self._ready.set_exception(self._refused(message))

    def _hand_over(self, descriptors: list[int]) -> None:
        self._link.send({"op": "drain"}, descriptors)

    def _on_lost(self) -> None:
        killed = "; the kernel killed it for memory" if self._oom.read() else ""
        self._lose(EnvironmentLostError(f"the sandbox ended unexpectedly{killed}"))

    def _lose(self, error: EnvironmentLostError) -> None:
        self._gone = self._gone or str(error)
        if not self._ready.done():
            self._ready.set_exception(StartError(f"starting the sandbox: {error}"))
            self._ready.exception()
        for running in list(self._running.values()):
            running.lost(error)
        self._running.clear()
        for process in self._processes:
            process.close()
        self._processes.clear()


class SandboxProcess:
    """A command with live standard streams."""

    def __init__(self, environment: SandboxEnvironment) -> None:
        self._environment = environment
        self._running: RunningCommand
        self._stdin: asyncio.StreamWriter
        self._stdout: _Reading

    @classmethod
    async def start(cls, environment: SandboxEnvironment, command: Command, sink: OutputSink | None) -> SandboxProcess:
        request = environment._request(command)
        loop = asyncio.get_running_loop()
        process = cls(environment)
        stdin_read, stdin_write = os.pipe()
        stdout_read, stdout_write = os.pipe()
        capture = OutputCapture(0, sink)
        try:
            process._running = environment._launch(request, stdin_read, capture.feed, stdout=stdout_write)
        except BaseException:
            os.close(stdin_write)
            os.close(stdout_read)
            raise
        _, process._stdout = await loop.connect_read_pipe(_Reading, os.fdopen(stdout_read, "rb", 0))
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), loop=loop), os.fdopen(stdin_write, "wb", 0)
        )
        process._stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        process._running.done.add_done_callback(process._on_done)
        environment._processes.add(process)
        return process

    async def write(self, data: bytes) -> None:
        """Raises BrokenPipeError when the program no longer reads."""
        try:
            self._stdin.write(data)
            await self._stdin.drain()
        except ConnectionError as error:
            raise BrokenPipeError(errno.EPIPE, "the program closed its standard input") from error

    async def close_stdin(self) -> None:
        self._stdin.close()

    def output(self) -> AsyncIterator[bytes]:
        return self._stdout.live.chunks()

    async def wait(self) -> int:
        self._stdout.live.wait()
        return await asyncio.shield(self._running.done)

    async def kill(self) -> None:
        await run_shielded(self._environment._kill(self._running))
        self._stdin.close()

    def _on_done(self, done: asyncio.Future[int]) -> None:
        self._stdin.close()
        if done.exception() is not None:  # the sandbox is gone
            self.close()

    def close(self) -> None:
        """Let go of the streams; a reader sees the end."""
        self._stdin.close()
        self._stdout.transport.close()
        self._stdout.live.end()


class _Reading(asyncio.Protocol):
    """Standard output from a pipe."""

    transport: asyncio.ReadTransport

    def __init__(self) -> None:
        self.live = LiveOutput(None, lambda size: self.transport.resume_reading())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        self.live.feed("stdout", data)
        if not self.live.has_room:
            self.transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.live.end()


def _input(data: bytes | None) -> int:
    """A descriptor to read `data` from. A file in memory needs nobody to feed it, however large it is."""
    if data is None:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    writable = os.memfd_create("stdin")
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(writable, rest) :]
        return os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(writable)


def _send(source: Path, write_end: int, mode: int | None, keep: Callable[[str], bool]) -> None:
    try:
        with open(write_end, "wb", BUFFER_BYTES) as out:
            pack(source, out, mode=mode, keep=keep)
    except BrokenPipeError:
        return  # the other side has stopped and says why


def _receive(read_end: int, target: Path, limits: TransferLimits) -> TransferReport | TransferError:
    with open(read_end, "rb", BUFFER_BYTES) as stream:
        try:
            return unpack(stream, target, limits)
        except TransferError as error:
            return error
