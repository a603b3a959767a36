"""JUnit XML, which is how CI systems read results: a test suite per agent and data set, a test case per trial."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from rollout.core.errors import UsageError
from rollout.core.files import make_folder, write_atomic
from rollout.core.job.report import Report, ReportTrial, explain

# What XML 1.0 section 2.2 leaves out of "Char". Surrogates cannot be encoded either.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def check_writable(path: Path) -> None:
    """Refuse a place for the report before the job runs for hours.

    Raises:
        UsageError
    """
    if path.is_dir():
        raise UsageError(f"--junit {path}: this is a folder; name a file")
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"--junit {path}: {folder} cannot be written to")


def write_junit(report: Report, path: Path) -> None:
    """Write the report of a job, in place of an earlier one.

    A trial that reached the pass mark is a passed test; a lower reward is a failure, an errored trial an error with its code
    as type, one without a verdict skipped.

    Raises:
        StoreError: the file cannot be written.
    """
    make_folder(path.absolute().parent)
    write_atomic(path, "".join(junit_lines(report)).encode("utf-8"))


def junit_lines(report: Report) -> Iterator[str]:
    """The lines of the document."""
    suites: dict[tuple[str, str], list[ReportTrial]] = {}
    for trial in report.trials:
        suites.setdefault((trial.agent_name, trial.dataset_name), []).append(trial)
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    yield f"<testsuites name={_attribute(report.job_name)}{_counts(report.trials)}>\n"
    for (agent, dataset), trials in suites.items():
        yield f"  <testsuite name={_attribute(f'{agent} on {dataset}')}{_counts(trials)}{_skipped(trials)}>\n"
        for trial in trials:
            yield from _case(trial, report)
        yield "  </testsuite>\n"
    yield "</testsuites>\n"


def _case(trial: ReportTrial, report: Report) -> Iterator[str]:
    name = trial.task_name if trial.attempt == 1 else f"{trial.task_name} (attempt {trial.attempt})"
    owner = f"{trial.agent_name}.{trial.dataset_name}"
    yield f"    <testcase name={_attribute(name)} classname={_attribute(owner)} time={_attribute(_time(trial))}>\n"
    if trial.status == "errored":
        kind = trial.error.type if trial.error else "unknown"
        line, _ = explain(trial, Path(report.directory))
        yield f"      <error message={_attribute(line)} type={_attribute(kind)}/>\n"
    elif trial.status != "scored":
        yield f"      <skipped message={_attribute(trial.status)}/>\n"
    elif trial.passed is False:
        line, _ = explain(trial, Path(report.directory))
        message = f"reward {trial.reward:g}"
        yield f'      <failure message={_attribute(message)} type="reward">{_text(line)}</failure>\n'
    rewards = "".join(f"\nreward {key}: {value:g}" for key, value in trial.rewards.items())
    yield f"      <system-out>{_text(f'{report.directory}/{trial.trial_id}{rewards}')}</system-out>\n"
    yield "    </testcase>\n"


def _counts(trials: list[ReportTrial]) -> str:
    failures = sum(trial.status == "scored" and trial.passed is False for trial in trials)
    errors = sum(trial.status == "errored" for trial in trials)
    seconds = sum(trial.durations.total_sec or 0.0 for trial in trials)
    return f' tests="{len(trials)}" failures="{failures}" errors="{errors}" time="{seconds:.3f}"'


def _skipped(trials: list[ReportTrial]) -> str:
    return f' skipped="{sum(trial.status not in ("scored", "errored") for trial in trials)}"'


def _time(trial: ReportTrial) -> str:
    return f"{trial.durations.total_sec or 0.0:.3f}"


def _attribute(text: str) -> str:
    return quoteattr(_NOT_XML.sub("?", text))


def _text(text: str) -> str:
    return escape(_NOT_XML.sub("?", text))
