"""The byte stream to the other machine's relay, and the threads that keep it moving."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Protocol

_CHUNK = 1 << 15
_JOINED_BYTES = 1 << 18


class Wire(Protocol):
    """A stream both ways whose calls block."""

    def send(self, data: bytes) -> None:
        """Send all of it. Raises OSError when the other end is gone."""
        ...

    def receive(self) -> bytes:
        """The next bytes; nothing when the other end is gone."""
        ...

    def end(self) -> None:
        """Nothing more will be sent; the other end may still answer."""
        ...

    def said(self) -> str:
        """What came on its standard error, the end of it."""
        ...

    def close(self) -> None: ...


class Pump:
    """One thread for each direction of a wire. `on_data` and `on_close` are called in the event loop that made it."""

    def __init__(self, wire: Wire, on_data: Callable[[bytes], None], on_close: Callable[[str], None], name: str) -> None:
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._on_data = on_data
        self._on_close = on_close
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._closed = False
        for work in (self._read, self._write):
            threading.Thread(target=work, name=f"rollout-ssh {name}", daemon=True).start()

    def send(self, data: bytes) -> None:
        """Queue it. From any thread."""
        self._outgoing.put(data)

    def end(self) -> None:
        """End the outgoing stream when everything queued is sent."""
        self._outgoing.put(None)

    def close(self) -> None:
        """Stop; `on_close` is not called any more."""
        self._closed = True
        self._outgoing.put(None)

    def _read(self) -> None:
        why = "the connection was closed"
        try:
            while data := self._wire.receive():
                self._call(self._on_data, data)
        except OSError as error:
            why = str(error) or type(error).__name__
        self._outgoing.put(None)
        self._call(self._on_close, why)

    def _write(self) -> None:
        while (data := self._outgoing.get()) is not None:
            parts, size = [data], len(data)
            while size < _JOINED_BYTES and not self._outgoing.empty():
                more = self._outgoing.get()
                if more is None:
                    self._outgoing.put(None)
                    break
                parts.append(more)
                size += len(more)
            joined = memoryview(b"".join(parts))
            try:
                for start in range(0, len(joined), _CHUNK):
                    self._wire.send(bytes(joined[start : start + _CHUNK]))
            except OSError:
                return  # whoever reads notices
        if not self._closed:
            try:
                self._wire.end()
            except OSError:
                return

    def _call(self, function: Callable[..., None], value: object) -> None:
        if not self._closed:
            try:
                self._loop.call_soon_threadsafe(self._deliver, function, value)
            except RuntimeError:
                self._closed = True  # the loop has ended

    def _deliver(self, function: Callable[..., None], value: object) -> None:
        if not self._closed:
            function(value)
