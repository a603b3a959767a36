"""Earlier tries of a trial: set aside when it runs again, and listed in its result."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import msgspec

from rollout.core.files import make_folder, storing
from rollout.core.records import ErrorInfo, TryRecord

TRIES = "tries"
_RESULT = "result.json"


class _Timestamps(msgspec.Struct):
    started_at: datetime | None = None
    ended_at: datetime | None = None


class _Result(msgspec.Struct):
    """What a try's record takes from its result.json."""

    error: ErrorInfo | None = None
    timestamps: _Timestamps = msgspec.field(default_factory=_Timestamps)


def open_folder(directory: Path) -> Path | None:
    """Make a trial's folder. What an earlier try left in it moves to `tries/<number>/`, which is returned.

    Raises:
        StoreError
    """
    with storing(directory):
        try:
            os.makedirs(directory)
        except FileExistsError:
            return _set_aside(directory)
    return None


def read_tries(directory: Path) -> tuple[TryRecord, ...]:
    """The tries in `tries/` of a trial's folder. One whose process was killed has no error: nobody could write it down."""
    return tuple(_record(number, directory / TRIES / str(number)) for number in _numbers(directory))


def is_whole(earlier: Path) -> bool:
    """Whether a try that was set aside ended by itself, so that all of its teardown was done."""
    return (earlier / _RESULT).exists()


def _set_aside(directory: Path) -> Path | None:
    entries = [name for name in os.listdir(directory) if name != TRIES]
    if not entries:
        return None
    earlier = directory / TRIES / str(max(_numbers(directory), default=0) + 1)
    make_folder(earlier)
    for name in entries:
        os.rename(directory / name, earlier / name)
    return earlier


def _numbers(directory: Path) -> list[int]:
    with storing(directory / TRIES):
        try:
            return sorted(int(name) for name in os.listdir(directory / TRIES) if name.isdecimal())
        except FileNotFoundError:
            return []


def _record(number: int, folder: Path) -> TryRecord:
    try:
        result = msgspec.json.decode((folder / _RESULT).read_bytes(), type=_Result)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return TryRecord(number=number)
    times = result.timestamps
    return TryRecord(number=number, error=result.error, started_at=times.started_at, ended_at=times.ended_at)
