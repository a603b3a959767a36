"""Tasks with steps: what comes of the steps together, and when no further one is taken. Harbor's rules, but for errors:
a step without a verdict leaves the whole trial without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from rollout.core.errors import TaskError
from rollout.core.protocols import Environment
from rollout.core.records import StepResult, StepSpec, StepStrategy, TrialSpec
from rollout.core.trial.paths import LOGS
from rollout.core.trial.script import interpreter
from rollout.core.types import Command, OutputSink, Usage

STEPS = "steps"
"""Folder of a task, and of a trial, with a folder for each step."""

SETUP_SCRIPTS = ("workdir/setup.sh", "setup.sh")
"""What runs before a step, relative to its folder, the first that exists."""

_SCRIPT = "/tmp/rollout/step-setup.sh"
_SHOWN = 300


def shortfall(rewards: Mapping[str, float], wanted: Mapping[str, float]) -> str | None:
    """Which reward is below what the next step takes, in words; None when that is none of them."""
    for key, least in wanted.items():
        reward = rewards.get(key)
        if reward is None:
            return f"`{key}` is missing, and has to be at least {least:g}"
        if reward < least:
            return f"`{key}` is {reward:g}, and has to be at least {least:g}"
    return None


def rewards_together(steps: Sequence[StepResult], strategy: StepStrategy) -> dict[str, float] | None:
    """The rewards of the steps that were taken as one; None when one of those that count has no verdict.

    `mean` is over the steps that were taken, by key, a key that a step does not have counts as 0; `final` is the last one's.
    """
    counted = list(steps) if strategy == "mean" else list(steps[-1:])
    if not counted or any(step.status != "scored" for step in counted):
        return None
    keys = dict.fromkeys(key for step in counted for key in step.rewards)
    return {key: sum(step.rewards.get(key, 0.0) for step in counted) / len(counted) for key in keys}


def usage_together(steps: Sequence[StepResult]) -> Usage | None:
    """Tokens and cost of all steps, as far as they are known."""
    known = [step.usage for step in steps if step.usage is not None]
    if not known:
        return None

    def total(name: str) -> float | None:
        values = [value for usage in known if (value := getattr(usage, name)) is not None]
        return sum(values) if values else None

    return msgspec.convert({name: total(name) for name in Usage.__struct_fields__}, Usage)


def spec_of_step(spec: TrialSpec, step: StepSpec, instruction: str) -> TrialSpec:
    """The trial's spec as it is for one step."""
    changed = msgspec.structs.replace
    return changed(
        spec,
        isolation=step.isolation or spec.isolation,
        agent=changed(spec.agent, user=step.agent_user or spec.agent.user),
        verifier=changed(spec.verifier, user=step.verifier_user or spec.verifier.user),
        directory=f"{spec.directory}/{STEPS}/{step.name}",
        task=changed(
            spec.task,
            instruction=instruction,
            steps=(),
            artifacts=(*spec.task.artifacts, *step.artifacts),
            healthcheck=None,
            agent_network=step.agent_network or spec.task.agent_network,
            verifier_network=step.verifier_network or spec.task.verifier_network,
        ),
        timeouts=changed(spec.timeouts, agent_sec=step.agent_sec, verifier_sec=step.verifier_sec),
    )


async def empty_logs(environment: Environment, root: str | None) -> None:
    """Remove what the step before left in the log folders.

    Raises:
        TaskError
    """
    command = Command(argv=("rm", "-rf", f"{LOGS}/agent", f"{LOGS}/verifier", f"{LOGS}/artifacts"), cwd="/", user=root)
    result = await environment.exec(command)
    if result.exit_code != 0:
        raise TaskError(f"emptying {LOGS}: {result.stderr.decode('utf-8', 'replace').strip()[-_SHOWN:]}")


async def prepare_step(environment: Environment, folder: Path, spec: TrialSpec, workdir: str, sink: OutputSink) -> None:
    """Bring the step's own files to the working directory and run its setup script there, as the agent's user.

    Raises:
        TaskError: the script failed; the text has the end of what it printed.
    """
    if (folder / "workdir").is_dir():
        await environment.upload(folder / "workdir", workdir, owner=spec.agent.user)
    script = next((folder / name for name in SETUP_SCRIPTS if (folder / name).is_file()), None)
    if script is None:
        return
    inside = f"{workdir.rstrip('/')}/setup.sh" if script.parent != folder else _SCRIPT
    if inside == _SCRIPT:
        await environment.upload(script, inside, owner=spec.agent.user)
    argv = (*interpreter(script.read_bytes()), inside)
    result = await environment.exec(Command(argv=argv, cwd=workdir, user=spec.agent.user), sink)
    if result.exit_code != 0:
        said = (result.stderr.strip() or result.stdout.strip()).decode("utf-8", "replace")
        raise TaskError(f"{script.name} of step {folder.name} exited with code {result.exit_code}: {said[-_SHOWN:]}")
