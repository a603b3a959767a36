"""What the transfers of all environments share: one side is a thread that packs or unpacks, the other runs in the sandbox."""

from __future__ import annotations

import asyncio
import queue
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rollout.core.aio import run_shielded, settled
from rollout.core.capture import OutputCapture
from rollout.core.errors import TransferError
from rollout.core.types import Command, ExecResult

BUFFER_BYTES = 1 << 18
_MAX_WAITING_BYTES = 1 << 20


async def both_sides(
    thread: asyncio.Future[Any],
    end: Callable[[Any], Awaitable[int]],
    kill: Callable[[], Coroutine[Any, Any, None]],
) -> tuple[int, Any]:
    """Wait for our side of a transfer and then for the other. The exit code there, the outcome here.

    `thread`: our side; `end`: waits for the other, when ours has come to its outcome; `kill` ends the other when ours fails or
    the caller is cancelled.

    Raises:
        TransferError: ours could not.
    """
    try:
        outcome = await asyncio.shield(thread)
        return await end(outcome), outcome
    except asyncio.CancelledError:
        await run_shielded(kill())
        await run_shielded(settled(thread))
        raise
    except TransferError:
        await run_shielded(kill())
        raise


class Outflow:
    """A file that a thread writes to, whose content goes to the other side in large pieces."""

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self._send = send
        self._held = bytearray()

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        self._held += data
        if len(self._held) >= BUFFER_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        data, self._held = bytes(self._held), bytearray()
        if data:
            self._send(data)


class Inflow:
    """A file that a thread reads and the event loop feeds."""

    def __init__(self, used: Callable[[int], object]) -> None:
        """`used` hears, from either, how much was used up."""
        self._used = used
        self._chunks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._rest = memoryview(b"")
        self._over = False
        self._unwanted = False
        # each is written by one thread only
        self._fed_bytes = 0
        self._read_bytes = 0

    @property
    def has_room(self) -> bool:
        return self._unwanted or self._fed_bytes - self._read_bytes < _MAX_WAITING_BYTES

    def feed(self, chunk: bytes) -> None:
        if self._unwanted:
            self._used(len(chunk))
        else:
            self._fed_bytes += len(chunk)
            self._chunks.put(chunk)

    def end(self) -> None:
        self._chunks.put(b"")

    def read(self, size: int, /) -> bytes:
        if not self._rest and not self._over:
            chunk = self._chunks.get()
            self._over = not chunk
            self._rest = memoryview(chunk)
            self._read_bytes += len(chunk)
            if chunk:
                self._used(len(chunk))
        data, self._rest = self._rest[:size], self._rest[size:]
        return bytes(data)

    def discard(self) -> None:
        """What still comes is thrown away."""
        self._unwanted = True
        while not self._chunks.empty():
            self._used(len(self._chunks.get()))
        self._used(0)


class Owners:
    """Users of an environment as numbers, each asked for once."""

    def __init__(self, exec: Callable[[Command], Awaitable[ExecResult]]) -> None:
        self._exec = exec
        self._known: dict[str, tuple[int, int]] = {}

    async def ids(self, owner: str | None) -> tuple[int, int]:
        """User and group; root's for None.

        Raises:
            TransferError: there is no such user.
        """
        if owner is None:
            return 0, 0
        numbers = re.fullmatch(r"([0-9]{1,10}):([0-9]{1,10})", owner)
        if numbers is not None:
            return int(numbers[1]), int(numbers[2])
        if owner not in self._known:
            asking = Command(argv=("sh", "-c", "id -u && id -g"), user=owner, cwd="/", max_output_bytes=100)
            result = await self._exec(asking)
            ids = result.stdout.split()
            if result.exit_code != 0 or len(ids) != 2:
                raise TransferError(f"the environment does not know the user {owner}")
            self._known[owner] = int(ids[0]), int(ids[1])
        return self._known[owner]


def check_path(path: str) -> None:
    """Raises TransferError."""
    if not path.startswith("/") or "\0" in path:
        raise TransferError(f"{path!r} is not an absolute path of the environment")


def said(complaint: OutputCapture) -> str:
    """What the other side complained about."""
    return complaint.result(0).stderr.decode("utf-8", "replace").strip() or "the transfer was interrupted"
