"""Frames: what goes over the one channel between Rollout and a machine, both ways.

    4 bytes  length of the payload        1 byte  kind        4 bytes  number of a command        payload

A message is a JSON object. The others carry the streams of the command with that number; each direction of each command has a
window, and who reads gives credit for what it has taken, so that one slow reader holds nobody else up.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

MESSAGE = 0
STDOUT = 1
STDERR = 2
STDIN = 3
END = 4
"""No more of standard input, or of a live command's standard output."""
CREDIT = 5
"""So many bytes were taken: 4 bytes."""
UNREAD = 6
"""Nobody reads the command's standard input any more."""

WINDOW_BYTES = 1 << 20
MAX_PAYLOAD_BYTES = 64 << 20

_HEADER = struct.Struct("!IBI")


def pack(kind: int, number: int, payload: bytes = b"") -> bytes:
    return _HEADER.pack(len(payload), kind, number) + payload


def message(content: Any) -> bytes:
    return pack(MESSAGE, 0, json.dumps(content, separators=(",", ":")).encode())


def credit(number: int, size: int) -> bytes:
    return pack(CREDIT, number, struct.pack("!I", size))


def credited(payload: bytes) -> int:
    return int(struct.unpack("!I", payload)[0])


class Splitter:
    """Takes a stream apart into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """(kind, number, payload) of each frame that is whole.

        Raises:
            ValueError: this is not a stream of frames.
        """
        self._rest += data
        while len(self._rest) >= _HEADER.size:
            size, kind, number = _HEADER.unpack_from(self._rest)
            if size > MAX_PAYLOAD_BYTES or kind > UNREAD:
                raise ValueError(f"no frame begins with {bytes(self._rest[:40])!r}")
            end = _HEADER.size + size
            if len(self._rest) < end:
                return
            payload = bytes(self._rest[_HEADER.size : end])
            del self._rest[:end]
            yield kind, number, payload
