"""The lease of a bare host: a script there that makes it ours, and puts it back when we end, die or fall silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import paramiko

from rollout.core.aio import Blocking, off_the_clock
from rollout.core.errors import HostLostError
from rollout_ssh import scripts
from rollout_ssh.connection import Connection, Refused, Unreachable
from rollout_ssh.control_groups import GroupLimits, named

_BEAT_SEC = 5.0
_READY_SEC = 60.0
_RELEASE_SEC = 120.0


class Holder:
    """Use `take`. Belongs to one event loop."""

    def __init__(self, name: str, channel: paramiko.Channel, blocking: Blocking, token: str, lost_after_sec: float) -> None:
        self.name = name
        self.token = token
        self.groups: tuple[str, ...] = ()
        """The control groups of the lease; the first, where there is one, has all its processes."""
        self.made = False
        """Whether the folder that was asked for is there."""
        self.enforced: tuple[str, ...] = ()
        """The limits that hold: `memory`, `cpu`, `pids`."""
        self.net: str | None = None
        """The process whose network the trial's commands have; None is the machine's own."""
        self.machine = ""
        self.user_id = -1
        self.on_lost: Callable[[str], object] = lambda why: None
        self._channel = channel
        self._blocking = blocking
        self._lost_after_sec = lost_after_sec
        self._loop = asyncio.get_running_loop()
        self._text = b""
        self._lines: asyncio.Queue[list[str]] = asyncio.Queue()
        self._heard = time.monotonic()
        self._beating: asyncio.Task[None] | None = None
        self._reader: int | None = channel.fileno()
        self._loop.add_reader(self._reader, self._readable)

    @classmethod
    async def take(
        cls,
        connection: Connection,
        blocking: Blocking,
        token: str,
        lost_after_sec: float,
        busy: Callable[[], None],
        *,
        network: str = "host",
        limits: GroupLimits | None = None,
        folder: str = "",
    ) -> Holder:
        """Lease the host; waits, off the clock, while somebody else has it, and calls `busy` then. `folder` is made.

        Raises:
            Refused: it cannot be leased, and never will.
            Unreachable
        """
        silence = f"{2 * lost_after_sec:g}"
        words = (token, silence, network, *(limits or GroupLimits()).words(), folder)
        line, data = scripts.command_line(scripts.HOLDER, "rollout-holder", *words)
        try:
            channel = await blocking(connection.run, line, _READY_SEC)
        except paramiko.ChannelException as error:
            raise Unreachable(f"{connection.name}: it opens no channel: {error.text}") from error
        holder = cls(connection.name, channel, blocking, token, lost_after_sec)
        try:
            await blocking(channel.sendall, data)
            await holder._ready(busy)
        except OSError as error:
            holder.close()
            raise Unreachable(f"{connection.name}: {error}") from error
        except BaseException:
            holder.close()
            raise
        holder._beating = asyncio.ensure_future(holder._beat())
        return holder

    async def release(self) -> None:
        """Give the host back, and wait until it is as it was.

        Raises:
            HostLostError
        """
        self._end_beating()
        try:
            async with asyncio.timeout(_RELEASE_SEC):
                await self._blocking(self._channel.shutdown_write)
                while (await self._lines.get())[:1] not in ([], [scripts.DONE]):
                    continue
        except (TimeoutError, OSError) as error:
            raise HostLostError(f"{self.name} is lost: it does not give back the lease") from error

    def close(self) -> None:
        self._end_beating()
        if self._reader is not None:
            self._loop.remove_reader(self._reader)
            self._reader = None
        self._channel.close()

    def _end_beating(self) -> None:
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()

    async def _ready(self, busy: Callable[[], None]) -> None:
        while True:
            async with asyncio.timeout(_READY_SEC):
                words = await self._lines.get()
            if not words:
                raise Unreachable(f"{self.name}: the lease ended before it began; does it have a shell, GNU coreutils and tar?")
            if words[0] == scripts.REFUSED:
                raise Refused(f"{self.name}: mode: host: {' '.join(words[1:])}")
            if words[0] == scripts.BUSY:
                busy()
                async with off_the_clock():
                    words = await self._lines.get()
                    while words[:1] == [scripts.BUSY]:
                        words = await self._lines.get()
                self._lines.put_nowait(words)
                continue
            if words[0] == scripts.READY and len(words) == 7:
                self.user_id, self.machine = int(words[1]), words[2]
                self.groups, self.enforced = named(words[3]), named(words[5])
                self.made = words[6] == "made"
                self.net = None if words[4] == "none" else words[4]
                return

    async def _beat(self) -> None:
        """Tell the host that we are there, and notice that it is not."""
        sending: asyncio.Future[int] | None = None
        while True:
            silence = time.monotonic() - self._heard
            if silence > self._lost_after_sec:
                self.on_lost(f"no answer for {silence:.0f} s")
                return
            if sending is None or sending.done():
                sending = asyncio.ensure_future(self._blocking(self._channel.send, b"."))
                # what does not arrive is not answered either
                sending.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.sleep(min(_BEAT_SEC, self._lost_after_sec / 4))

    def _readable(self) -> None:
        while self._channel.recv_ready() or self._channel.recv_stderr_ready():
            if self._channel.recv_stderr_ready():
                self._channel.recv_stderr(1 << 16)
                continue
            self._text += self._channel.recv(1 << 16)
            self._heard = time.monotonic()
            *lines, self._text = self._text.split(b"\n")
            for line in lines:
                words = line.decode("utf-8", "replace").split()
                if words and words[0] != scripts.BEAT:
                    self._lines.put_nowait(words)
        if (self._channel.eof_received or self._channel.closed) and self._reader is not None:
            self._loop.remove_reader(self._reader)
            self._reader = None
            self._lines.put_nowait([])
            if self._beating is not None:
                self._end_beating()
                self.on_lost("the connection broke")
