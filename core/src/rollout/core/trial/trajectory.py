"""trajectory.json of a trial: what the agent handed over, or else what Rollout knows by itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from rollout.core.aio import in_own_thread
from rollout.core.atif import AtifStep, AtifTrajectory, decode_atif
from rollout.core.episodes import Episode, Step
from rollout.core.files import write_atomic
from rollout.core.plugins import find
from rollout.core.protocols import Agent
from rollout.core.records import ErrorInfo, StepResult, TrialSpec
from rollout.core.trajectories import AgentLogs, TrajectoryBuilder, TrajectoryReport, totals
from rollout.core.trial.redact import Redactor
from rollout.core.trial.steps import STEPS
from rollout.core.types import AgentTurn, Struct, Usage

TRAJECTORY = "trajectory.json"


class WorkDone(Struct, frozen=True, kw_only=True):
    """What Rollout knows of an agent's work by itself."""

    spec: TrialSpec
    instruction: str
    turn: AgentTurn
    usage: Usage | None = None
    error: ErrorInfo | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


async def reported(agent: Agent, logs: Path) -> TrajectoryReport | None:
    """What the agent hands over; None when it has nothing. Reading may take its time, so it is done in a thread.

    Raises:
        TypeError: it handed over something else. And whatever the agent raises.
    """
    hand_over: Callable[[Path], Any] | None = getattr(agent, "trajectory", None)
    if hand_over is None:
        return None
    report = await in_own_thread(lambda: hand_over(logs))
    if inspect.isawaitable(report):
        report = await report
    if report is None:
        return None
    if not isinstance(report, TrajectoryReport):
        raise TypeError(f"`trajectory` returned {type(report).__name__} instead of TrajectoryReport")
    # Structs that are made in Python are not checked field by field.
    return msgspec.convert(msgspec.to_builtins(report), TrajectoryReport)


def read_with(reader: str, logs: AgentLogs) -> TrajectoryReport | None:
    """What the reader of that name makes of an agent's logs.

    Raises:
        PluginError: there is no such reader. And whatever the reader raises.
    """
    trajectory = find("readers", reader).cls(logs)
    return TrajectoryReport(trajectory=trajectory, native=logs.native) if trajectory is not None else None


def completed(report: TrajectoryReport | None, work: WorkDone) -> AtifTrajectory:
    """The trajectory with what the trial adds: its id, totals, and where all of it comes from."""
    trajectory = _instructed(report.trajectory, work) if report is not None else _known(work)
    final = trajectory.final_metrics
    if final is None or work.usage is not None:
        final = totals(work.usage or trajectory.usage(), len(trajectory.steps))
        if trajectory.final_metrics is not None:
            final = msgspec.structs.replace(final, extra=trajectory.final_metrics.extra)
    source = {
        "trial_id": work.spec.trial_id,
        "agent": work.spec.agent.name,
        "plugin": work.spec.agent.plugin,
        "trust": report.trust if report is not None else "known",
        **({"native": report.native} if report is not None and report.native else {}),
        **({"exit_code": work.turn.exit_code} if work.turn.exit_code is not None else {}),
        **({"error": work.error.type} if work.error is not None else {}),
    }
    return msgspec.structs.replace(
        trajectory,
        session_id=trajectory.session_id or work.spec.trial_id,
        trajectory_id=trajectory.trajectory_id or work.spec.trial_id,
        final_metrics=final,
        extra={**(trajectory.extra or {}), "rollout": source},
    )


def _instructed(trajectory: AtifTrajectory, work: WorkDone) -> AtifTrajectory:
    """A trajectory that does not say what the agent was told, with that as its first step."""
    if any(step.source == "user" for step in trajectory.steps):
        return trajectory
    replace = msgspec.structs.replace
    told = AtifStep(step_id=1, source="user", message=work.instruction, timestamp=_iso(work.started_at))
    steps = [told, *(replace(step, step_id=number) for number, step in enumerate(trajectory.steps, 2))]
    final = trajectory.final_metrics
    if final is not None and final.total_steps is not None:
        final = replace(final, total_steps=final.total_steps + 1)
    return replace(trajectory, steps=steps, final_metrics=final)


