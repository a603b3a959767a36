"""An asyncio view of one end of a channel: messages out in order, messages in as they come."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rollout.core.sandbox.inside import channel


class Link:
    """Belongs to one event loop. `on_close` is called once, when the other end is gone.

    A message that came with file descriptors has them as `descriptors`; they are the receiver's to close."""

    def __init__(self, sock: socket.socket, on_message: Callable[[dict[str, Any]], None], on_close: Callable[[], None]) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_close = on_close
        self._waiting: deque[tuple[dict[str, Any], Sequence[int]]] = deque()
        self.closed = False
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._readable)

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send or queue a message. Takes over the descriptors: they are closed here once sent, or when the link is gone."""
        if self.closed:
            _close(descriptors)
            return
        self._waiting.append((message, descriptors))
        if len(self._waiting) == 1:
            self._flush()

    def close(self) -> None:
        """Close this end. `on_close` is not called."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        for _, descriptors in self._waiting:
            _close(descriptors)
        self._waiting.clear()

    def _flush(self) -> None:
        while self._waiting and not self.closed:
            message, descriptors = self._waiting[0]
            try:
                channel.send(self._sock, message, descriptors)
            except BlockingIOError:
                self._loop.add_writer(self._sock.fileno(), self._flush)
                return
            except OSError:
                self._gone()
                return
            self._waiting.popleft()
            _close(descriptors)
        if not self.closed:
            self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        while not self.closed:
            try:
                received = channel.receive(self._sock)
            except BlockingIOError:
                return
            if received is None:
                self._gone()
                return
            message, descriptors = received
            self._on_message({**message, "descriptors": descriptors} if descriptors else message)

    def _gone(self) -> None:
        if not self.closed:
            self.close()
            self._on_close()


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
