"""What the commands of all environments share: a deadline that kills, and standard output that is read as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from rollout.core.aio import run_shielded
from rollout.core.errors import CommandTimeoutError
from rollout.core.types import Command, OutputSink, Stream

MAX_WAITING_BYTES = 1 << 20


@asynccontextmanager
async def in_time(command: Command, kill: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Within the block the command runs to its end. `kill` ends it when its time is over, or when the caller is cancelled.

    Raises:
        CommandTimeoutError
    """
    limit = asyncio.timeout(command.timeout_sec)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise  # of something else
        await run_shielded(kill())
        text = f"{command.argv[0]} was still running after {command.timeout_sec:g} s; its processes were killed"
        raise CommandTimeoutError(text) from error
    except asyncio.CancelledError:
        await run_shielded(kill())
        raise


class LiveOutput:
    """The output of a `Process`: standard output for whoever reads it, standard error for the sink. Belongs to one event loop."""

    def __init__(self, sink: OutputSink | None, used: Callable[[int], object]) -> None:
        """`used` hears how many bytes the reader took: there is room again."""
        self._sink = sink
        self._used = used
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._over = self._read = self._waited_for = False
        self._arrived = asyncio.Event()

    @property
    def has_room(self) -> bool:
        """Whether more is wanted now. What comes all the same is kept."""
        return self._bytes < MAX_WAITING_BYTES or (self._waited_for and not self._read)

    def feed(self, stream: Stream, chunk: bytes) -> None:
        if stream == "stderr":
            if self._sink is not None:
                self._sink(stream, chunk)
            return
        self._waiting.append(chunk)
        self._bytes += len(chunk)
        self._arrived.set()

    def end(self) -> None:
        """No more will come."""
        self._over = True
        self._arrived.set()

    def wait(self) -> None:
        """Somebody waits for the program's end: output that nobody reads must not keep it from ending."""
        self._waited_for = True
        if not self._read:
            self._used(0)

    async def chunks(self) -> AsyncIterator[bytes]:
        """What has come and what comes, to the end."""
        self._read = True
        try:
            while True:
                self._arrived.clear()
                if self._waiting:
                    chunk = b"".join(self._waiting)
                    self._waiting.clear()
                    self._bytes = 0
                    self._used(len(chunk))
                    yield chunk
                elif self._over:
                    return
                else:
                    await self._arrived.wait()
        finally:
            self._read = False
            if self._waited_for:
                self._used(0)
