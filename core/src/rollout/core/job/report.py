"""Reading a job's folder: the result table, the task x agent matrix, and failures with the line that explains each.

Works on a job that is running, was interrupted, or lost some of its files: everything is made from `trials.jsonl`, and what
the other files would add is left out when they are missing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from rollout.core.config.job import MetricConfig
from rollout.core.errors import PluginError, RewardMissingError, UsageError
from rollout.core.job.events import MetricReport
from rollout.core.job.results import GroupResult, Tally
from rollout.core.job.store import CONFIG, LOCK, RESULT, TRIALS, StoredTrial, is_running, read_json, read_trials
from rollout.core.plugins import Plugin, decode_options, find
from rollout.core.records import ErrorInfo, Status
from rollout.core.types import Struct

PASS_MARK = 1.0
"""A trial passes when its primary reward is at least this."""

_TAIL_BYTES = 64 * 1024
_MAX_LINE = 500

JobState = Literal["running", "finished", "interrupted", "stopped", "incomplete"]
"""stopped: its budget is used up. incomplete: no process runs it and trials are missing, without a record of an interrupt: it was
killed."""


class _Try(msgspec.Struct, frozen=True, gc=False):
    number: int = 0


class ReportTrial(StoredTrial, frozen=True):
    """What a report needs besides."""

    reward: float | None = None
    tries: tuple[_Try, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def passed(self) -> bool | None:
        """Whether the primary reward reaches PASS_MARK; None without one."""
        return None if self.reward is None else self.reward >= PASS_MARK


class Cell(Struct, frozen=True, kw_only=True):
    """One agent on one task."""

    mean_reward: float | None
    """Over scored attempts that have a primary reward."""
    attempts: int
    errored: int


class MatrixRow(Struct, frozen=True, kw_only=True):
    dataset: str
    task: str
    cells: dict[str, Cell]
    """By agent; an agent without a finished attempt has none."""


class Failure(Struct, frozen=True, kw_only=True):
    """A trial that errored or did not reach PASS_MARK."""

    trial_id: str
    status: Status
    reward: float | None
    error: ErrorInfo | None
    line: str
    """The line that explains it best."""
    source: str | None
    """The file of the job's folder that the line is from; None: the error's own message."""


class TrialWarning(Struct, frozen=True, kw_only=True):
    """A warning that trials recorded, and which."""

    text: str
    trials: list[str]


class Report(Struct, frozen=True, kw_only=True):
    """What is known of a job."""

    directory: str
    job_id: str | None
    job_name: str
    state: JobState
    groups: list[GroupResult]
    metrics: list[MetricReport]
    agents: list[str]
    warnings: list[str]
    duration_sec: float | None
    trials: list[ReportTrial]

    def matrix(self) -> list[MatrixRow]:
        """A row per task, a cell per agent."""
        gathered: dict[tuple[str, str], dict[str, list[ReportTrial]]] = {}
        for trial in self.trials:
            row = gathered.setdefault((trial.dataset_name, trial.task_name), {})
            row.setdefault(trial.agent_name, []).append(trial)
        return [
            MatrixRow(dataset=dataset, task=task, cells={agent: _cell(trials) for agent, trials in row.items()})
            for (dataset, task), row in sorted(gathered.items())
        ]

    def trial_warnings(self) -> list[TrialWarning]:
        """What trials warned of, each text once, those of most trials first."""
        gathered: dict[str, list[str]] = {}
        for trial in self.trials:
            for text in dict.fromkeys(trial.warnings):
                gathered.setdefault(text, []).append(trial.trial_id)
        found = [TrialWarning(text=text, trials=sorted(trials)) for text, trials in gathered.items()]
        return sorted(found, key=lambda warning: -len(warning.trials))

    def failed(self) -> list[ReportTrial]:
        """Errored trials, then those below PASS_MARK, each in order of their names."""
        bad = [trial for trial in self.trials if trial.status == "errored" or trial.passed is False]
        return sorted(bad, key=lambda trial: (trial.status != "errored", trial.trial_id))

    def failures(self) -> Iterator[Failure]:
        """`failed`, each with its line. Lazy, because the lines are read from the trials' files."""
        for trial in self.failed():
            line, source = explain(trial, Path(self.directory))
            yield Failure(
                trial_id=trial.trial_id, status=trial.status, reward=trial.reward, error=trial.error, line=line, source=source
            )


