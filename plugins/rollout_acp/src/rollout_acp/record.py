"""acp.jsonl: every message of a session with its direction and time, redacted."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rollout.core.files import storing

MAX_LOG_BYTES = 256 * 1024 * 1024


class WireLog:
    """Appends a line per message, as it passes. After 256 MiB it says so and stops."""

    def __init__(self, path: Path, redact: Callable[[bytes], bytes]) -> None:
        self._path = path
        self._redact = redact
        self._descriptor: int | None = None
        self._written = 0
        self._error: OSError | None = None

    def __call__(self, direction: str, line: bytes) -> None:
        if self._error is not None or self._written > MAX_LOG_BYTES:
            return
        message = self._redact(line.strip())
        now = datetime.now(UTC).isoformat()
        try:
            self._write(f'{{"time":"{now}","direction":"{direction}","message":'.encode() + message + b"}\n")
            if self._written > MAX_LOG_BYTES:
                self._write(f'{{"time":"{now}","cut":"more than {MAX_LOG_BYTES >> 20} MiB"}}\n'.encode())
        except OSError as error:
            self._error = error  # the session goes on; `close` says it

    def close(self) -> None:
        """Raises StoreError: something could not be written."""
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
