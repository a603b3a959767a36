"""What comes out of a command's connection: the engine's frames, and the notes of the shell that started the command."""

from __future__ import annotations

from rollout.core.types import Stream

_HEADER_BYTES = 8
_MAX_NOTE_BYTES = 32


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


class Notes:
    """Separates lines that start with a secret mark, wherever they start, from the output around them."""

    def __init__(self, mark: bytes) -> None:
        """`mark`: its first byte occurs in it only once."""
        self._mark = mark
        self._held = b""

    def feed(self, chunk: bytes) -> tuple[bytes, list[bytes]]:
        """Output, and the notes found in it, without the mark and the line's end. A note's beginning is held back."""
        if not self._held and self._mark[0] not in chunk:
            return chunk, []
        data = self._held + chunk
        output: list[bytes] = []
        notes: list[bytes] = []
        while (at := data.find(self._mark)) >= 0:
            end = data.find(b"\n", at)
            if end < 0:
                if len(data) - at > len(self._mark) + _MAX_NOTE_BYTES:  # nothing that was written by the shell
                    output.append(data[: at + 1])
                    data = data[at + 1 :]
                    continue
                output.append(data[:at])
                self._held = data[at:]
                return b"".join(output), notes
            output.append(data[:at])
            notes.append(data[at + len(self._mark) : end])
            data = data[end + 1 :]
        start = data.rfind(self._mark[:1], max(0, len(data) - len(self._mark) + 1))
        if start < 0 or not self._mark.startswith(data[start:]):
            start = len(data)
        output.append(data[:start])
        self._held = data[start:]
        return b"".join(output), notes

    def rest(self) -> bytes:
        """What was held back and turned out to be output, at the end."""
        rest, self._held = self._held, b""
        return rest
