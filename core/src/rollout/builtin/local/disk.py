"""The folder of layers of this machine."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rollout.builtin.local.zygote import Zygote
from rollout.core.aio import Blocking

_LOCK_POLL_SEC = 0.1


class LocalDisk:
    """Layers below the cache folder of a zygote."""

    def __init__(self, zygote: Zygote, blocking: Blocking) -> None:
        self._zygote = zygote
        self._blocking = blocking
        self.root = str(zygote.cache / "layers")

    @asynccontextmanager
    async def locked(self, name: str) -> AsyncIterator[None]:
        descriptor = await self._blocking(self._open_lock, name)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:  # another job is making it
                    await asyncio.sleep(_LOCK_POLL_SEC)
            yield
        finally:
            os.close(descriptor)

    async def read(self, path: str) -> bytes | None:
        try:
            return await self._blocking(Path(path).read_bytes)
        except FileNotFoundError:
            return None

    async def write(self, path: str, data: bytes) -> None:
        await self._blocking(Path(path).write_bytes, data)

    async def make_folder(self, path: str) -> None:
        await self._blocking(lambda: Path(path).mkdir(parents=True))

    async def rename(self, path: str, target: str) -> None:
        await self._blocking(os.rename, path, target)

    async def remove(self, path: str) -> None:
        if os.path.lexists(path):
            await self._zygote.remove(Path(path))

    def _open_lock(self, name: str) -> int:
        Path(self.root).mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(f"{self.root}/{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
