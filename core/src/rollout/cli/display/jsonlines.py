"""`--json`: every event of the job as a line of JSON on stdout, and nothing else there."""

from __future__ import annotations

from typing import TextIO

import msgspec

from rollout.core.job.events import Event


class JsonLines:
    """Writes events as they come. What is not an event goes to stderr."""

    def __init__(self, stream: TextIO, messages: TextIO) -> None:
        self._stream = stream
        self._messages = messages
        self._encode = msgspec.json.Encoder().encode

    def open(self) -> None:
        pass

    def on_event(self, event: Event) -> None:
        self._stream.write(self._encode(event).decode() + "\n")
        self._stream.flush()

    def refresh(self) -> None:
        pass

    def message(self, text: str) -> None:
        print(text, file=self._messages, flush=True)

    def close(self) -> None:
        pass
