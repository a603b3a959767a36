"""`mode: host`: one command on a channel of its own, seen from here: its streams, its end, its kill."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import paramiko

from rollout.core.aio import run_shielded
from rollout.core.errors import EnvironmentLostError, SandboxError
from rollout.core.live import LiveOutput
from rollout.core.notes import Notes
from rollout.core.types import Command, OutputSink, Stream
from rollout_ssh import scripts
from rollout_ssh.connection import Unreachable
from rollout_ssh.machine import LeasedMachine
from rollout_ssh.sending import CHUNK_BYTES, give

_READ = 1 << 18
_MAX_WAITING_BYTES = 1 << 20
_KILL_SEC = 60.0
_OOM = "oom"


class BareCommand:
    """One command on a channel of its own. `done` is its exit code."""

    def __init__(self, machine: LeasedMachine, feed: Callable[[Stream, bytes], None]) -> None:
        self._machine = machine
        self._feed = feed
        mark = f"\x1erollout-{secrets.token_hex(16)} "
        self._mark = mark
        self._notes: dict[Stream, Notes] = {"stdout": Notes(mark.encode()), "stderr": Notes(mark.encode())}
        self._before: dict[Stream, bytes] = {"stdout": b"", "stderr": b""}
        self._pids: set[Stream] = set()
        self._codes: dict[Stream, int] = {}
        self._loop = asyncio.get_running_loop()
        self._reader: int | None = None
        self._paused = False
        self._release: Callable[[], None] = lambda: None
        self._session: asyncio.Future[str | None] = self._loop.create_future()
        self._writing: asyncio.Future[bool] | None = None
        self.channel: paramiko.Channel
        self.out_of_memory = False
        self.has_room: Callable[[], bool] = lambda: True
        self.done: asyncio.Future[int] = self._loop.create_future()

    async def run(self, command: Command, *, stdin: bytes | None, plain: bool = False) -> None:
        """Start it. `stdin` None leaves standard input open; `plain` is without the trial's variables and folder."""
        machine = self._machine
        if not command.argv:
            raise ValueError("a command needs at least a program")
        machine.check()
        try:
            script = scripts.run(
                command.argv,
                mark=self._mark,
                token=machine.holder.token,
                groups=machine.holder.groups,
                file_bytes=None if plain else machine.file_bytes,
                env={} if plain else {**machine.env, **command.env},
                workdir="/" if plain else machine.workdir,
                cwd=command.cwd,
                user=None if plain else machine.account(command.user),
                net=machine.holder.net,
            )
        except ValueError as error:
            raise SandboxError(str(error)) from error
        line, data = scripts.command_line(script)
        opening = asyncio.ensure_future(machine.channels.open(line))
        try:
            self.channel, self._release = await asyncio.shield(opening)
        except asyncio.CancelledError:
            await run_shielded(_undo(opening))
            raise
        except Unreachable as error:
            raise machine.lost(str(error)) from error
        machine.running.add(self)
        if machine.gone is not None:
            self.lose(machine.gone)
            raise machine.gone
        self.channel.setblocking(True)
        self._reader = self.channel.fileno()
        self._loop.add_reader(self._reader, self._readable)
        if len(data) + len(stdin or b"") <= CHUNK_BYTES and stdin is not None:
            await machine.blocking(lambda: give(self.channel, data + (stdin or b""), last=True))
        else:
            await machine.blocking(lambda: give(self.channel, data, last=False))
            if stdin is not None:
                # a thread of its own: whether and when the program reads is its own affair
                self._writing = asyncio.ensure_future(machine.blocking(lambda: give(self.channel, stdin, last=True)))

    async def run_to_carry(self, argv: Sequence[str]) -> None:
        """`run`, as root and without what is the trial's: one side of a transfer. One whose start is cancelled is killed."""
        try:
            await self.run(Command(argv=tuple(argv), user=None, cwd="/"), stdin=None, plain=True)
        except asyncio.CancelledError:
            await run_shielded(self.kill())
            raise

    async def write(self, data: bytes) -> None:
        """Raises BrokenPipeError when the program no longer reads."""
        if self.done.done() or self.channel.closed:
            raise BrokenPipeError(errno.EPIPE, "the program does not read its standard input any more")
        if not await self._machine.blocking(lambda: give(self.channel, data, last=False)):
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
                    await self._machine.shell(scripts.KILL, "rollout-kill", session)
            except (EnvironmentLostError, TimeoutError):
                return
        self._end(137)

    def resume(self) -> None:
        """There is room for output again."""
        if self._paused and self._reader is not None:
            self._paused = False
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
                self.out_of_memory = text.startswith(_OOM)
                text = text.removeprefix(_OOM)
                self._codes[stream] = int(text) if text.isdigit() else 126
        if output:
            self._feed(stream, output)
        if len(self._codes) == 2:
            self._end(self._codes["stdout"])

    def _cut_off(self) -> None:
        """The channel ended without a word of how the command did: somebody killed its shell, or the connection broke."""
        transport = self.channel.get_transport()  # the first connection, or one more that was made for the sake of its channels
        if not transport.is_active() or not self._machine.channels.alive:
            self._machine.lost("the connection broke")
            return
        for stream, notes in self._notes.items():
            if rest := self._before.get(stream, b"") + notes.rest():
                self._feed(stream, rest)
        code = self.channel.exit_status if self.channel.exit_status_ready() else 137
        self._end(code if code >= 0 else 137)

    def _end(self, code: int) -> None:
        if not self.done.done():
            self.done.set_result(code)
        self._machine.running.discard(self)
        self._close()

    def _pause(self) -> None:
        if self._reader is not None:
            self._paused = True
            self._loop.remove_reader(self._reader)

    def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is None:
            return
        self._loop.remove_reader(reader)
        if not self._session.done():
            self._session.set_result(None)
        release, self._release = self._release, lambda: None
        closing = asyncio.ensure_future(self._machine.blocking(self.channel.close))
        closing.add_done_callback(lambda done: (done.cancelled() or done.exception(), release())[1])


class BareProcess:
    """A command with live standard streams."""

    def __init__(self, machine: LeasedMachine, sink: OutputSink | None) -> None:
        self._live = LiveOutput(sink, lambda size: self.running.resume())
        self.running = BareCommand(machine, self._live.feed)
        self.running.has_room = lambda: self._live.has_room
        self.running.done.add_done_callback(lambda done: self._live.end())

    async def write(self, data: bytes) -> None:
        """Raises BrokenPipeError when the program no longer reads."""
        await self.running.write(data)

    async def close_stdin(self) -> None:
        self.running.close_soon()

    def output(self) -> AsyncIterator[bytes]:
        return self._live.chunks()

    async def wait(self) -> int:
        self._live.wait()
        return await asyncio.shield(self.running.done)

    async def kill(self) -> None:
        await run_shielded(self.running.kill())


async def _undo(opening: asyncio.Future[Any]) -> None:
    """Close a channel that came too late."""
    await asyncio.wait([opening])
    if not opening.cancelled() and opening.exception() is None:
        channel, release = opening.result()
        channel.close()
        release()
