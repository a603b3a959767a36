"""Hand-made job folders and events, for tests of what reads them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from rollout.core.job.events import TrialFinished
from rollout.core.records import Durations, ErrorInfo, Status, TrialResult

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def trial(
    task: str,
    reward: float | None = None,
    *,
    agent: str = "oracle",
    dataset: str = "tools",
    attempt: int = 1,
    error: str | None = None,
    message: str = "it broke",
    phase: str | None = None,
    rewards: dict[str, float] | None = None,
    status: Status | None = None,
    seconds: float | None = 1.5,
    cost: float | None = None,
) -> TrialResult:
    """A trial that is scored with a reward and errored without one."""
    if rewards is None:
        rewards = {} if reward is None else {"reward": reward}
    return TrialResult(
        trial_id=f"{agent}/{dataset}/{task}__{attempt}",
        task_name=task,
        dataset_name=dataset,
        agent_name=agent,
        attempt=attempt,
        status=status or ("scored" if rewards else "errored"),
        reward=reward,
        rewards=rewards,
        error=ErrorInfo(type=error, message=message, phase=phase) if error else None,
        durations=Durations(total_sec=seconds),
        cost=cost,
    )


def finished(result: TrialResult) -> TrialFinished:
    return TrialFinished(time=NOW, trial_id=result.trial_id, result=result)


def write_job_folder(
    folder: Path,
    trials: list[TrialResult],
    *,
    metrics: list[dict[str, Any]] | None = None,
    tasks: list[str] | None = None,
    **job: Any,
) -> Path:
    """A job's folder as a run leaves it. `tasks` are those of the data set `tools` that were planned."""
    folder.mkdir(parents=True, exist_ok=True)
    agents = list(dict.fromkeys(trial.agent_name for trial in trials)) or ["oracle"]
    planned = tasks if tasks is not None else list(dict.fromkeys(trial.task_name for trial in trials))
    config = {
        "n_attempts": 1,
        "metrics": metrics or [{"type": "mean"}],
        "agents": [{"name": agent} for agent in agents],
        "environment": {"type": "local"},
        **job,
    }
    (folder / "config.json").write_text(json.dumps({"job_id": "demo-1234abcd", "job_name": "demo", "config": config}))
    (folder / "lock.json").write_text(json.dumps({"tasks": [{"dataset": "tools", "name": name} for name in planned]}))
    (folder / "trials.jsonl").write_bytes(b"".join(msgspec.json.encode(trial) + b"\n" for trial in trials))
    (folder / "result.json").write_text(json.dumps({"cancelled": False, "total_duration_sec": 4.25, "warnings": []}))
    return folder


def write_output(folder: Path, result: TrialResult, phase: str, stream: str, text: str) -> None:
    """What a phase of a trial printed."""
    path = folder / result.trial_id / phase / f"{stream}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
