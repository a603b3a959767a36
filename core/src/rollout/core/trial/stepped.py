"""Trials of tasks that have steps: one environment, and for each step the phases between its start and its end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from rollout.core.aio import run_shielded
from rollout.core.errors import SandboxError, TaskError, boundary
from rollout.core.files import make_folder
from rollout.core.protocols import Environment
from rollout.core.records import StepResult, StepSpec, TrialSpec
from rollout.core.tasks.task import INSTRUCTION, step_folder
from rollout.core.trial.artifacts import KeptArtifact, check_default_artifact
from rollout.core.trial.budget import TrialBudget, left_of
from rollout.core.trial.deadlines import foreign
from rollout.core.trial.healthcheck import wait_until_healthy
from rollout.core.trial.instruction import INSTRUCTION_FILE_VARIABLE
from rollout.core.trial.paths import INSTRUCTION_FILE
from rollout.core.trial.rewards import check_rewards
from rollout.core.trial.rollout import Phase, Rollout
from rollout.core.trial.services import Services
from rollout.core.trial.steps import empty_logs, prepare_step, rewards_together, shortfall, spec_of_step, usage_together
from rollout.core.trial.trajectory import TRAJECTORY, of_steps, write_trajectory
from rollout.core.types import VerifyResult


def rollout_of(spec: TrialSpec, services: Services) -> Rollout:
    """The trial that a spec describes, ready to run."""
    return SteppedRollout(spec, services) if spec.task.steps else Rollout(spec, services)


class SteppedRollout(Rollout):
    """A trial whose task has steps: one after the other in the same environment; each has a folder of its own."""

    @property
    def _work(self) -> tuple[Phase, ...]:
        return (self.take_steps,)

    async def take_steps(self) -> None:
        """Take each step until one leaves no verdict, or less than the next one asks for."""
        spec, environment = self.spec, self.environment
        if environment is None:
            raise TaskError("a task with steps needs an environment")
        taken: list[StepResult] = []
        stopped: str | None = None
        for step in spec.task.steps:
            rollout = StepRollout(self, step)
            try:
                await rollout.take(environment, first=not taken)
            finally:
                self._installed = True
                result = rollout.step_result()
                taken.append(result)
                self.steps = tuple(taken)
                self._usage = usage_together(taken)
                self._journal.add(step.name, rollout._journal)
            self._journal.say(f"step {step.name}: {result.status}, reward {result.reward}")
            self._journal.error = self._journal.error or rollout._journal.error
            if result.status == "errored":
                self._journal.error, stopped = rollout._journal.error, "it has no verdict"
            elif result.status == "scored":
                stopped = shortfall(result.rewards, step.min_reward)
            if stopped is not None and step is not spec.task.steps[-1]:
                taken[-1] = msgspec.structs.replace(result, stopped=stopped)
                self.steps = tuple(taken)
                break
        rewards = rewards_together(taken, spec.task.step_strategy)
        if rewards is not None:
            source = f"{spec.task.step_strategy} of {len(taken)} of {len(spec.task.steps)} steps"
            self._verdict = VerifyResult(rewards=check_rewards(rewards), source=source)
        self._logs_collected = True  # each step has its own

    def _instruction_variables(self) -> dict[str, str]:
        return {INSTRUCTION_FILE_VARIABLE: INSTRUCTION_FILE}  # each step has its own

    async def _keep_trajectory(self) -> None:
        """Join the trajectories of the steps."""
        if self.steps:
            joined = await asyncio.to_thread(of_steps, self.directory, self.steps, self.spec, self._usage)
            if joined is not None:
                write_trajectory(self.directory / TRAJECTORY, joined, self._services.redactor)


class StepRollout(Rollout):
    """One step, as a trial of its own in an environment that another trial starts and ends."""

    def __init__(self, whole: SteppedRollout, step: StepSpec) -> None:
        """
        Raises:
            TaskError: the step's instruction cannot be read.
        """
        folder = step_folder(whole._task_directory, step.name)
        with boundary(TaskError, f"reading step {step.name}"):
            instruction = (folder / INSTRUCTION).read_text("utf-8-sig")
        super().__init__(spec_of_step(whole.spec, step, instruction), whole._services)
        self._step = step
        self._task_directory = folder
        self._shared_tests = whole.spec.tests_directory
        self._own_tests = folder / "tests"
        alone = (self._own_tests / "test.sh").is_file() or not self._shared_tests.is_dir()
        self._tests = self._own_tests if alone else self._shared_tests
        self._journal.share_log(whole._journal)
        self._workdir, self._image = whole._workdir, whole._image
        self._installed = whole._installed
        self._equipment_env = whole._equipment_env
        self._agents = whole.environment
        worked = whole._journal.durations().agent_execution_sec or 0.0
        self._budget = TrialBudget(left_of(whole.spec.budget, whole._usage, worked))

    async def take(self, environment: Environment, *, first: bool) -> None:
        """Go through the step's phases in an environment; what fails is recorded."""

        async def prepare() -> None:
            self.environment, self._walls = environment, self._walls_of(environment)
            if self.spec.isolation == "separate" and not (self.spec.task.artifacts or self.spec.verifier.disable):
                check_default_artifact(self._workdir)
            make_folder(self.directory)
            self._read_task()
            with foreign(SandboxError, f"preparing step {self._step.name}"):
                await self._network.at_start(environment)
                if not first:
                    await empty_logs(environment, self._root)
                await self._walls.set_up(self._instruction.encode())
                await prepare_step(environment, self._task_directory, self.spec, self._workdir, self._agent_sink)
                if self._step.healthcheck is not None:
                    await wait_until_healthy(environment, self._step.healthcheck)

        try:
            await self._go_through((prepare, *self._work))
        except asyncio.CancelledError:
            self._cancelled = True
            raise
        finally:
            await run_shielded(self.cleanup())

    def step_result(self) -> StepResult:
        """What came of the step so far."""
        result = self.result({})
        return StepResult(
            name=self._step.name,
            status=result.status,
            reward=result.reward,
            rewards=result.rewards,
            error=result.error,
            agent_exit_code=result.agent_exit_code,
            verifier_exit_code=result.verifier_exit_code,
            reward_source=result.reward_source,
            usage=result.usage,
            durations=result.durations,
        )

    async def _move_to_fresh_environment(self, kept: list[KeptArtifact]) -> None:
        """Start the verifier's environment beside the agent's, in which the next step is taken."""
        await self._leave_with_logs()
        await self._open_for_verifier(kept, self.directory / "logs")

    async def _leave(self, environment: Environment) -> None:
        """The agent's is the whole trial's."""
        if environment is not self._agents:
            await super()._leave(environment)

    @property
    def _verifier_env(self) -> dict[str, str]:
        return {**self.spec.verifier.env, **self._step.env}

    @property
    def _test_folders(self) -> tuple[Path, ...]:
        return self._shared_tests, self._own_tests
