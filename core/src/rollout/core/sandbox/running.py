"""One command inside a sandbox, seen from outside: its pipes, its end, its kill."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from rollout.core.types import Stream

_CHUNK = 1 << 16
_MAX_DRAIN_READS = 64


class OutputPipe:
    """Feeds what comes out of a pipe to a callback, as the event loop sees it."""

    def __init__(self, stream: Stream, feed: Callable[[Stream, bytes], None]) -> None:
        self._stream = stream
        self._feed = feed
        self._loop = asyncio.get_running_loop()
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.open = True
        self._loop.add_reader(self.read_end, self._readable)

    def _readable(self) -> bool:
        """Read once. Returns whether there may be more."""
        try:
            chunk = os.read(self.read_end, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self.close()
            return False
        self._feed(self._stream, chunk)
        return True

    def feed_text(self, text: bytes) -> None:
        """Put in a word of our own."""
        self._feed(self._stream, text)

    def drain(self) -> None:
        """Take what a command that has ended left in the pipe, and no more: something else may go on writing for ever."""
        for _ in range(_MAX_DRAIN_READS):
            if not self.open or not self._readable():
                return

    def detach(self) -> int | None:
        """Stop reading. The read end, for somebody else to take over, or None when everything was read."""
        if not self.open:
            return None
        self.open = False
        self._loop.remove_reader(self.read_end)
        return self.read_end

    def close(self) -> None:
        descriptor = self.detach()
        if descriptor is not None:
            os.close(descriptor)


class RunningCommand:
    """A command that a sandbox's init was asked to run. `done` is its exit code."""

    def __init__(self, number: int, pipes: tuple[OutputPipe, ...]) -> None:
        self.number = number
        self.pipes = pipes
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.killed: asyncio.Future[None] | None = None

    def ended(self, code: int, hand_over: Callable[[list[int]], None]) -> None:
        """The main process has ended. What its children still print goes to `hand_over`'s keeper."""
        left = []
        for pipe in self.pipes:
            pipe.drain()
            descriptor = pipe.detach()
            if descriptor is not None:
                left.append(descriptor)
        if left:
            hand_over(left)
        if not self.done.done():
            self.done.set_result(code)

    def lost(self, error: Exception) -> None:
        for pipe in self.pipes:
            pipe.drain()
            pipe.close()
        for future in (self.done, self.killed):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # seen: nobody may be waiting for it any more
