"""The parts of a plan: an agent, a task, a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from rollout.core.records import AgentSpec, Isolation, TaskSpec, Timeouts, VerifierSpec
from rollout.core.types import EnvironmentSpec, TaskFault, TaskOutline


@dataclass(frozen=True)
class PlannedAgent:
    spec: AgentSpec
    folder: str
    override_timeout_sec: float
    max_timeout_sec: float
    fingerprint: str
    needs_environment: bool = True
    answers_rows: bool = False
    """It needs none for a row."""
    task_faults: Callable[[TaskOutline], Iterable[TaskFault]] = lambda task: ()
    """Why it cannot work on a task."""
    needs_capabilities: frozenset[str] = frozenset()
    """Of the backend."""
    equipment: frozenset[str] = frozenset()
    """Transports of MCP servers that it can be told of, and `skills`."""


@dataclass(frozen=True)
class PlannedTask:
    spec: TaskSpec
    environment: EnvironmentSpec
    verifier: VerifierSpec
    agent_user: str | None
    timeouts: Timeouts
    agent_timeout_sec: float
    folder: str
    fingerprint: dict[str, str]
    needs_environment: bool = True
    """Its verifier looks into the environment."""
    isolation: Isolation = "default"
    """The stricter of what the job and the task ask for."""
    verifier_environment: EnvironmentSpec | None = None
    """Of a separate verifier, if it is not an environment like the agent's."""

    @property
    def environments(self) -> tuple[EnvironmentSpec, ...]:
        """Every kind of environment that a trial of it starts."""
        return (self.environment,) if self.verifier_environment is None else (self.environment, self.verifier_environment)


def needs_environment(task: PlannedTask, agent: PlannedAgent) -> bool:
    """Whether the agent or the task's verifier wants to see a sandbox."""
    return task.needs_environment or (agent.needs_environment and not (agent.answers_rows and task.spec.row is not None))


class PlannedTasks(Protocol):
    """A list of them, or rows of a file: each iteration may read them anew."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[PlannedTask]: ...


@dataclass(frozen=True)
class PlannedDataset:
    name: str
    folder: str
    tasks: PlannedTasks
    shared: PlannedTask | None = None
    """Of rows: what all of them have in common. Its own digest is that of the file."""

    @property
    def kinds(self) -> Iterable[PlannedTask]:
        """One task of each kind of environment, verifier and variables: all tasks, or of rows a single one."""
        return self.tasks if self.shared is None else (self.shared,)
