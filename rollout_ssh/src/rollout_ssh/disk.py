"""The folder of layers of another machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollout.core.aio import run_shielded
from rollout.core.errors import EnvironmentLostError
from rollout_ssh.session import Session

_LOCK_POLL_SEC = 0.1


class RemoteDisk:
    """Layers below the cache folder of a session's machine."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.root = f"{session.cache}/layers"

    @asynccontextmanager
    async def locked(self, name: str) -> AsyncIterator[None]:
        path = f"{self.root}/{name}"
        while True:
            if (await self._session.file("lock", path))["locked"]:
                break
            await asyncio.sleep(_LOCK_POLL_SEC)  # another job is making it
        try:
            yield
        finally:
            await run_shielded(self._unlock(path))

    async def read(self, path: str) -> bytes | None:
        text = (await self._session.file("read", path))["text"]
        return None if text is None else str(text).encode()

    async def write(self, path: str, data: bytes) -> None:
        await self._session.file("write", path, text=data.decode())

    async def make_folder(self, path: str) -> None:
        await self._session.file("make", path)

    async def rename(self, path: str, target: str) -> None:
        await self._session.file("rename", path, target=target)

    async def remove(self, path: str) -> None:
        if (await self._session.file("exists", path))["exists"]:
            await self._session.remove(path)

    async def _unlock(self, path: str) -> None:
        try:
            await self._session.file("unlock", path)
        except EnvironmentLostError:
            return  # and with the machine's relay, its locks
