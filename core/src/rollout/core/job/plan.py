"""A planned job: everything that is known before the first trial starts, and the trials it makes one by one."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rollout.core.config.job import JobConfig
from rollout.core.errors import RolloutError, boundary
from rollout.core.hooks import HookBus
from rollout.core.job.kept import KeptTrials
from rollout.core.job.planned import PlannedAgent, PlannedDataset, PlannedTask, needs_environment
from rollout.core.job.store import JobStore
from rollout.core.plugins import Plugin
from rollout.core.protocols import BackendContext, EnvironmentBackend, Executor
from rollout.core.records import NO_ENVIRONMENT, AgentSpec, TrialSpec
from rollout.core.trial.deadlines import deadline, effective_timeout
from rollout.core.types import EnvironmentSpec

_CLOSE_SEC = 120.0


@dataclass
class Plan:
    """A job that can run: `trials()` makes its specs one by one."""

    config: JobConfig
    base_dir: Path
    job_id: str
    name: str
    directory: Path
    agents: list[PlannedAgent]
    datasets: list[PlannedDataset]
    backend: EnvironmentBackend
    backend_context: BackendContext
    executor: Executor
    metrics: list[tuple[str, Plugin, Any]]
    hooks: HookBus
    environ: Mapping[str, str]
    plugins: dict[str, str]
    warnings: list[str]
    finished: KeptTrials
    """Trials of an earlier run that are kept."""
    kept_of: Counter[str] = field(default_factory=Counter)
    """How many of them each data set has, by its folder."""
    image_contents: dict[str, str] = field(default_factory=dict)
    """What the backend says that image references stand for."""
    rerun: Counter[str] = field(default_factory=Counter)
    """Why trials of an earlier run are run again, and how many."""
    store: JobStore | None = None
    """Open, unless this is a dry run."""
    _specs_with_user: dict[tuple[str, str], AgentSpec] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return len(self.agents) * self.config.n_attempts * sum(len(dataset.tasks) for dataset in self.datasets)

    @property
    def kept(self) -> int:
        return len(self.finished)

    def trials(self) -> Iterator[TrialSpec]:
        """The trials that are to run. All trials of a task come together, so that its image is needed for a short time."""
        for dataset in self.datasets:
            for task in dataset.tasks:
                for agent in self.agents:
                    yield from self._attempts(dataset, task, agent)

    def images(self) -> Iterator[tuple[EnvironmentSpec, float]]:
        """The environments of the tasks in the order of their trials, and how many seconds making one may take."""
        for dataset in self.datasets:
            for task in dataset.kinds:
                if any(self._environment_type(task, agent) != NO_ENVIRONMENT for agent in self.agents):
                    yield task.environment, task.timeouts.build_sec

    def pending_by_image(self) -> Counter[str]:
        """How many trials are still to run on each environment digest."""
        pending: Counter[str] = Counter()
        for dataset in self.datasets:
            if dataset.shared is not None:
                trials = len(dataset.tasks) * len(self.agents) * self.config.n_attempts
                for environment in dataset.shared.environments:
                    pending[environment.digest] += trials - self.kept_of[dataset.folder]
                continue
            for task in dataset.tasks:
                for agent in self.agents:
                    for attempt in range(1, self.config.n_attempts + 1):
                        if trial_id_of(agent, dataset, task, attempt) not in self.finished:
                            pending.update(environment.digest for environment in task.environments)
        return pending

    async def aclose(self) -> list[str]:
        """Close executor and backend, remove the scratch folder and let go of the job's folder; what failed, a line each.

        `run_job` does it at its end; a plan that is not run has to be closed by whoever asked for it.
        """
        failed = []
        for doing, close in (("closing the executor", self.executor.aclose), ("closing the backend", self.backend.aclose)):
            try:
                async with deadline(_CLOSE_SEC, RolloutError, doing):
                    with boundary(RolloutError, doing):
                        await close()
            except RolloutError as error:
                failed.append(str(error))
        shutil.rmtree(self.backend_context.work_dir, ignore_errors=True)
        if self.store is not None:
            self.store.close()
        return failed

    def _agent_spec(self, agent: PlannedAgent, task: PlannedTask) -> AgentSpec:
        """The agent's spec, as the task's user unless the job names one. One object per user: trials share what hangs on it."""
        if agent.spec.user is not None or task.agent_user is None:
            return agent.spec
        key = (agent.folder, task.agent_user)
        if key not in self._specs_with_user:
            self._specs_with_user[key] = msgspec.structs.replace(agent.spec, user=task.agent_user)
        return self._specs_with_user[key]

    def _environment_type(self, task: PlannedTask, agent: PlannedAgent) -> str:
        """Where a trial runs: nowhere, if neither the agent nor the verifier wants to see a sandbox."""
        return self.config.environment.type if needs_environment(task, agent) else NO_ENVIRONMENT

    def _attempts(self, dataset: PlannedDataset, task: PlannedTask, agent: PlannedAgent) -> Iterator[TrialSpec]:
        config = self.config
        changed = msgspec.structs.replace

        def agent_sec(task_sec: float) -> float:
            return effective_timeout(
                task_sec,
                override_sec=agent.override_timeout_sec,
                max_sec=agent.max_timeout_sec,
                multiplier=config.timeout_multiplier,
            )

        timeouts = changed(task.timeouts, agent_sec=agent_sec(task.agent_timeout_sec))
        spec = task.spec
        if spec.steps:
            spec = changed(spec, steps=tuple(changed(step, agent_sec=agent_sec(step.agent_sec)) for step in spec.steps))
        fingerprint = {"agent": agent.fingerprint, **task.fingerprint}
        for attempt in range(1, config.n_attempts + 1):
            trial_id = trial_id_of(agent, dataset, task, attempt)
            if trial_id in self.finished:
                continue
            labels = {"rollout.job": self.job_id, "rollout.trial": trial_id}
            yield TrialSpec(
                job_id=self.job_id,
                job_name=self.name,
                trial_id=trial_id,
                directory=f"{self.directory}/{trial_id}",
                attempt=attempt,
                agent=self._agent_spec(agent, task),
                task=spec,
                environment=changed(task.environment, labels=labels),
                environment_type=self._environment_type(task, agent),
                environment_options=config.environment.options,
                base_dir=str(self.base_dir),
                verifier=task.verifier,
                timeouts=timeouts,
                budget=config.budget.per_trial,
                agent_cache=config.environment.agent_cache,
                isolation=task.isolation,
                verifier_environment=task.verifier_environment and changed(task.verifier_environment, labels=labels),
                fingerprint=fingerprint,
            )


def trial_id_of(agent: PlannedAgent, dataset: PlannedDataset, task: PlannedTask, attempt: int) -> str:
    return f"{agent.folder}/{dataset.folder}/{task.folder}__{attempt}"
