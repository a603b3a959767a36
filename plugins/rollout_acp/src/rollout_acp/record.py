"""acp.jsonl: every message of a session with its direction and time, redacted.

Agents stream a few letters at a time, and in pieces a secret cannot be found: chunks of text that follow one another are written
as one message, with their number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rollout.core.files import storing
from rollout_acp.lines import Message

MAX_LOG_BYTES = 256 * 1024 * 1024
MAX_HELD = 1024 * 1024
"""Characters of one text that are held before they are written."""


class WireLog:
    """Appends a line per message, as it passes. After 256 MiB it says so and stops."""

    def __init__(self, path: Path, redact: Callable[[bytes], bytes]) -> None:
        self._path = path
        self._redact = redact
        self._descriptor: int | None = None
        self._written = 0
        self._error: OSError | None = None
        self._chunks: list[str] = []
        self._held = 0
        self._kind = ""
        self._last: Message = {}

    def __call__(self, direction: str, line: bytes, message: Message) -> None:
        text = _chunk(message) if direction == "in" else None
        if text is None:
            self._flush()
            self._record(direction, line)
            return
        kind = message["params"]["update"]["sessionUpdate"]
        if self._chunks and (kind != self._kind or self._held > MAX_HELD):
            self._flush()
        self._kind, self._last = kind, message
        self._chunks.append(text)
        self._held += len(text)

    def _flush(self) -> None:
        """Write the chunks that were held."""
        chunks, self._chunks, self._held = self._chunks, [], 0
        if not chunks:
            return
        params = self._last["params"]
        content = {**params["update"]["content"], "text": "".join(chunks)}
        whole = {**self._last, "params": {**params, "update": {**params["update"], "content": content}}}
        self._record("in", json.dumps(whole, separators=(",", ":")).encode(), f'"chunks":{len(chunks)},')

    def _record(self, direction: str, line: bytes, more: str = "") -> None:
        if self._error is not None or self._written > MAX_LOG_BYTES:
            return
        message = self._redact(line.strip())
        now = datetime.now(UTC).isoformat()
        try:
            self._write(f'{{"time":"{now}","direction":"{direction}",{more}"message":'.encode() + message + b"}\n")
            if self._written > MAX_LOG_BYTES:
                self._write(f'{{"time":"{now}","cut":"more than {MAX_LOG_BYTES >> 20} MiB"}}\n'.encode())
        except OSError as error:
            self._error = error  # the session goes on; `close` says it

    def close(self) -> None:
        """Raises StoreError: something could not be written."""
        self._flush()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        error, self._error = self._error, None
        if error is not None:
            with storing(self._path):
                raise error

    def _write(self, data: bytes) -> None:
        if self._descriptor is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._written += len(data)
        while data:
            data = data[os.write(self._descriptor, data) :]


def _chunk(message: Message) -> str | None:
    """The text of a chunk; None for whatever else."""
    params = message.get("params")
    update = params.get("update") if isinstance(params, dict) else None
    if not isinstance(update, dict) or update.get("sessionUpdate") not in ("agent_message_chunk", "agent_thought_chunk"):
        return None
    content = update.get("content")
    if not isinstance(content, dict) or content.get("type") != "text" or not isinstance(content.get("text"), str):
        return None
    return str(content["text"])
