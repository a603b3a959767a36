"""`mode: host`: the bare machine, leased to one trial. Commands, files, the end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import posixpath
import queue
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import paramiko

from rollout.core.aio import Blocking, run_shielded
from rollout.core.archive import pack, unpack
from rollout.core.capture import OutputCapture
from rollout.core.errors import (
    CommandTimeoutError,
    EnvironmentLostError,
    HostLostError,
    SandboxError,
    TransferError,
)
from rollout.core.notes import Notes
from rollout.core.types import DEFAULT_TRANSFER_LIMITS, Command, ExecResult, OutputSink, Stream, TransferLimits, TransferReport
from rollout_ssh import scripts
from rollout_ssh.channels import Channels
from rollout_ssh.connection import Unreachable
from rollout_ssh.holder import Holder
from rollout_ssh.namespace import check_path

_CHUNK = 1 << 15
_READ = 1 << 18
_MAX_WAITING_BYTES = 1 << 20
_KILL_SEC = 60.0
_MISSING = 3


class BareEnvironment:
    """The Environment of `type: ssh`, `mode: host`."""

    def __init__(self, name: str, channels: Channels, holder: Holder, blocking: Blocking, ended: Callable[[bool], None]) -> None:
        self._name = name
        self._channels = channels
        self._holder = holder
        self._blocking = blocking
        self._ended = ended
        self._running: set[BareCommand] = set()
        self._owners: dict[str, tuple[int, int]] = {}
        self._gone: EnvironmentLostError | None = None
        self._stopping: asyncio.Task[None] | None = None
        self.env: Mapping[str, str] = {}
        self.workdir = "/"
        self.user: str | None = None
        holder.on_lost = self._lost

    async def exec(self, command: Command, sink: OutputSink | None = None) -> ExecResult:
        capture = OutputCapture(command.max_output_bytes, sink)
        running = BareCommand(self, capture.feed)
        try:
            async with asyncio.timeout(command.timeout_sec):
                await running.run(command, stdin=command.stdin or b"")
                code = await asyncio.shield(running.done)
        except TimeoutError as error:
            await run_shielded(running.kill())
            text = f"{command.argv[0]} was still running after {command.timeout_sec:g} s; its processes were killed"
            raise CommandTimeoutError(text) from error
        except asyncio.CancelledError:
            await run_shielded(running.kill())
            raise
        return capture.result(code)

    async def open(self, command: Command, sink: OutputSink | None = None) -> BareProcess:
        process = BareProcess(self, sink)
        try:
            await process.running.run(command, stdin=None)
        except asyncio.CancelledError:
            await run_shielded(process.running.kill())
            raise
        return process

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
        ids = await self._owner(owner)
        name = posixpath.normpath(target).strip("/") or "."
        complaint = OutputCapture(4096)
        running = BareCommand(self, complaint.feed)

        def work(channel: paramiko.Channel) -> None:
            out = _Sender(channel)
            try:
                pack(source, out, name=name, owner=ids, mode=mode, keep=keep)
                out.flush()
                channel.shutdown_write()
            except OSError:
                return  # the other side has stopped and says why

        code, _ = await self._transfer(running, scripts.tar_in(), work)
        if code != 0:
            raise TransferError(f"cannot copy {source} to {target}: {_said(complaint)}")

    async def download(self, source: str, target: Path, limits: TransferLimits = DEFAULT_TRANSFER_LIMITS) -> TransferReport:
        check_path(source)
        source = posixpath.normpath(source)
        folder, name = posixpath.split(source)
        complaint = OutputCapture(1 << 20)
        loop = asyncio.get_running_loop()
        stream = _Stream()

        def feed(kind: Stream, chunk: bytes) -> None:
            if kind == "stdout":
                stream.feed(chunk)
            else:
                complaint.feed(kind, chunk)

        running = BareCommand(self, feed)
        running.has_room = stream.has_room
        stream.on_room = lambda: loop.call_soon_threadsafe(running.resume)
        running.done.add_done_callback(lambda done: stream.feed(b""))

        def work(channel: paramiko.Channel) -> TransferReport | TransferError:
            try:
                return unpack(stream, target, limits)
            except TransferError as error:
                return error
            finally:
                stream.discard()

        argv = scripts.tar_out(folder or "/", name or ".", limits.max_file_bytes)
        code, outcome = await self._transfer(running, argv, work)
        if code == _MISSING:
            raise FileNotFoundError(errno.ENOENT, "no such file or folder in the environment", source)
        *large, words = complaint.result(0).stderr.split(b"\0")
        if isinstance(outcome, TransferReport):
            left_out = [
                (path.decode("utf-8", "backslashreplace").removeprefix("./"), f"larger than {limits.max_file_bytes} bytes")
                for path in large
            ]
            skipped = (*outcome.skipped, *left_out)
            return msgspec.structs.replace(outcome, skipped=skipped[:100], skipped_count=outcome.skipped_count + len(left_out))
        why = words.decode("utf-8", "replace").strip() if code and words.strip() else str(outcome)
        raise TransferError(f"cannot copy {source} out of the environment: {why}") from outcome

    async def kill_everything(self) -> None:
        """Every process that was started here; not those of the machine, which `kill -9 -1` would reach."""
        if self._gone is None:
            script = scripts.kill_all(self._holder.token, self._holder.group)
            await self._shell(script, "rollout-kill")

    def disown(self) -> None:
        """Whoever made it gives its slot back himself."""
        self._ended = lambda worked: None

    async def stop(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await run_shielded(_wait(self._stopping))

    async def _stop(self) -> None:
        lost = isinstance(self._gone, HostLostError)
        self._lose(EnvironmentLostError("the environment was stopped"))
        try:
            if not lost:
                await self._holder.release()
        except HostLostError:
            lost = True  # the machine hears of it from the end of the connection, or from our silence
        finally:
            self._holder.close()
            await self._blocking(self._channels.close)
            self._ended(not lost)

    async def _shell(self, script: str, *words: str) -> None:
        """Run a script outside of the trial's processes, to its end."""
        line, data = scripts.command_line(script, *words)
        try:
            channel, release = await self._channels.open(line)
        except Unreachable as error:
            raise self._lost(str(error)) from error
        try:
            await self._blocking(_talk, channel, data)
        finally:
            channel.close()
            release()

    async def _owner(self, owner: str | None) -> tuple[int, int]:
        if owner is None:
            self._check()
            return 0, 0
        if owner not in self._owners:
            asking = Command(argv=("sh", "-c", "id -u && id -g"), user=owner, cwd="/", max_output_bytes=100)
            result = await self.exec(asking)
            ids = result.stdout.split()
            if result.exit_code != 0 or len(ids) != 2:
                raise TransferError(f"the environment does not know the user {owner}")
            self._owners[owner] = int(ids[0]), int(ids[1])
        return self._owners[owner]

    async def _transfer(self, running: BareCommand, argv: list[str], work: Callable[[paramiko.Channel], Any]) -> tuple[int, Any]:
        """Run one side of a transfer in a thread and the other on the host; the exit code there, the outcome here."""
        thread: asyncio.Future[Any] | None = None
        try:
            await running.run(Command(argv=tuple(argv), user=None, cwd="/"), stdin=None, plain=True)
            thread = asyncio.ensure_future(self._blocking(work, running.channel))
            outcome = await asyncio.shield(thread)
            if isinstance(outcome, TransferReport) and not running.done.done():
                running.close_soon()  # all that is wanted has come
                await asyncio.wait([running.done], timeout=1.0)
                if not running.done.done():
                    await running.kill()
                    return 0, outcome
            return await asyncio.shield(running.done), outcome
        except asyncio.CancelledError:
            await run_shielded(running.kill())
            if thread is not None:
                await run_shielded(_settle(thread))
            raise
        except TransferError:
            await run_shielded(running.kill())
            raise

    def account(self, user: str | None) -> str | None:
        """Whom to become; None is to stay who we are. Raises SandboxError."""
        user = user or self.user
        if self._holder.user_id == 0 or user is None:
            return user
        if user in ("root", "0", "0:0", "root:root"):
            return None
        raise SandboxError(f"{self._name} cannot run as user {user}: that takes to log in as root")

    def _check(self) -> None:
        if self._gone is not None:
            raise self._gone

    def _lost(self, why: str) -> HostLostError:
        error = HostLostError(f"{self._name} is lost: {why}")
        self._lose(error)
        return error

    def _lose(self, error: EnvironmentLostError) -> None:
        self._gone = self._gone or error
        for running in list(self._running):
            running.lose(error)
        self._running.clear()


