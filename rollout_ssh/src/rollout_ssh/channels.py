"""Channels to one host for `mode: host`: as many as are needed, over as many connections as that takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import paramiko

from rollout.core.aio import Blocking, run_shielded
from rollout_ssh.connection import Connection, Unreachable

# sshd allows ten on one connection by default, and counts those that are being closed.
_PER_CONNECTION = 8
_MAX_CONNECTIONS = 32
_WAIT_SEC = 0.05
_OPEN_SEC = 60.0


async def connected(connect: Callable[[], Connection], blocking: Blocking) -> Connection:
    """Connect in a thread. A connection that nobody waits for any more, when it is there, is closed."""
    connecting = asyncio.ensure_future(blocking(connect))
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        await run_shielded(_unwanted(connecting, blocking))
        raise


async def _unwanted(connecting: asyncio.Future[Connection], blocking: Blocking) -> None:
    await asyncio.wait([connecting])
    if not connecting.cancelled() and connecting.exception() is None:
        await blocking(connecting.result().close)


class _Line:
    """One connection and how many channels it carries."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.limit = _PER_CONNECTION
        self.used = 0


class Channels:
    """The connections of one lease. What a server allows on one connection is found out by being refused."""

    def __init__(
        self, first: Connection, connect: Callable[[], Connection], blocking: Blocking, keep: Callable[[Connection], None]
    ) -> None:
        """`connect` makes a further connection to the same host; `keep` gets the first one back, if it still works."""
        self._keep = keep
        self._connect = connect
        self._blocking = blocking
        self._lines = [_Line(first)]
        self._growing = asyncio.Lock()
        self._freed = asyncio.Event()
        self._limit = _PER_CONNECTION

    @property
    def alive(self) -> bool:
        return self._lines[0].connection.alive

    async def open(self, command_line: str) -> tuple[paramiko.Channel, Callable[[], None]]:
        """Run something on a channel. Returns it, and what to call when it is closed.

        Raises:
            Unreachable: the connection is gone, or no further one can be made.
        """
        while True:
            line = await self._line()
            try:
                channel = await self._blocking(line.connection.run, command_line, _OPEN_SEC)
            except paramiko.ChannelException:
                self._release(line)
                # others are being closed: they still count
                line.limit = self._limit = max(1, min(self._limit, line.used))
                await asyncio.sleep(_WAIT_SEC)
            except BaseException:
                self._release(line)
                raise
            else:
                return channel, lambda line=line: self._release(line)

    def close(self) -> None:
        """Blocks."""
        for line in self._lines[1:]:
            line.connection.close()
        first = self._lines[0].connection
        if first.alive:
            self._keep(first)
        else:
            first.close()

    def _release(self, line: _Line) -> None:
        line.used -= 1
        self._freed.set()

    async def _line(self) -> _Line:
        while True:
            line = self._free()
            if line is not None:
                return line
            async with self._growing:
                line = self._free()
                if line is None and len(self._lines) < _MAX_CONNECTIONS:
                    line = _Line(await connected(self._connect, self._blocking))
                    line.limit = self._limit
                    line.used = 1
                    self._lines.append(line)
                if line is not None:
                    return line
                self._freed.clear()
                await self._freed.wait()

    def _free(self) -> _Line | None:
        for line in self._lines:
            if line.used < line.limit and line.connection.alive:
                line.used += 1
                return line
        if not self._lines[0].connection.alive:
            raise Unreachable(f"{self._lines[0].connection.name}: the connection broke")
        return None
