"""A reward for test suites: pytest over the task's tests, inside the trial's environment."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

from msgspec import Meta

from rollout.core.errors import CommandTimeoutError, VerifierError, VerifierTimeoutError
from rollout.core.protocols import API_VERSION, TrialView
from rollout.core.trial.paths import TESTS, VERIFIER_LOGS
from rollout.core.types import Command, Struct, VerifyResult

_REPORT = f"{VERIFIER_LOGS}/pytest.xml"
_INTERRUPTED = {2: "it was interrupted", 3: "an internal error of pytest", 4: "pytest was called wrongly", 5: "no test was found"}


class PytestOptions(Struct, frozen=True, kw_only=True):
    path: str = TESTS
    """Tests to run, in the environment; the task's own by default."""
    arguments: list[str] = []
    """Further arguments of pytest."""
    python: Annotated[str, Meta(min_length=1)] = "python3"
    """The interpreter in the environment, which must have pytest."""
    partial: bool = False
    """The share of passed tests instead of 1 for all and 0 for any less."""
    timeout_sec: Annotated[float, Meta(gt=0)] | None = None
    """Seconds for pytest; the verifier's timeout when unset."""


class Pytest:
    """1 when every test passes, else 0; `passed` is the share of tests that do. Skipped tests do not count."""

    api_version = API_VERSION
    options_type = PytestOptions
    needs_environment = True

    def __init__(self, options: PytestOptions) -> None:
        self._options = options

    async def score(self, trial: TrialView) -> VerifyResult:
        """Raises VerifierError: pytest is not there, found no test, or broke; the text quotes its end."""
        options = self._options
        start = (options.python, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={_REPORT}")
        await trial.environment.exec(Command(argv=("rm", "-rf", _REPORT), user=trial.user))
        command = Command(
            argv=(*start, *options.arguments, options.path),
            env=trial.env,
            cwd=trial.workdir,
            user=trial.user,
            timeout_sec=options.timeout_sec,
        )
        try:
            done = await trial.environment.exec(command, trial.sink)
        except CommandTimeoutError as error:
            raise VerifierTimeoutError(f"pytest was still running after {options.timeout_sec} s") from error
        said = " ".join((done.stdout + done.stderr).decode("utf-8", "replace").split())[-300:]
        if done.exit_code in _INTERRUPTED:
            raise VerifierError(f"{_INTERRUPTED[done.exit_code]}: {said}")
        if done.exit_code not in (0, 1):
            raise VerifierError(f"pytest ended with exit code {done.exit_code}: {said}")
        passed, total, failed = await self._report(trial, said)
        if not total:
            raise VerifierError(f"every test was skipped: {said}")
        share = passed / total
        reward = share if options.partial else float(done.exit_code == 0 and share == 1.0)
        return VerifyResult(
            rewards={"reward": reward, "passed": share},
            exit_code=done.exit_code,
            source=_REPORT,
            details={"total": total, "failed": failed[:50]},
        )

    async def _report(self, trial: TrialView, said: str) -> tuple[int, int, list[str]]:
        """How many tests passed, of how many that were not skipped, and the names of the others."""
        with tempfile.TemporaryDirectory(prefix="rollout-pytest-") as scratch:
            copy = Path(scratch) / "report.xml"
            try:
                await trial.environment.download(_REPORT, copy)
                text = copy.read_bytes()
            except OSError as error:
                raise VerifierError(f"pytest wrote no report; is it installed? {said}") from error
        return counted(text)


def counted(report: bytes) -> tuple[int, int, list[str]]:
    """Passed, not skipped, and names of those that failed, from a JUnit report.

    Raises:
        VerifierError: it is none.
    """
    if b"<!DOCTYPE" in report or b"<!ENTITY" in report:
        raise VerifierError("pytest's report declares entities, which pytest never does")
    try:
        root = ElementTree.fromstring(report)
    except ElementTree.ParseError as error:
        raise VerifierError(f"pytest's report cannot be read: {error}") from error
    total, failed = 0, []
    for case in root.iter("testcase"):
        if case.find("skipped") is not None:
            continue
        total += 1
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname', '')}.{case.get('name', '')}".lstrip("."))
    return total - len(failed), total, failed
