"""The folder of images that were built or fetched: shared by jobs, and by machines where it lies on a shared file system.

An image comes into place by a rename, which a shared file system does in one step: whoever reads sees a whole image or none, and
two machines that make the same image at once do no harm. The lock only keeps the second from doing the work again. It is a file
made with O_EXCL, because `flock` does not reach other machines on every NFS; its owner touches it while it works, and a lock that
is not touched any more is taken over.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from rollout.core.aio import Blocking
from rollout.core.errors import BuildError
from rollout_apptainer import sif

_POLL_SEC = 0.2
_TOUCH_SEC = 10.0
_STALE_SEC = 60.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


class ImageCache:
    """SIF files by key."""

    def __init__(self, root: Path, blocking: Blocking, job_id: str) -> None:
        self.root = root
        self._blocking = blocking
        self._host = socket.gethostname()
        self._job_id = job_id
        self._made: set[str] = set()
        self._used: set[str] = set()

    def path(self, key: str) -> Path:
        return self.root / f"{key}.sif"

    async def get(self, key: str, make: Callable[[Path], Awaitable[None]], *, force: bool) -> Path:
        """The image `key`, made by `make(path)` unless there is a whole one already.

        Raises:
            BuildError: also when the folder cannot be written, with its name in the text.
        """
        final = self.path(key)
        before = await self._blocking(_identity, final)
        if before is not None and not force:
            await self._blocking(self._use, key)
            return final
        try:
            async with self._locked(key):
                now = await self._blocking(_identity, final)
                if now is None or (force and now == before):  # else somebody else has just made it
                    await self._make(key, final, make)
                    self._made.add(key)
                await self._blocking(self._use, key)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise BuildError(
                f"the folder of images {self.root} cannot be written ({error.strerror}): make room or name another one in "
                "environment.options.cache"
            ) from error
        return final

    async def remove(self, path: Path) -> None:
        """Remove an image if this job made it and no other job uses it."""
        key = path.name.removesuffix(".sif")
        if path.parent == self.root and key in self._made:
            await self._blocking(self._remove, key)
            self._made.discard(key)

    def close(self) -> None:
        """Use nothing any more."""
        for key in self._used:
            with suppress(OSError):
                self._marker(key).unlink()
            with suppress(OSError):
                self._marker(key).parent.rmdir()
        self._used.clear()

    async def _make(self, key: str, final: Path, make: Callable[[Path], Awaitable[None]]) -> None:
        for left in await self._blocking(lambda: list(self.root.glob(f"{key}.*.part"))):
            await self._blocking(left.unlink)  # of a builder that died
        part = self.root / f"{key}.{self._host}-{os.getpid()}-{os.urandom(4).hex()}.part"
        try:
            await make(part)
            try:
                await self._blocking(sif.read, part)
            except sif.NotSifError as error:
                raise BuildError(f"the image that was made in {self.root} is not whole ({error}): is the disk full?") from error
            await self._blocking(os.replace, part, final)
        finally:
            with suppress(FileNotFoundError):
                await self._blocking(part.unlink)

    @asynccontextmanager
    async def _locked(self, key: str) -> AsyncIterator[None]:
        await self._blocking(lambda: self.root.mkdir(mode=0o700, parents=True, exist_ok=True))
        lock = self.root / f"{key}.lock"
        while not await self._blocking(self._take, lock):  # noqa: ASYNC110 - its owner may be on another machine
            await asyncio.sleep(_POLL_SEC)
        touching = asyncio.ensure_future(self._touch(lock))
        try:
            yield
        finally:
            touching.cancel()
            with suppress(OSError):
                lock.unlink()

    def _take(self, lock: Path) -> bool:
        try:
            descriptor = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            self._break_stale(lock)
            return False
        with os.fdopen(descriptor, "w") as file:
            json.dump({"host": self._host, "pid": os.getpid(), "boot": _boot()}, file)
        return True

    def _break_stale(self, lock: Path) -> None:
        try:
            age = self._now() - lock.stat().st_mtime
            text = lock.read_text()
        except OSError:
            return  # given back meanwhile
        try:
            owner = json.loads(text)
            here = owner["host"] == self._host and owner["boot"] == _boot()
            dead = here and not os.path.exists(f"/proc/{int(owner['pid'])}")
        except (ValueError, KeyError, TypeError):
            dead = False  # its owner is just writing it, or died while it did
        if dead or age > _STALE_SEC:
            aside = lock.with_name(f"{lock.name}.{self._host}-{os.getpid()}-{os.urandom(4).hex()}.part")
            with suppress(OSError):
                os.rename(lock, aside)  # one of several that try succeeds
                if aside.read_text() != text:  # not the one that was looked at: a fresh one
                    os.link(aside, lock)
                aside.unlink()

    def _now(self) -> float:
        """The file system's clock, which on another machine need not be this one's."""
        probe = self.root / f".clock-{self._host}-{os.getpid()}-{os.urandom(4).hex()}"
        try:
            probe.touch()
            return probe.stat().st_mtime
        except OSError:
            return time.time()
        finally:
            with suppress(OSError):
                probe.unlink()

    async def _touch(self, lock: Path) -> None:
        while True:
            await asyncio.sleep(_TOUCH_SEC)
            with suppress(OSError):
                await self._blocking(os.utime, lock)

    def _marker(self, key: str) -> Path:
        return self.root / f"{key}.users" / f"{self._job_id}@{self._host}"

    def _use(self, key: str) -> None:
        if key in self._used:
            return
        self._used.add(key)
        marker = self._marker(key)
        try:
            marker.parent.mkdir(exist_ok=True)
            marker.touch()
        except OSError:  # a folder that cannot be written: nobody removes anything from it either
            return

    def _remove(self, key: str) -> None:
        marker = self._marker(key)
        with suppress(OSError):
            marker.unlink()
        self._used.discard(key)
        with suppress(OSError):
            marker.parent.rmdir()
        if not marker.parent.exists():
            self.path(key).unlink(missing_ok=True)


def _identity(path: Path) -> str | None:
    """Of a whole image; None where there is none."""
    try:
        return sif.read(path).id
    except (OSError, sif.NotSifError):
        return None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
