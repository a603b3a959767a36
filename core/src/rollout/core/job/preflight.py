"""What agents and verifiers say against a task before anything starts, and how the faults of many tasks become one error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rollout.core.config.interpolate import expand, unset_names
from rollout.core.errors import TaskError
from rollout.core.job.planned import PlannedAgent, PlannedTask
from rollout.core.records import TaskSpec
from rollout.core.tasks.task import step_folder
from rollout.core.types import SKILLS, TaskOutline

MAX_FAULTS = 20
"""How many lines of faults one error has."""

_MAX_NAMES = 3


def check_plugins(
    task: PlannedTask,
    agents: Sequence[PlannedAgent],
    find_verifier: Callable[[str, Mapping[str, Any]], Any],
    environ: Mapping[str, str],
    rows: tuple[dict[str, Any], ...] = (),
) -> None:
    """Ask the task's verifier and the agents whether they can do their work on it; `rows` are the first that it stands for.

    Raises:
        TaskError: one line that holds everything that they say against it.
    """
    outline = msgspec.structs.replace(_outline(task, agents, environ), rows=rows)
    faults = [str(fault) for agent in agents for fault in agent.task_faults(outline)]
    faults += [fault for agent in agents if (fault := _not_equipped(task.spec, agent)) is not None]
    if not task.verifier.disable:
        verifier = find_verifier(task.verifier.plugin, task.verifier.options)
        if (ask := getattr(verifier, "task_faults", None)) is not None:
            faults += [str(fault) for fault in ask(outline)]
    if faults:
        raise TaskError("; ".join(dict.fromkeys(faults)))


def _not_equipped(task: TaskSpec, agent: PlannedAgent) -> str | None:
    """What the task or the job wants the agent to have, and the agent cannot be given."""
    missing = [
        f"the MCP server {server.name} ({server.spoken})"
        for server in (*task.mcp_servers, *agent.spec.mcp_servers)
        if server.spoken not in agent.equipment
    ]
    if (task.skills_dir is not None or agent.spec.skills) and SKILLS not in agent.equipment:
        missing.append("skills")
    return f"the agent {agent.spec.name} cannot be given {', '.join(missing)}" if missing else None


def task_error(faults: Iterable[tuple[str, str]], what: str) -> TaskError:
    """One error for all faults, (task, text) each: the fault itself when it is alone, otherwise a line for each text with the
    tasks that have it, at most MAX_FAULTS."""
    tasks_of: dict[str, list[str]] = {}
    for task, text in faults:
        tasks_of.setdefault(text, []).append(task)
    lines = [f"{_listed(tasks)}{text}" for text, tasks in tasks_of.items()]
    if len(lines) == 1:
        (tasks,) = tasks_of.values()
        return TaskError(f"{lines[0]} (--skip-invalid leaves {'the task' if len(tasks) == 1 else 'the tasks'} out)")
    if len(lines) > MAX_FAULTS:
        lines[MAX_FAULTS:] = [f"... and {len(lines) - MAX_FAULTS} more"]
    count = sum(map(len, tasks_of.values()))
    return TaskError(f"{count} tasks {what} (--skip-invalid leaves them out):\n  " + "\n  ".join(lines))


def _listed(tasks: Sequence[str]) -> str:
    named = [task for task in dict.fromkeys(tasks) if task]
    if not named:
        return ""
    shown = ", ".join(named[:_MAX_NAMES])
    return f"{shown}: " if len(named) <= _MAX_NAMES else f"{shown} and {len(named) - _MAX_NAMES} more: "


def _outline(task: PlannedTask, agents: Sequence[PlannedAgent], environ: Mapping[str, str]) -> TaskOutline:
    spec, env = task.spec, {}
    for agent in agents if task.verifier.agent_env else ():
        env.update(agent.spec.env)
    env.update(task.verifier.env)
    directory = Path(spec.path)
    return TaskOutline(
        directory=directory,
        dataset_directory=Path(spec.dataset_dir) if spec.dataset_dir else None,
        step_directories=tuple(step_folder(directory, step.name) for step in spec.steps),
        is_row=spec.row is not None,
        # One that is not set is a fault of its own, and is reported as that.
        env={name: value if unset_names([value], environ) else expand(value, environ) for name, value in env.items()},
    )