def of_steps(directory: Path, steps: Sequence[StepResult], spec: TrialSpec, usage: Usage | None) -> AtifTrajectory | None:
    """The trajectories of a task's steps as one, each step of which says in `extra` whose it is; None when there is none.

    Raises:
        OSError, ValueError: one of them cannot be read.
    """
    files = {step.name: directory / STEPS / step.name / TRAJECTORY for step in steps}
    parts = {name: decode_atif(file.read_bytes()) for name, file in files.items() if file.is_file()}
    if not parts:
        return None
    changed = msgspec.structs.replace
    told = [changed(step, extra={**(step.extra or {}), "step": name}) for name, part in parts.items() for step in part.steps]
    first, *others = parts.values()
    inner = [sub for part in parts.values() for sub in part.subagent_trajectories or ()]
    known = {sub.trajectory_id: sub for sub in inner}
    sources = {name: (part.extra or {}).get("rollout") for name, part in parts.items()}
    return changed(
        first,
        session_id=spec.trial_id,
        trajectory_id=spec.trial_id,
        steps=[changed(step, step_id=number) for number, step in enumerate(told, 1)],
        notes="\n".join(dict.fromkeys(part.notes for part in (first, *others) if part.notes)) or None,
        final_metrics=totals(usage, len(told)),
        extra={"rollout": {"trial_id": spec.trial_id, "agent": spec.agent.name, "plugin": spec.agent.plugin, "steps": sources}},
        subagent_trajectories=list(known.values()) or None,
    )


def write_trajectory(path: Path, trajectory: AtifTrajectory, redactor: Redactor) -> None:
    """Write it in one step, every text in it redacted.

    Raises:
        StoreError
    """
    data = msgspec.json.encode(trajectory)
    if redactor:
        data = msgspec.json.encode(_redacted(msgspec.json.decode(data), redactor.text))
    write_atomic(path, msgspec.json.format(data, indent=2) + b"\n")


def _known(work: WorkDone) -> AtifTrajectory:
    """The task as the user's step; then what the agent told in its episode, or its answer."""
    made = TrajectoryBuilder(name=work.spec.agent.name)
    made.user(work.instruction, timestamp=_iso(work.started_at))
    if work.turn.episode is not None:
        _add_episode(made, work.turn.episode)
    elif work.turn.output is not None:
        made.agent(work.turn.output, timestamp=_iso(work.ended_at))
    if work.turn.episode is None and work.turn.output is None:
        made.notes = "The agent tells nothing of its steps: see its output in agent/ and logs/agent/ of the trial's folder."
    return made.build()


def _add_episode(made: TrajectoryBuilder, episode: Episode) -> None:
    for trajectory in episode.trajectories:
        for step in trajectory.steps:
            said = step.model_response or step.output
            made.agent(
                said if isinstance(said, str) else _text(said),
                reasoning=step.thought or None,
                extra={
                    "trajectory": trajectory.name,
                    **({"input": step.input} if step.input is not None else {}),
                    **({"action": step.action} if step.action is not None else {}),
                    **({"reward": step.reward} if step.reward else {}),
                    **({"metadata": step.metadata} if step.metadata else {}),
                },
            )
            call = _call_of(step)
            if call is not None:
                made.call(*call)
            if step.observation is not None:
                made.result(call[0] if call is not None else None, _text(step.observation))
        if not trajectory.steps and trajectory.output is not None:
            made.agent(_text(trajectory.output), extra={"trajectory": trajectory.name})


def _call_of(step: Step) -> tuple[str, str, Any] | None:
    """A step's action as a call, when it is spelled like one: `{"name": ..., "arguments": ...}`."""
    action = step.action
    if not isinstance(action, dict) or not isinstance(action.get("name"), str) or "arguments" not in action:
        return None
    return str(action.get("id") or step.id), action["name"], action["arguments"]


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _iso(time: datetime | None) -> str | None:
    return time.isoformat() if time is not None else None


def _redacted(value: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(key) if isinstance(key, str) else key: _redacted(item, redact) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(item, redact) for item in value]
    return value