class BareCommand:
    """One command on a channel of its own. `done` is its exit code."""

    def __init__(self, environment: BareEnvironment, feed: Callable[[Stream, bytes], None]) -> None:
        self._environment = environment
        self._feed = feed
        mark = f"\x1erollout-{secrets.token_hex(16)} "
        self._mark = mark
        self._notes: dict[Stream, Notes] = {"stdout": Notes(mark.encode()), "stderr": Notes(mark.encode())}
        self._before: dict[Stream, bytes] = {"stdout": b"", "stderr": b""}
        self._pids: set[Stream] = set()
        self._codes: dict[Stream, int] = {}
        self._loop = asyncio.get_running_loop()
        self._reader: int | None = None
        self._release: Callable[[], None] = lambda: None
        self._session: asyncio.Future[str | None] = self._loop.create_future()
        self._writing: asyncio.Future[bool] | None = None
        self.channel: paramiko.Channel
        self.has_room: Callable[[], bool] = lambda: True
        self.done: asyncio.Future[int] = self._loop.create_future()

    async def run(self, command: Command, *, stdin: bytes | None, plain: bool = False) -> None:
        """Start it. `stdin` None leaves standard input open; `plain` is without the trial's variables and folder."""
        environment = self._environment
        if not command.argv:
            raise ValueError("a command needs at least a program")
        environment._check()
        try:
            script = scripts.run(
                command.argv,
                mark=self._mark,
                token=environment._holder.token,
                group=environment._holder.group,
                env={} if plain else {**environment.env, **command.env},
                workdir="/" if plain else environment.workdir,
                cwd=command.cwd,
                user=None if plain else environment.account(command.user),
                net=environment._holder.net,
            )
        except ValueError as error:
            raise SandboxError(str(error)) from error
        line, data = scripts.command_line(script)
        opening = asyncio.ensure_future(environment._channels.open(line))
        try:
            self.channel, self._release = await asyncio.shield(opening)
        except asyncio.CancelledError:
            await run_shielded(_undo(opening))
            raise
        except Unreachable as error:
            raise environment._lost(str(error)) from error
        environment._running.add(self)
        if environment._gone is not None:
            self.lose(environment._gone)
            raise environment._gone
        self.channel.setblocking(True)
        self._reader = self.channel.fileno()
        self._loop.add_reader(self._reader, self._readable)
        if len(data) + len(stdin or b"") <= _CHUNK and stdin is not None:
            await environment._blocking(_feed_channel, self.channel, data + stdin, True)
        else:
            await environment._blocking(_feed_channel, self.channel, data, False)
            if stdin is not None:
                # a thread of its own: whether and when the program reads is its own affair
                self._writing = asyncio.ensure_future(environment._blocking(_feed_channel, self.channel, stdin, True))

    async def write(self, data: bytes) -> None:
        """Raises BrokenPipeError when the program no longer reads."""
        if self.done.done() or self.channel.closed:
            raise BrokenPipeError(errno.EPIPE, "the program does not read its standard input any more")
        if not await self._environment._blocking(_feed_channel, self.channel, data, False):
            raise BrokenPipeError(errno.EPIPE, "the program does not read its standard input any more")

    def close_soon(self) -> None:
        with contextlib.suppress(OSError):
            self.channel.shutdown_write()

    async def kill(self) -> None:
        """Kill everything in the command's session and wait until it is gone."""
        if self.done.done() or self._reader is None:
            return
        session = None
        try:
            async with asyncio.timeout(_KILL_SEC):
                session = await asyncio.shield(self._session)
        except TimeoutError:
            self._end(137)
            return
        if session is not None and not self.done.done():
            try:
                async with asyncio.timeout(_KILL_SEC):
                    await self._environment._shell(scripts.KILL, "rollout-kill", session)
            except (EnvironmentLostError, TimeoutError):
                return
        self._end(137)

    def resume(self) -> None:
        """There is room for output again."""
        if self._reader is not None:
            self._loop.add_reader(self._reader, self._readable)
            self._readable()

    def lose(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # seen: nobody may be waiting for it any more
        self._close()

    def _readable(self) -> None:
        channel = self.channel
        while not self.done.done():
            over = channel.eof_received or channel.closed  # before the look at what has come, which another thread adds to
            if channel.recv_stderr_ready():
                self._take("stderr", channel.recv_stderr(_READ))
            elif channel.recv_ready():
                if not self.has_room():
                    self._pause()
                    return
                self._take("stdout", channel.recv(_READ))
            elif over:
                self._cut_off()
                return
            else:
                return

    def _take(self, stream: Stream, data: bytes) -> None:
        if stream in self._before:
            # what a login shell prints before our own script runs is nobody's output
            data = self._before[stream] + data
            at = data.find(self._mark.encode())
            if at < 0:
                self._before[stream] = data[-_MAX_WAITING_BYTES:]
                return
            del self._before[stream]
            data = data[at:]
        output, notes = self._notes[stream].feed(data)
        for note in notes:
            text = note.decode("ascii", "replace")
            if stream not in self._pids:
                self._pids.add(stream)
                if not self._session.done():
                    self._session.set_result(text)
            else:
                self._codes[stream] = int(text) if text.isdigit() else 126
        if output:
            self._feed(stream, output)
        if len(self._codes) == 2:
            self._end(self._codes["stdout"])

    def _cut_off(self) -> None:
        """The channel ended without a word of how the command did: somebody killed its shell, or the connection broke."""
        if not self._environment._channels.alive:
            self._environment._lost("the connection broke")
            return
        for stream, notes in self._notes.items():
            if rest := self._before.get(stream, b"") + notes.rest():
                self._feed(stream, rest)
        code = self.channel.exit_status if self.channel.exit_status_ready() else 137
        self._end(code if code >= 0 else 137)

    def _end(self, code: int) -> None:
        if not self.done.done():
            self.done.set_result(code)
        self._environment._running.discard(self)
        self._close()

    def _pause(self) -> None:
        if self._reader is not None:
            self._loop.remove_reader(self._reader)

    def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is None:
            return
        self._loop.remove_reader(reader)
        if not self._session.done():
            self._session.set_result(None)
        release, self._release = self._release, lambda: None
        closing = asyncio.ensure_future(self._environment._blocking(self.channel.close))
        closing.add_done_callback(lambda done: (done.cancelled() or done.exception(), release())[1])


class BareProcess:
    """A command with live standard streams."""

    def __init__(self, environment: BareEnvironment, sink: OutputSink | None) -> None:
        self._sink = sink
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._arrived = asyncio.Event()
        self.running = BareCommand(environment, self._take)
        self.running.has_room = lambda: self._bytes < _MAX_WAITING_BYTES
        self.running.done.add_done_callback(lambda done: self._arrived.set())

    async def write(self, data: bytes) -> None:
        """Raises BrokenPipeError when the program no longer reads."""
        await self.running.write(data)

    async def close_stdin(self) -> None:
        self.running.close_soon()

    async def output(self) -> AsyncIterator[bytes]:
        while True:
            self._arrived.clear()
            if self._waiting:
                chunk = b"".join(self._waiting)
                self._waiting.clear()
                self._bytes = 0
                self.running.resume()
                yield chunk
            elif self.running.done.done():
                return
            else:
                await self._arrived.wait()

    async def wait(self) -> int:
        return await asyncio.shield(self.running.done)

    async def kill(self) -> None:
        await run_shielded(self.running.kill())

    def _take(self, stream: Stream, chunk: bytes) -> None:
        if stream == "stderr":
            if self._sink is not None:
                self._sink(stream, chunk)
            return
        self._waiting.append(chunk)
        self._bytes += len(chunk)
        self._arrived.set()


class _Sender:
    """A file that a thread writes to, whose content goes into a channel."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self._held = bytearray()

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        self._held += data
        if len(self._held) >= _READ:
            self.flush()
        return len(data)

    def flush(self) -> None:
        data, self._held = bytes(self._held), bytearray()
        _send(self._channel, data)


class _Stream:
    """Chunks that the event loop gives and a thread reads, with a limit to what waits."""

    def __init__(self) -> None:
        self._chunks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._rest = memoryview(b"")
        self._waiting_bytes = 0
        self._over = self._unwanted = False
        self.on_room: Callable[[], object] = lambda: None

    def has_room(self) -> bool:
        return self._unwanted or self._waiting_bytes < _MAX_WAITING_BYTES

    def feed(self, chunk: bytes) -> None:
        if not self._unwanted:
            self._waiting_bytes += len(chunk)
            self._chunks.put(chunk)

    def read(self, size: int, /) -> bytes:
        if not self._rest and not self._over:
            chunk = self._chunks.get()
            was_full = not self.has_room()
            self._waiting_bytes -= len(chunk)
            self._over = not chunk
            self._rest = memoryview(chunk)
            if was_full and self.has_room():
                self.on_room()
        data, self._rest = self._rest[:size], self._rest[size:]
        return bytes(data)

    def discard(self) -> None:
        """What still comes is thrown away."""
        self._unwanted = True
        self.on_room()


def _send(channel: paramiko.Channel, data: bytes) -> None:
    view = memoryview(data)
    for start in range(0, len(view), _CHUNK):
        channel.sendall(bytes(view[start : start + _CHUNK]))


def _feed_channel(channel: paramiko.Channel, data: bytes, last: bool) -> bool:
    """Whether the other side took it."""
    try:
        _send(channel, data)
        if last:
            channel.shutdown_write()
    except OSError:
        return False
    return True


def _talk(channel: paramiko.Channel, data: bytes) -> None:
    """Give a script to a shell and wait for its end."""
    if _feed_channel(channel, data, True):
        while channel.recv(_READ):
            pass


def _said(complaint: OutputCapture) -> str:
    return complaint.result(0).stderr.decode("utf-8", "replace").strip() or "the transfer was interrupted"


async def _undo(opening: asyncio.Future[Any]) -> None:
    """Close a channel that came too late."""
    await asyncio.wait([opening])
    if not opening.cancelled() and opening.exception() is None:
        channel, release = opening.result()
        channel.close()
        release()


async def _wait(future: asyncio.Future[Any]) -> None:
    await asyncio.shield(future)


async def _settle(thread: asyncio.Future[Any]) -> None:
    """Wait for a thread whose outcome nobody wants any more."""
    await asyncio.wait([thread])
    if not thread.cancelled():
        thread.exception()
