"""From the bytes that an agent prints to its messages: everything else that is on the stream is noise, and goes to its log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""A line beyond this is no message."""

Message = dict[str, Any]


class LineFilter:
    """Takes chunks, gives messages. Memory is bounded by the longest message."""

    def __init__(self, on_noise: Callable[[bytes], None], max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._on_noise = on_noise
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._held = 0
        self._dropping = False

    def feed(self, chunk: bytes) -> Iterator[tuple[Message, bytes]]:
        """The messages that are complete now, each with its line."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            line, start = self._complete(chunk[start : end + 1]), end + 1
            if line is None:
                continue
            message = parse(line)
            if message is None:
                self._on_noise(line)
            else:
                yield message, line
        self._hold(chunk[start:])

    def close(self) -> Iterator[tuple[Message, bytes]]:
        """What stood at the end without a newline."""
        line = b"".join(self._parts)
        self._parts, self._held = [], 0
        if line and (message := parse(line)) is not None:
            yield message, line
        elif line:
            self._on_noise(line)

    def _hold(self, part: bytes) -> None:
        if self._dropping:
            self._on_noise(part)
            return
        if not part:
            return
        self._parts.append(part)
        self._held += len(part)
        # What does not begin like a message need not wait for its end.
        plain = not self._parts[0].lstrip(b" \t\r").startswith(b"{") and self._parts[0].strip(b" \t\r") != b""
        if self._held > self._max_bytes or (plain and self._held > 4096):
            for held in self._parts:
                self._on_noise(held)
            self._parts, self._held, self._dropping = [], 0, True

    def _complete(self, end: bytes) -> bytes | None:
        if self._dropping:
            self._on_noise(end)
            self._dropping = False
            return None
        line = b"".join((*self._parts, end))
        self._parts, self._held = [], 0
        if len(line) > self._max_bytes:
            self._on_noise(line)
            return None
        return line


def parse(line: bytes) -> Message | None:
    """The JSON-RPC message of a line; None when it is none.

    What comes through can be handled without looking again: a string `method` or an `id`, parameters and errors of their kinds.
    """
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return None
    if isinstance(message.get("id"), bool) or not isinstance(message.get("id"), int | str | None):
        return None
    if "method" in message:
        usable = isinstance(message["method"], str) and isinstance(message.get("params"), dict | list | None)
    else:
        error = message.get("error")
        usable = message.get("id") is not None and isinstance(error, dict | None)
        if usable and isinstance(error, dict):
            usable = isinstance(error.get("code", 0), int) and isinstance(error.get("message", ""), str)
    return message if usable else None
