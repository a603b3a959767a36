"""A job's folder: config.json, lock.json, trials.jsonl, events.jsonl, result.json, and the lock that keeps it to one process.

`trials.jsonl` and `events.jsonl` are only ever appended to, a whole line at a time; a line torn by a crash is cut off when
the job is opened again. The other files are replaced atomically.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rollout.core.errors import UsageError
from rollout.core.files import make_folder, storing, write_atomic
from rollout.core.records import ErrorInfo, Status, TrialResult
from rollout.core.types import Usage

CONFIG = "config.json"
LOCK = "lock.json"
RESULT = "result.json"
TRIALS = "trials.jsonl"
EVENTS = "events.jsonl"
SPENT = "spent.jsonl"
SCRATCH_OWNER = "job"
"""File in a job's scratch folder that holds the path of the job's own folder."""
_LOCK_FILE = ".lock"
_REPEATED = ("agent_name", "dataset_name", "task_name", "rewards", "fingerprint")


class StoredSeconds(msgspec.Struct, frozen=True, gc=False):
    """Of a trial's durations."""

    total_sec: float | None = None


class StoredTrial(msgspec.Struct, frozen=True):
    """What every reader needs of a line of `trials.jsonl`; keys of the line that a reader does not name are skipped unread."""

    trial_id: str
    agent_name: str
    dataset_name: str
    task_name: str
    attempt: int
    status: Status
    rewards: dict[str, float] = {}
    error: ErrorInfo | None = None
    cost: float | None = None
    usage: Usage | None = None
    durations: StoredSeconds = StoredSeconds()


class FinishedTrial(StoredTrial, frozen=True):
    """What resuming needs besides."""

    fingerprint: dict[str, str] = {}


Trial = TypeVar("Trial", bound=StoredTrial)


class JobStore:
    """The one writer of a job's folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock: int | None = None
        self._trials: int | None = None
        self._events: int | None = None
        self._spent: int | None = None
        self._encoder = msgspec.json.Encoder()

    def open(self) -> None:
        """Make the folder and take its lock.

        Raises:
            UsageError: another process runs this job, or the folder holds something else.
            StoreError: it cannot be written to.
        """
        ours = (self.directory / _LOCK_FILE).exists() or "job_id" in read_json(self.directory, CONFIG)
        if not ours and self.directory.is_dir() and any(self.directory.iterdir()):
            raise UsageError(f"{self.directory} exists and is not a job's folder; choose another `name` or `jobs_dir`")
        make_folder(self.directory)
        self._lock = _take_lock(self.directory)
        self._trials = self._open_lines(TRIALS)
        self._events = self._open_lines(EVENTS)

    def close(self) -> None:
        """Release the lock. Idempotent."""
        for descriptor in (self._trials, self._events, self._spent, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._trials = self._events = self._spent = self._lock = None

    def add_trial(self, result: TrialResult) -> None:
        """Append a finished trial; from then on it is never run again unless it errored or changed."""
        assert self._trials is not None
        self._append(self._trials, self._encoder.encode(result), TRIALS)

    def add_event(self, event: msgspec.Struct) -> None:
        assert self._events is not None
        self._append(self._events, self._encoder.encode(event), EVENTS)

    def add_spent(self, record: msgspec.Struct) -> None:
        """Append what a try used. The file is made when there is something to put into it."""
        if self._spent is None:
            self._spent = self._open_lines(SPENT)
        self._append(self._spent, self._encoder.encode(record), SPENT)

    def write(self, name: str, record: Any) -> None:
        """Replace one of the JSON files."""
        data = msgspec.json.format(self._encoder.encode(record), indent=2)
        write_atomic(self.directory / name, data + b"\n")

    def _append(self, descriptor: int, line: bytes, name: str) -> None:
        # One write call for the line: a crash may tear the last line, never mix two.
        line += b"\n"
        with storing(self.directory / name):
            written = os.write(descriptor, line)
            if written != len(line):
                # A full disk takes a part: cut it off again, then let the rest of the write say why.
                size = os.fstat(descriptor).st_size
                os.ftruncate(descriptor, size - written)
                os.write(descriptor, line)

    def _open_lines(self, name: str) -> int:
        path = self.directory / name
        with storing(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            end = os.fstat(descriptor).st_size
            os.ftruncate(descriptor, _end_of_last_line(descriptor, end))
        return descriptor


def read_trials(directory: Path, kind: type[Trial]) -> Iterator[Trial]:
    """The finished trials of a job's folder, in the order they finished; of several lines for one trial the last counts.

    `kind` names the keys that are wanted. A torn or foreign line is skipped: its trial will simply run again.

    Raises:
        UsageError: the file is there and cannot be read.
    """
    decoder = msgspec.json.Decoder(kind)
    finished: dict[str, Trial] = {}
    # What repeats over thousands of lines is kept once.
    shared: dict[Any, Any] = {}
    repeated = [
        name for name in ("agent_name", "dataset_name", "task_name", "rewards", "fingerprint") if name in kind.__struct_fields__
    ]
    try:
        file = (directory / TRIALS).open("rb")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from error
    with file:
        for line in file:
            try:
                trial = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            same = {}
            for name in repeated:
                value = getattr(trial, name)
                same[name] = shared.setdefault(tuple(value.items()) if isinstance(value, dict) else value, value)
            finished.pop(trial.trial_id, None)
            finished[trial.trial_id] = msgspec.structs.replace(trial, **same)
    yield from finished.values()


def read_json(directory: Path, name: str) -> dict[str, Any]:
    """One of the job's JSON files, or an empty map when it is missing or not readable as one."""
    try:
        value = msgspec.json.decode((directory / name).read_bytes())
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return {}
    return value if isinstance(value, dict) else {}


def is_running(directory: Path) -> bool:
    """Whether a process holds the lock of this job's folder."""
    try:
        descriptor = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _take_lock(directory: Path) -> int:
    path = directory / _LOCK_FILE
    with storing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise UsageError(f"{directory} is used by another running job (process {holder or 'unknown'})") from error
    with storing(path):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _end_of_last_line(descriptor: int, end: int) -> int:
    """The offset behind the last newline before `end`."""
    while end > 0:
        start = max(end - 65536, 0)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
