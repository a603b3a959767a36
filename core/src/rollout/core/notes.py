"""Lines that a shell of ours writes between the output of a command, to say how it goes."""

from __future__ import annotations

_MAX_NOTE_BYTES = 32


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
