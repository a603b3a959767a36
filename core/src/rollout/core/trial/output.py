"""The text files of a trial: a phase's stdout.txt and stderr.txt as they come, and the trial.log."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rollout.core.errors import StoreError
from rollout.core.files import storing
from rollout.core.trial.redact import RedactingStream, Redactor
from rollout.core.types import Stream

MAX_STREAM_BYTES = 256 * 1024 * 1024
"""How much of one stream is kept on disk; the file says where it was cut."""


class PhaseOutput:
    """An OutputSink that appends to `stdout.txt` and `stderr.txt` of a folder; a stream without output has no file."""

    def __init__(self, folder: Path, redactor: Redactor, warn: Callable[[str], None] = lambda message: None) -> None:
        self._folder = folder
        self._redactor = redactor
        self._warn = warn
        self._streams: dict[Stream, RedactingStream] = {}
        self._descriptors: list[int] = []
        self._written: dict[Stream, int] = {}
        self.error: StoreError | None = None
        """The first failure to write. A sink must not raise, so the trial asks for it afterwards."""

    def __call__(self, stream: Stream, chunk: bytes) -> None:
        try:
            writer = self._streams.get(stream) or self._open(stream)
            writer.feed(chunk)
        except StoreError as error:
            self.error = self.error or error

    def close(self) -> None:
        """Flush and close both files; what was cut is told.

        Raises:
            StoreError: something could not be written.
        """
        try:
            for stream in self._streams.values():
                stream.close()
        except StoreError as error:
            self.error = self.error or error
        for name, written in self._written.items():
            if written > MAX_STREAM_BYTES:
                kept = f"the first {MAX_STREAM_BYTES >> 20} MiB of {written >> 20} MiB are kept"
                self._warn(f"{self._folder.name}/{name}.txt was cut: {kept}")
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._streams, self._descriptors, self._written = {}, [], {}
        if self.error is not None:
            raise self.error

    def _open(self, stream: Stream) -> RedactingStream:
        path = self._folder / f"{stream}.txt"
        with storing(path):
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._descriptors.append(descriptor)
        self._written[stream] = 0

        def write(data: bytes) -> None:
            room = MAX_STREAM_BYTES - self._written[stream]
            self._written[stream] += len(data)
            if room < 0:
                return
            if len(data) > room:
                data = data[:room] + f"\n[rollout: cut here, more than {MAX_STREAM_BYTES >> 20} MiB]\n".encode()
            with storing(path):
                while data:
                    data = data[os.write(descriptor, data) :]

        writer = self._streams[stream] = self._redactor.stream(write)
        return writer


class TrialLog:
    """The trial's own log: one line per thing that happened, written as it happens."""

    def __init__(self, path: Path, redactor: Redactor) -> None:
        self._redactor = redactor
        self._path = path
        self._error: StoreError | None = None
        with storing(path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def __call__(self, message: str) -> None:
        """Append a line. A failure to write is kept for `close`: teardown must go on."""
        line = f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {self._redactor.text(message)}\n"
        try:
            with storing(self._path):
                os.write(self._descriptor, line.encode("utf-8", "surrogateescape"))
        except StoreError as error:
            self._error = self._error or error

    def close(self) -> None:
        """Raises StoreError: a line could not be written."""
        os.close(self._descriptor)
        if self._error is not None:
            raise self._error
