"""One command on another machine, seen from here: its streams, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rollout.core.types import Stream
from rollout_ssh.remote import frames

Feed = Callable[[Stream, bytes], bool]
"""Takes output. Whether it is done with it at once: what it keeps is given back with `RunningCommand.took`."""


class RunningCommand:
    """A command that a relay was asked to run. `done` is its exit code."""

    def __init__(self, feed: Feed, *, live: bool = False) -> None:
        """`live`: standard output is read to its end, even when the command has ended."""
        self._feed = feed
        self._send: Callable[[bytes], None] = lambda data: None
        self._room = asyncio.Event()
        self._window = frames.WINDOW_BYTES
        self._unread = False
        self._owed = 0
        self.number = 0
        self.reading = live
        self.on_end_of_output: Callable[[], None] = lambda: None
        self.out_of_memory = False
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.killed: asyncio.Future[None] | None = None

    def begin(self, number: int, send: Callable[[bytes], None]) -> None:
        self.number = number
        self._send = send

    def on_frame(self, kind: int, payload: bytes) -> None:
        if kind in (frames.STDOUT, frames.STDERR):
            if self._feed("stdout" if kind == frames.STDOUT else "stderr", payload):
                self.took(len(payload))
        elif kind == frames.CREDIT:
            self._window += frames.credited(payload)
            self._room.set()
        elif kind == frames.UNREAD:
            self._unread = True
            self._room.set()
        elif kind == frames.END:
            self._end_output()

    def took(self, size: int) -> None:
        """So much output was used up: the other side may send as much more."""
        self._owed += size
        if self._owed >= frames.WINDOW_BYTES // 4:
            self._send(frames.credit(self.number, self._owed))
            self._owed = 0

    async def write(self, data: bytes) -> None:
        """Send to standard input, as the other side takes it.

        Raises:
            BrokenPipeError: nobody reads it any more.
        """
        view = memoryview(data)
        while view:
            while self._window <= 0 and not self._unread and not self.done.done():
                self._room.clear()
                await self._room.wait()
            if self._unread or self.done.done():
                raise BrokenPipeError(32, "the program does not read its standard input any more")
            part = view[: min(self._window, 1 << 16)]
            self._window -= len(part)
            self._send(frames.pack(frames.STDIN, self.number, bytes(part)))
            view = view[len(part) :]

    def close_stdin(self) -> None:
        self._send(frames.pack(frames.END, self.number))

    def ended(self, code: int, out_of_memory: bool) -> None:
        """The main process has ended, and what it printed has arrived."""
        self.out_of_memory = self.out_of_memory or out_of_memory
        if not self.done.done():
            self.done.set_result(code)
        self._room.set()

    def close(self) -> None:
        """No more output is expected."""
        self._end_output()

    def lost(self, error: Exception) -> None:
        for future in (self.done, self.killed):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # seen: nobody may be waiting for it any more
        self._room.set()
        self._end_output()

    def _end_output(self) -> None:
        if self.reading:
            self.reading = False
            self.on_end_of_output()
