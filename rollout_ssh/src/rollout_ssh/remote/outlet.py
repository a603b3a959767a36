"""What goes to Rollout: frames that wait until the channel takes them."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable
from typing import Any

from rollout_ssh.remote import frames
from rollout_ssh.remote.loop import Loop

_PAUSE_BYTES = 2 << 20
_RESUME_BYTES = 256 << 10


class Outlet:
    """Standard output. `on_full` is called when more than is good waits there, and `on_room` when most of that has gone."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._full = False
        self.open = True
        """Whether anybody reads it."""
        self.on_full: Callable[[], None] = lambda: None
        self.on_room: Callable[[], None] = lambda: None
        os.set_blocking(1, False)

    def send(self, data: bytes) -> None:
        self._waiting.append(data)
        self._bytes += len(data)
        if len(self._waiting) == 1:
            self._flush(0)
        if self._bytes > _PAUSE_BYTES and not self._full:
            self._full = True
            self.on_full()

    def reply(self, content: Any) -> None:
        self.send(frames.message(content))

    def _flush(self, events: int) -> None:
        while self._waiting:
            data = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
            try:
                written = os.write(1, data)
            except BlockingIOError:
                written = 0
            except OSError:
                self.open = False
                return
            self._bytes -= written
            self._waiting.clear()
            if written < len(data):
                self._waiting.append(data[written:])
                self._loop.watch(1, select.EPOLLOUT, self._flush)
                break
        else:
            self._loop.forget(1)
        if self._full and self._bytes < _RESUME_BYTES:
            self._full = False
            self.on_room()