def load_report(directory: Path) -> Report:
    """The report of a job's folder.

    Raises:
        UsageError: there is no such folder, or it is not a job's.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory}: there is no such folder")
    config, result = read_json(directory, CONFIG), read_json(directory, RESULT)
    if not (directory / TRIALS).exists() and "job_id" not in config:
        raise UsageError(f"{directory} is not a job's folder: it has neither {TRIALS} nor a job's {CONFIG}")
    trials = list(read_trials(directory, ReportTrial))
    warnings = [text for text in _items(result.get("warnings")) if isinstance(text, str)]
    metrics, faults = _find_metrics(config)
    totals = _totals(directory, config, trials)
    tally = Tally(metrics, totals)
    for trial in trials:
        tally.add(trial)
    duration = result.get("total_duration_sec")
    return Report(
        directory=str(directory),
        job_id=_text(config.get("job_id")),
        job_name=_text(config.get("job_name")) or directory.absolute().name,
        state=_state(directory, result, len(trials), sum(totals.values())),
        groups=tally.groups(),
        metrics=tally.reports(),
        agents=list(dict.fromkeys(agent for agent, _ in totals)),
        warnings=warnings + faults,
        duration_sec=float(duration) if isinstance(duration, int | float) else None,
        trials=trials,
    )


def explain(trial: ReportTrial, job_dir: Path) -> tuple[str, str | None]:
    """The line that explains a failed trial best, and the file it is from.

    An error that says more than an exit code, or that there is no reward, explains itself. For the others it is the last
    line that means something in the output of the phase that failed: the agent's, or for a low reward the verifier's.
    """
    folder = _folder_of(trial, job_dir)
    message = " ".join(trial.error.message.split()) if trial.error else ""
    if trial.status == "errored":
        phases = _PHASE_FOLDERS.get((trial.error.phase if trial.error else None) or "", ())
        bare = re.search(r"exit(ed|s)?\b.*\b\d+\W*$", message) is not None and len(message) < 100
        bare = bare or (trial.error is not None and trial.error.type == RewardMissingError.code)
        if message and not bare:
            return message, None
    else:
        phases = ("agent",) if trial.error else ("verifier",)
    for phase in phases:
        for stream in ("stderr", "stdout") if phase != "verifier" else ("stdout", "stderr"):
            line = last_meaningful_line(folder / phase / f"{stream}.txt") if folder else None
            if line:
                return (f"{message}: {line}" if message else line), f"{trial.trial_id}/{phase}/{stream}.txt"
    return message or "the verifier printed nothing", None


_PHASE_FOLDERS = {
    "install_agent": ("setup",),
    "connect": ("agent", "setup"),
    "execute": ("agent",),
    "disconnect": ("agent",),
    "verify": ("verifier",),
}

# Rules, counts and timings that test runners and shells print last; the line before says what went wrong.
_MEANINGLESS = re.compile(
    r"[\W_]*"
    r"|=+ .* in [\d.]+\s?s.* =+"
    r"|(ran \d+ tests? in .*)"
    r"|FAILED \(.*\)"
    r"|(real|user|sys)\s+\d+m[\d.]+s"
    r"|(make(\[\d+\])?: (leaving|entering) directory.*)",
    re.IGNORECASE,
)
_ANSI = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")


def last_meaningful_line(path: Path) -> str | None:
    """The last line of a text file that is more than decoration; None when there is none or no file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - _TAIL_BYTES, 0))
            tail = file.read(_TAIL_BYTES)
    except OSError:
        return None
    for raw in reversed(tail.decode("utf-8", "replace").splitlines()):
        line = " ".join(_ANSI.sub("", raw.rsplit("\r", 1)[-1] or raw).split())
        if line and not _MEANINGLESS.fullmatch(line):
            return line[:_MAX_LINE]
    return None


def _folder_of(trial: ReportTrial, job_dir: Path) -> Path | None:
    """The trial's folder; None when the record names one outside the job's folder."""
    folder = job_dir / trial.trial_id
    inside = ".." not in Path(trial.trial_id).parts and not Path(trial.trial_id).is_absolute()
    return folder if inside else None


def _totals(directory: Path, config: dict[str, Any], trials: list[ReportTrial]) -> dict[tuple[str, str], int]:
    """How many trials each agent has on each data set: those planned last, and more where an earlier run left more."""
    seen = Counter((trial.agent_name, trial.dataset_name) for trial in trials)
    job = config.get("config")
    job = job if isinstance(job, dict) else {}
    attempts = job.get("n_attempts")
    attempts = attempts if isinstance(attempts, int) else 1
    agents = [agent["name"] for agent in _items(job.get("agents")) if isinstance(agent, dict) and _text(agent.get("name"))]
    tasks = Counter(
        task["dataset"]
        for task in _items(read_json(directory, LOCK).get("tasks"))
        if isinstance(task, dict) and _text(task.get("dataset"))
    )
    totals = {(agent, dataset): count * attempts for agent in dict.fromkeys(agents) for dataset, count in tasks.items()}
    for pair, count in seen.items():
        totals[pair] = max(totals.get(pair, 0), count)
    return totals


def _find_metrics(config: dict[str, Any]) -> tuple[list[tuple[str, Plugin, Any]], list[str]]:
    """The job's metrics, and a line for each that this machine cannot compute."""
    job = config.get("config")
    raw = job.get("metrics") if isinstance(job, dict) else None
    try:
        wanted = msgspec.convert(raw, list[MetricConfig]) if raw is not None else [MetricConfig(type="mean")]
    except msgspec.ValidationError:
        wanted = [MetricConfig(type="mean")]
    found: list[tuple[str, Plugin, Any]] = []
    faults: list[str] = []
    for metric in wanted:
        try:
            plugin = find("metrics", metric.type)
            found.append((metric.type, plugin, decode_options(plugin, metric.options, f"metric {metric.type}")))
        except (PluginError, UsageError) as error:
            faults.append(f"metric {metric.type} is left out: {error}")
    return found, faults


def _state(directory: Path, result: dict[str, Any], finished: int, total: int) -> JobState:
    if is_running(directory):
        return "running"
    if finished >= total and result:
        return "finished"
    if result.get("cancelled"):
        return "interrupted"
    return "stopped" if result.get("stopped") else "incomplete"


def _cell(trials: list[ReportTrial]) -> Cell:
    rewards = [trial.reward for trial in trials if trial.status == "scored" and trial.reward is not None]
    return Cell(
        mean_reward=sum(rewards) / len(rewards) if rewards else None,
        attempts=len(trials),
        errored=sum(trial.status == "errored" for trial in trials),
    )


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
