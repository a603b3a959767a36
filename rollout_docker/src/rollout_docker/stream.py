"""What comes out of a command's connection: the engine's frames."""

from __future__ import annotations

from rollout.core.types import Stream

_HEADER_BYTES = 8


class Frames:
    """Takes the engine's multiplexed stream apart: frames of 8 bytes of header (stream, three zeros, size) and a payload."""

    def __init__(self) -> None:
        self._header = b""
        self._left = 0
        self._stream: Stream = "stdout"

    def feed(self, data: bytes) -> list[tuple[Stream, bytes]]:
        """Payload, in order. Part of a frame is given as soon as it is there."""
        found: list[tuple[Stream, bytes]] = []
        at = 0
        while at < len(data):
            if not self._left:
                more = data[at : at + _HEADER_BYTES - len(self._header)]
                self._header += more
                at += len(more)
                if len(self._header) < _HEADER_BYTES:
                    break
                self._stream = "stderr" if self._header[0] == 2 else "stdout"
                self._left = int.from_bytes(self._header[4:], "big")
                self._header = b""
                continue
            payload = data[at : at + self._left]
            self._left -= len(payload)
            at += len(payload)
            found.append((self._stream, payload))
        return found
