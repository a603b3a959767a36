"""Proving a data set: a job of the oracle and of the agent that does nothing, and what their rewards say about each task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rollout.core.config.job import AgentConfig, DatasetConfig, EnvironmentConfig, JobConfig, RetryConfig
from rollout.core.config.load import JobFile
from rollout.core.errors import ConfigError
from rollout.core.job.report import PASS_MARK, ReportTrial, explain
from rollout.core.job.store import LOCK, read_json, read_trials
from rollout.core.tasks.check import Finding
from rollout.core.trial.paths import folder_name, short_hash
from rollout.core.types import Struct

ORACLE = "oracle"
NOP = "nop"


class ProofOptions(Struct, frozen=True, kw_only=True):
    oracle: bool = False
    """Every task's own solution must get the full reward."""
    nop: bool = False
    """An agent that does nothing must not."""
    environment: str = "docker"
    jobs_dir: str = "jobs"
    concurrency: int = 4


def proof_job(paths: Sequence[Path], options: ProofOptions) -> JobFile:
    """The job that proves the tasks at `paths`. Its name follows from them, so that the same command resumes it.

    Raises:
        ConfigError: neither agent is wanted.
    """
    wanted = [name for name, chosen in ((ORACLE, options.oracle), (NOP, options.nop)) if chosen]
    if not wanted:
        raise ConfigError("nothing to prove: ask for --oracle, --nop or both")
    places = [path.absolute() for path in paths]
    stem = folder_name(places[0].name) if len(places) == 1 else f"{len(places)}-paths"
    config = JobConfig(
        name=f"check-{stem}-{short_hash(' '.join([options.environment, *map(str, places)]))}",
        jobs_dir=options.jobs_dir,
        n_concurrent_trials=options.concurrency,
        environment=EnvironmentConfig(type=options.environment),
        agents=[AgentConfig(name=name) for name in wanted],
        datasets=[DatasetConfig(path=str(place)) for place in places],
        retry=RetryConfig(max_retries=2),
    )
    return JobFile(config=config, path=None, base_dir=Path().absolute(), origins={}, warnings=())


def judge_proof(directory: Path, shown: Mapping[Path, Path] | None = None) -> list[Finding]:
    """What the finished trials of a proof's folder say against their tasks, at most one finding for each task and agent.

    `shown`: how the paths that were given are written in the findings.
    """
    folders = _task_folders(directory, shown or {})
    faults = []
    for trial in read_trials(directory, ReportTrial):
        for fault in _faults(trial, directory):
            folder = folders.get((trial.dataset_name, trial.task_name), trial.task_name)
            message = f"{fault} (see {directory / trial.trial_id})"
            faults.append(Finding(severity="error", code=trial.agent_name, task=trial.task_name, file=folder, message=message))
    return sorted(faults, key=lambda fault: (fault.file, fault.code != ORACLE))


def is_full(trial: ReportTrial) -> bool:
    """Whether a trial got everything: its primary reward, or without one all of its rewards."""
    if trial.reward is not None:
        return trial.reward >= PASS_MARK
    return bool(trial.rewards) and all(reward >= PASS_MARK for reward in trial.rewards.values())


def _faults(trial: ReportTrial, directory: Path) -> Iterator[str]:
    if trial.status == "cancelled":
        return
    if trial.status != "scored":
        line, _ = explain(trial, directory)
        yield f"{'its solution' if trial.agent_name == ORACLE else 'doing nothing'} gets no verdict: {line}"
    elif trial.agent_name == ORACLE and not is_full(trial):
        line, _ = explain(trial, directory)
        yield f"its solution gets {_rewards(trial)}, not the full reward: {line}"
    elif trial.agent_name == NOP and is_full(trial):
        yield "doing nothing gets the full reward"


def _rewards(trial: ReportTrial) -> str:
    if trial.reward is not None:
        return f"{trial.reward:g}"
    return ", ".join(f"{name} {reward:g}" for name, reward in trial.rewards.items()) or "no reward"


def _task_folders(directory: Path, shown: Mapping[Path, Path]) -> dict[tuple[str, str], str]:
    """The folder of each task, below the path that was given where that is known."""
    folders = {}
    for task in read_json(directory, LOCK).get("tasks") or ():
        path = Path(str(task.get("path", "")))
        root = next((place for place in shown if path.is_relative_to(place)), None)
        folders[str(task.get("dataset")), str(task.get("name"))] = str(
            shown[root] / path.relative_to(root) if root is not None else path
        )
    return folders
