"""Trials for reward functions to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from rollout.core.episodes import Episode, Task, Trajectory
from rollout.core.plugins import decode_options, find
from rollout.core.protocols import TrialView
from rollout.core.trial.coercion import coerce
from rollout.core.types import VerifyResult
from rollout.testing.fakes import FakeEnvironment, FakeWorld
from rollout.testing.suite import Output, environment_spec, trial_view


def view(folder: Path, said: str, environment: Any = None, /, **metadata: Any) -> TrialView:
    task = folder / "task"
    task.mkdir(exist_ok=True)
    made = trial_view(environment or FakeEnvironment(FakeWorld(), environment_spec()), folder, task, env={}, sink=Output())
    return msgspec.structs.replace(
        made,
        task=Task(id="t", instruction="Q", metadata=metadata, dataset_dir=task),
        episode=Episode(trajectories=[Trajectory(output=said)]),
    )


async def score(name: str, trial: TrialView, **options: Any) -> VerifyResult:
    plugin = find("rewards", name)
    reward = plugin.cls(decode_options(plugin, options, "rewards[0]"))
    return coerce(await reward.score(trial))
