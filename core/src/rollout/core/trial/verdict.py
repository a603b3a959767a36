"""`verifier/verdict.json` of a trial: what a verifier said besides its rewards."""

from __future__ import annotations

from pathlib import Path

from rollout.core.files import make_folder, write_atomic
from rollout.core.records import to_json
from rollout.core.trial.redact import Redactor
from rollout.core.types import VerifyResult

VERDICT = "verdict.json"


def says_more(verdict: VerifyResult) -> bool:
    """Whether there is anything that the trial's `result.json` has no place for."""
    return bool(verdict.items or verdict.events or verdict.error or verdict.details)


def write_verdict(folder: Path, verdict: VerifyResult, redactor: Redactor) -> None:
    """Write the verdict, without secrets, into `folder`.

    Raises:
        StoreError
    """
    make_folder(folder)
    write_atomic(folder / VERDICT, redactor.text(to_json(verdict).decode()).encode())
