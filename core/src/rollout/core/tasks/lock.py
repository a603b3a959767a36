"""A lock that processes of one machine share, waited for without blocking the loop."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rollout.core.files import make_folder, storing

logger = logging.getLogger(__name__)

_FIRST_WAIT_SEC = 0.02
_LONGEST_WAIT_SEC = 0.5
_SAY_SO_AFTER_SEC = 2.0


@asynccontextmanager
async def file_lock(path: Path) -> AsyncIterator[None]:
    """Hold an exclusive lock on `path`. It goes with the process that holds it, however that ends.

    Raises:
        StoreError: the file cannot be made.
    """
    make_folder(path.parent)
    with storing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        await _acquire(descriptor, path)
        yield
    finally:
        os.close(descriptor)


async def _acquire(descriptor: int, path: Path) -> None:
    waited, wait = 0.0, _FIRST_WAIT_SEC
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            await asyncio.sleep(wait)
        if waited < _SAY_SO_AFTER_SEC <= waited + wait:
            logger.warning("waiting for another process that works in %s", path.parent)
        waited += wait
        wait = min(wait * 2, _LONGEST_WAIT_SEC)
