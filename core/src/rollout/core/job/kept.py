"""The trials of an earlier run that are kept. Their records stay in trials.jsonl; kept in memory is where each one is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from rollout.core.errors import UsageError
from rollout.core.job.store import TRIALS, FinishedTrial


class KeptTrials:
    """An index of a job's trials.jsonl: of several lines for one trial the last counts, a line that is torn counts for none.

    Used in this order: `read_earlier`, `decide` for each trial of the plan, `decided`; then it can be asked.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / TRIALS
        self._earlier: dict[int, int] = {}
        self._kept: dict[int, int] = {}
        self._decoder = msgspec.json.Decoder(FinishedTrial)
        self._file: BinaryIO | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, trial_id: str) -> bool:
        return _key(trial_id) in self._kept

    def __iter__(self) -> Iterator[FinishedTrial]:
        """The kept trials, in the order they finished."""
        if self._kept:
            with self._path.open("rb") as file:
                for offset in sorted(self._kept.values()):
                    file.seek(offset)
                    yield self._decoder.decode(file.readline())

    def read_earlier(self) -> bool:
        """Find out what finished earlier, and say whether anything did. The job's folder is locked, unless this is a dry run.

        Raises:
            UsageError: the file is there and cannot be read.
        """
        self._earlier = dict(self._index())
        return bool(self._earlier)

    def decide(self, trial_id: str, fingerprint: Mapping[str, str]) -> str | None:
        """Keep the earlier trial of this name if there is one and it still counts; otherwise the reason why it runs again."""
        offset = self._earlier.get(_key(trial_id))
        if offset is None:
            return None
        trial = self._read(offset)
        if trial.trial_id != trial_id:
            return None
        reason = _why_again(trial, fingerprint)
        if reason is None:
            self._kept[_key(trial_id)] = offset
        return reason

    def decided(self) -> None:
        """Forget the trials that are not kept."""
        self._earlier = {}
        if self._file is not None:
            self._file.close()
            self._file = None

    def _index(self) -> Iterator[tuple[int, int]]:
        decoder = msgspec.json.Decoder(FinishedTrial)
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(f"{error.filename}: {error.strerror}") from error
        offset = 0
        with file:
            for line in file:
                start, offset = offset, offset + len(line)
                try:
                    trial = decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue
                yield _key(trial.trial_id), start

    def _read(self, offset: int) -> FinishedTrial:
        if self._file is None:
            self._file = self._path.open("rb")
        self._file.seek(offset)
        return self._decoder.decode(self._file.readline())


def _why_again(trial: FinishedTrial, fingerprint: Mapping[str, str]) -> str | None:
    if trial.status in ("errored", "cancelled"):
        return trial.status
    for part, value in fingerprint.items():
        if trial.fingerprint.get(part) != value:
            return f"{part} changed"
    return None


def _key(trial_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(trial_id.encode("utf-8", "surrogateescape"), digest_size=8).digest())
