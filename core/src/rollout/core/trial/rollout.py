"""One trial: setup, start, install_agent, connect, execute, disconnect, hand_over, verify, cleanup."""

from __future__ import annotations

import asyncio
import shutil
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rollout.core.aio import run_shielded
from rollout.core.episodes import Episode, Task, Trajectory
from rollout.core.errors import (
    AgentError,
    AgentInstallError,
    AgentInstallTimeoutError,
    AgentTimeoutError,
    CancelledTrialError,
    ImageGoneError,
    InternalError,
    OutOfMemoryError,
    RolloutError,
    SandboxError,
    StartError,
    StartTimeoutError,
    StoreError,
    TaskError,
    TeardownError,
    TransferError,
    VerifierError,
    VerifierTimeoutError,
    boundary,
    describe,
)
from rollout.core.files import make_folder, write_atomic
from rollout.core.protocols import (
    EXEC_USER,
    SERVICES,
    Agent,
    AgentContext,
    AgentSession,
    Environment,
    TrialView,
)
from rollout.core.records import (
    NO_ENVIRONMENT,
    Artifact,
    Status,
    StepResult,
    TrialResult,
    TrialSpec,
    TryRecord,
    to_json,
)
from rollout.core.tasks.images import ImageFile, image_files
from rollout.core.tasks.view import task_of
from rollout.core.trial.agent_image import image_with_agent
from rollout.core.trial.artifacts import (
    KeptArtifact,
    check_default_artifact,
    working_directory,
)
from rollout.core.trial.budget import TrialBudget
from rollout.core.trial.deadlines import deadline, foreign
from rollout.core.trial.equipment import equip, servers_of
from rollout.core.trial.handover import COLLECT_SEC, bring_work, keep_declared, run_collect_hooks
from rollout.core.trial.healthcheck import wait_until_healthy
from rollout.core.trial.instruction import (
    INSTRUCTION_FILE_VARIABLE,
    INSTRUCTION_VARIABLE,
    bring_images,
    instruction_variables,
    naming_images,
)
from rollout.core.trial.isolation import OWN_USER, ROOT_NAMES, Walls, without_git_hooks
from rollout.core.trial.journal import Journal
from rollout.core.trial.network import PhaseNetwork
from rollout.core.trial.nowhere import NoEnvironment
from rollout.core.trial.output import PhaseOutput
from rollout.core.trial.paths import LOGS, TESTS, reward_files
from rollout.core.trial.recorded import EPISODE
from rollout.core.trial.redact import spec_without_secrets
from rollout.core.trial.rewards import check_rewards, own_reward_files
from rollout.core.trial.service_output import keep_service_output
from rollout.core.trial.services import Services
from rollout.core.trial.task_setup import set_up_task
from rollout.core.trial.trajectory import TRAJECTORY, WorkDone, completed, reported, write_trajectory
from rollout.core.trial.tries import is_whole, open_folder, read_tries
from rollout.core.trial.verdict import says_more, write_verdict
from rollout.core.types import (
    AgentTurn,
    EnvironmentSpec,
    McpServer,
    Stream,
    TransferReport,
    Usage,
    VerifyResult,
    primary_reward,
)

_STOP_SEC = 60.0
_READ_SEC = 120.0

T = TypeVar("T")

Phase = Callable[[], Awaitable[None]]


class Rollout:
    """Runs one TrialSpec. `run` is the list of phases; each of them can be called alone, in that order.

    What a phase records goes to the trial's folder as it happens; `result` is what came of the trial so far.
    """

    def __init__(self, spec: TrialSpec, services: Services) -> None:
        self.spec = spec
        self.directory = Path(spec.directory)
        self.environment: Environment | None = None
        self._services = services
        self._task_directory = Path(spec.task.path)
        self._tests = spec.tests_directory
        self._instruction = ""
        self._images: list[ImageFile] = []
        self._task = Task(id=spec.task.name, instruction="")
        self._env: dict[str, str] = {}
        self._equipment_env: dict[str, str] = {}
        self._image: str | None = None
        self._installed = False
        self._walls: Walls | None = None
        self._place = spec.environment
        self._network = PhaseNetwork(spec)
        self._agent: Agent | None = None
        self._session: AgentSession | None = None
        self._turn = AgentTurn()
        self._usage: Usage | None = None
        self._budget = TrialBudget(spec.budget)
        self._verdict: VerifyResult | None = None
        self._journal = Journal(services.redactor)
        self._cancelled = False
        self._logs_collected = False
        self._artifacts = self.directory / "artifacts"
        self._kept_secrets = False
        self._workdir = "/"
        self._outputs: dict[str, PhaseOutput] = {}
        self._tries: tuple[TryRecord, ...] = ()
        self.steps: tuple[StepResult, ...] = ()
        """Of a task that has steps: what came of those that were taken so far."""
        self.finished: TrialResult | None = None
        """Set when the trial went through its phases and its result is on disk, even if `run` was cancelled after them."""

    async def run(self) -> TrialResult:
        """Run every phase that can still run; always end in `cleanup` and a written result.

        Raises:
            StoreError: the result cannot be written; the job has to stop.
            asyncio.CancelledError: after cleanup, with a result of status `cancelled` on disk.
        """
        try:
            return await self._run()
        finally:
            self._journal.close()

    async def _run(self) -> TrialResult:
        cancelled: asyncio.CancelledError | None = None
        try:
            await self._go_through(self.phases)
        except StoreError:
            await run_shielded(self.cleanup())
            raise
        except asyncio.CancelledError as error:
            cancelled = error
            self._cancelled = True
            self._journal.fail(CancelledTrialError("interrupted"), None)
        try:
            await run_shielded(self.cleanup())
        except asyncio.CancelledError as error:
            cancelled = error
        result = self._write_result(await self._metadata())
        if not self._cancelled:
            self.finished = result
        if cancelled is not None:
            raise cancelled
        return result

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What `run` goes through, in this order, until one of them fails."""
        return self.setup, self.start, *self._work

    @property
    def _work(self) -> tuple[Phase, ...]:
        """The phases between the start of the environment and its end."""
        return self.install_agent, self.connect, self.execute, self.disconnect, self.hand_over, self.verify

    async def _go_through(self, phases: Sequence[Phase]) -> None:
        """Run phases until one fails; what failed is recorded."""
        phase = ""
        try:
            for step in phases:
                phase = step.__name__
                await step()
        except StoreError:
            raise
        except RolloutError as error:
            self._journal.fail(error, "install_agent" if isinstance(error, AgentInstallError) else phase)
        except Exception as error:  # noqa: BLE001 - the trial's outermost boundary: a bug must not touch its siblings
            self._journal.say("".join(traceback.format_exception(error)))
            self._journal.fail(InternalError(f"{phase}: {describe(error)}"), phase)

    async def setup(self) -> None:
        """Make the trial's folder and read what the trial needs from the host."""
        spec = self.spec
        earlier = open_folder(self.directory)
        self._journal.mark("started_at")
        if earlier is not None:
            self._tries = read_tries(self.directory)
            if not is_whole(earlier):
                await asyncio.to_thread(self._services.redactor.tree, earlier)
        write_atomic(f"{spec.directory}/config.json", to_json(spec_without_secrets(spec)))
        self._journal.open(self.directory / "trial.log")
        self._journal.say(f"trial {spec.trial_id}, try {spec.try_number}")
        if self._services.hooks.implemented("rollout_trial_started"):
            await self._services.hooks.notify("rollout_trial_started", trial=spec)
        self._read_task()

    def _read_task(self) -> None:
        with boundary(TaskError, f"reading the task {self._task_directory}"):
            self._task = task_of(self.spec.task)
            self._images = [] if self.spec.environment_type == NO_ENVIRONMENT else image_files(self._task.instruction)
            self._instruction = naming_images(self._task.text, self._images)
        self._env = self._instruction_variables()

    async def start(self) -> None:
        """Prepare the image, start the environment, make the special folders."""
        spec = self.spec
        if spec.environment_type == NO_ENVIRONMENT:
            return
        async with self._phase("environment_setup"):
            self.environment = await self._launch(spec.environment, for_agent=True)
            self._walls = self._walls_of(self.environment)
            async with deadline(spec.timeouts.build_sec, StartTimeoutError, "preparing the environment"):
                with foreign(StartError, "preparing the environment"):
                    await self._walls.set_up(self._instruction.encode())
                    await bring_images(self.environment, self._images)
                    if spec.task.setup:
                        root = "root" if EXEC_USER in self._services.backend.capabilities else None
                        await set_up_task(self.environment, spec, root, self._agent_sink)
                    if spec.isolation in OWN_USER:
                        await self._walls.admit_agent(spec.environment.workdir, self._journal.warn)
                    self._equipment_env = await equip(
                        self.environment, spec, self._mcp_servers, root=self._root, warn=self._journal.warn
                    )
                    if spec.task.artifacts or spec.task.steps or spec.isolation == "separate":
                        # Asked before the agent could give another answer.
                        self._workdir = await working_directory(self.environment, spec.environment.workdir)
                    if spec.isolation == "separate" and not (spec.task.artifacts or spec.verifier.disable):
                        check_default_artifact(self._workdir)
            await self._network.at_start(self.environment)
            if spec.task.healthcheck is not None:
                with foreign(StartError, "waiting for the environment"):
                    await wait_until_healthy(self.environment, spec.task.healthcheck)

    async def _launch(self, wanted: EnvironmentSpec, *, for_agent: bool) -> Environment:
        """Start an environment from its image, or for an agent from the image in which it is installed already."""
        try:
            return await self._launch_once(wanted, for_agent)
        except ImageGoneError as error:
            self._journal.say(f"{error}; preparing it again")
            self._services.images.forget(wanted.digest)
            self._services.installs.forget(self._image or "")
            return await self._launch_once(wanted, for_agent)

    async def _launch_once(self, wanted: EnvironmentSpec, for_agent: bool) -> Environment:
        services = self._services
        seconds = wanted.build_timeout_sec or self.spec.timeouts.build_sec
        image = self._image = await services.images.prepare(wanted, seconds)
        made = await image_with_agent(self.spec, services, self._agent_context, image) if for_agent else None
        if made is not None:
            image, self._installed = made[0], True
            self._journal.say(f"the agent is installed in {image}; see images/{made[1]} of the job")
        environment = msgspec.structs.replace(wanted, env={**services.expand(wanted.env), **self._env})
        async with deadline(seconds, StartTimeoutError, "starting the environment"):
            with foreign(StartError, "starting the environment"):
                return await services.backend.start(environment, image)

    def _walls_of(self, environment: Environment) -> Walls:
        """What keeps agent and verifier apart in the environment that both work in."""
        return Walls(environment, root=self._root, agent_user=self.spec.agent.user, verifier_user=self.spec.verifier.user)

    async def install_agent(self) -> None:
        """Construct the agent and let it install itself; a failure is not verified."""
        spec, services = self.spec, self._services
        plugin, options = services.agent(spec.agent)
        async with self._phase("agent_setup"):
            context = self._agent_context()
            try:
                async with deadline(spec.timeouts.install_sec, AgentInstallTimeoutError, "installing the agent"):
                    with foreign(AgentInstallError, "installing the agent", AgentInstallTimeoutError):
                        agent: Agent = plugin.cls(options, context)
                        self._agent = agent
                        if not self._installed:
                            await agent.install()
            finally:
                self._close_output("setup")

    async def connect(self) -> None:
        """Open the agent's session."""
        assert self._agent is not None
        if self.environment is not None:
            await self._network.for_agent(self.environment)
        async with deadline(self.spec.timeouts.install_sec, AgentInstallTimeoutError, "connecting to the agent"):
            with foreign(AgentError, "connecting to the agent", AgentInstallTimeoutError):
                self._session = await self._agent.connect()

    async def execute(self) -> None:
        """Give the agent its task. An agent that fails or runs out of time is recorded, and verified all the same."""
        assert self._session is not None
        seconds = self.spec.timeouts.agent_sec
        try:
            async with self._phase("agent_execution"), deadline(seconds, AgentTimeoutError, "the agent"), self._budget:
                with foreign(AgentError, "the agent", AgentTimeoutError):
                    self._turn = _returned(await self._session.prompt(self._instruction), AgentTurn)
        except AgentError as error:
            self._journal.fail(error, "execute")
            return
        finally:
            self._keep_episode()
        if self._turn.exit_code:
            what = f"the agent exited with code {self._turn.exit_code}"
            failure = OutOfMemoryError(f"{what}: out of memory") if self._turn.out_of_memory else AgentError(what)
            self._journal.fail(failure, "execute")

    async def disconnect(self) -> None:
        """End the agent's session and, under strict isolation, everything else that it started.

        A session that does not end well is recorded, and the agent's work is verified all the same.
        """
        try:
            async with deadline(_STOP_SEC, AgentError, "closing the agent's session"):
                with foreign(AgentError, "closing the agent's session", AgentError):
                    await self._close_session()
        except AgentError as error:
            self._journal.fail(error, "disconnect")
        finally:
            self._close_output("agent")
        if self.spec.isolation == "strict" and self._walls is not None:
            async with deadline(_STOP_SEC, VerifierError, "killing what the agent left running"):
                await self._walls.kill_everything()

    async def hand_over(self) -> None:
        """Keep the task's artifacts and, for a separate verifier, leave the agent's environment for a fresh one."""
        spec, environment = self.spec, self.environment
        if environment is None:
            return
        await run_collect_hooks(spec, environment, self._journal.warn)
        if spec.isolation == "separate" and not spec.verifier.disable:
            artifacts = spec.task.artifacts or (Artifact(source=self._workdir),)
            kept = await self._keep_artifacts(environment, artifacts)
            await self._move_to_fresh_environment(kept)
        elif spec.task.artifacts:
            keeping = self._keep_artifacts(environment, spec.task.artifacts)
            await self._attempt("keeping the artifacts", COLLECT_SEC, keeping, TransferError)
        await self._redact_artifacts()

    async def _keep_artifacts(self, environment: Environment, artifacts: Sequence[Artifact]) -> list[KeptArtifact]:
        self._kept_secrets = bool(self._services.redactor)
        return await keep_declared(environment, artifacts, self._artifacts, self._workdir, self._journal.warn)

    async def _move_to_fresh_environment(self, kept: list[KeptArtifact]) -> None:
        """Stop the agent's environment and start the verifier's, with the artifacts, and the logs but those of a verifier."""
        left = self.environment
        assert left is not None
        await self._leave_with_logs()
        await self._attempt("stopping the environment", _STOP_SEC, left.stop(), TeardownError)
        await self._open_for_verifier(kept, self.directory / "logs")

    async def _leave_with_logs(self) -> None:
        """Take the agent's logs along, and nothing that is to be a verifier's; the environment is no longer this trial's."""
        await self._attempt("collecting the logs", COLLECT_SEC, self._collect_logs())
        await asyncio.to_thread(_remove, self.directory / "logs" / "verifier")
        self._logs_collected, self.environment = False, None

    async def _open_for_verifier(self, kept: Sequence[KeptArtifact], logs: Path) -> None:
        """Start the verifier's environment and bring there what was kept of the agent's."""
        spec = self.spec
        self._place = spec.verifier_environment or spec.environment
        self.environment = environment = await self._launch(self._place, for_agent=False)
        self._walls = Walls(environment, root=self._root, verifier_user=spec.verifier.user)
        async with deadline(COLLECT_SEC, TransferError, "preparing the verifier's environment"):
            with foreign(TransferError, "preparing the verifier's environment"):
                await self._walls.set_up(self._instruction.encode(), keep_tests=self._tests_are_built_in)
                await bring_work(environment, kept, self._artifacts, logs, root=self._root, warn=self._journal.warn)

    @property
    def _tests_are_built_in(self) -> bool:
        """The environment was built from the tests: what its Dockerfile made of them stays."""
        return self._place is self.spec.verifier_environment and self._place.directory == str(self._tests)

    async def _redact_artifacts(self) -> None:
        if self._kept_secrets:
            await self._redact("artifacts")
            self._kept_secrets = False

    async def verify(self) -> None:
        """Clear stale rewards and tests, upload the task's tests, ask the verifier for its verdict."""
        spec = self.spec
        if spec.verifier.disable:
            return
        plugin, options = self._services.verifier(spec.verifier)
        output = PhaseOutput(self.directory / "verifier", self._services.redactor, self._journal.warn)
        try:
            async with (
                self._phase("verifier"),
                deadline(spec.timeouts.verifier_sec, VerifierTimeoutError, "the verifier"),
            ):
                if self.environment is not None and self._place is spec.environment:
                    await self._network.for_verifier(self.environment)
                with foreign(VerifierError, "verification", VerifierTimeoutError):
                    view = self._trial_view(output, own_reward_files(plugin.cls, options))
                    await self._bring_tests(view)
                    verdict = await plugin.cls(options).verify(view)
                    if isinstance(verdict, VerifyResult):
                        verdict = msgspec.structs.replace(verdict, rewards=check_rewards(verdict.rewards))
                    self._verdict = _returned(verdict, VerifyResult)
            for warning in self._verdict.warnings:
                self._journal.warn(warning)
            if says_more(self._verdict):
                write_verdict(self.directory / "verifier", self._verdict, self._services.redactor)
        finally:
            output.close()

    async def cleanup(self) -> None:
        """Collect the logs if nobody has, and stop the environment. Never raises: what fails here is a warning of the trial."""
        if self._session is not None:
            await self._attempt("closing the agent's session", _STOP_SEC, self._close_session())
        if self.environment is not None:
            if not self._logs_collected:
                # Somebody waits at a terminal for an interrupted trial to end.
                seconds = _STOP_SEC if self._cancelled else COLLECT_SEC
                await self._attempt("collecting the logs", seconds, self._collect_logs())
            await self._leave(self.environment)
            self.environment = None
        if self._outputs:
            await self._attempt("writing what the agent printed", _STOP_SEC, self._close_outputs())
        await self._attempt("keeping the trajectory", _READ_SEC, self._keep_trajectory(), AgentError)
        if self._services.redactor:
            await self._attempt("removing secrets", COLLECT_SEC, self._redact("setup", "agent", "verifier"))
            await self._attempt("removing secrets", COLLECT_SEC, self._redact_artifacts())

    async def _leave(self, environment: Environment) -> None:
        """End the environment, after what else is worth keeping of it."""
        if SERVICES in self._services.backend.capabilities:
            keeping = keep_service_output(environment, self.directory / "services", self._services.redactor)
            await self._attempt("keeping what services printed", _STOP_SEC, keeping)
        await self._attempt("stopping the environment", _STOP_SEC, environment.stop(), TeardownError)

    # How the phases do it

    @asynccontextmanager
    async def _phase(self, name: str) -> AsyncIterator[None]:
        self._journal.begin(name)
        hooks, spec = self._services.hooks, self.spec
        watched = hooks.implemented("rollout_phase")
        if watched:
            await hooks.notify("rollout_phase", trial=spec, phase=name, state="started")
        try:
            yield
        finally:
            self._journal.end(name)
            if watched:
                await hooks.notify("rollout_phase", trial=spec, phase=name, state="ended")

    def _instruction_variables(self) -> dict[str, str]:
        variables = instruction_variables(self._instruction)
        if INSTRUCTION_VARIABLE not in variables:
            left = f"only ${INSTRUCTION_FILE_VARIABLE} is set"
            self._journal.warn(f"the instruction does not fit into ${INSTRUCTION_VARIABLE}: {left}")
        return variables

    @property
    def _root(self) -> str | None:
        """Root's name where commands can run as another user."""
        return "root" if EXEC_USER in self._services.backend.capabilities else None

    @property
    def _verifier_user(self) -> str | None:
        """Whom the verifier works as: where the agent has a user of its own, never as that one by omission."""
        user = self.spec.verifier.user
        return self._root if user is None and self.spec.agent.user not in ROOT_NAMES else user

    @property
    def _verifier_env(self) -> dict[str, str]:
        return dict(self.spec.verifier.env)

    @property
    def _test_folders(self) -> tuple[Path, ...]:
        """Folders that make up /tests; of two files with the same name the later folder's counts."""
        return (self._tests,)

    def _agent_context(self) -> AgentContext:
        spec = self.spec
        return AgentContext(
            name=spec.agent.name,
            instruction=self._instruction,
            task=self._task,
            task_directory=self._task_directory,
            environment=self.environment or NoEnvironment(),
            is_row=spec.task.row is not None,
            attempt=spec.attempt,
            base_dir=Path(spec.base_dir),
            env={**self._services.expand(spec.agent.env), **self._env, **self._equipment_env},
            mcp_servers=self._mcp_servers,
            workdir=spec.environment.workdir,
            user=spec.agent.user,
            log_dir=self.directory,
            solution_env=lambda: self._services.expand(spec.task.env),
            root_user=self._root,
            sink=self._agent_sink,
            spent=self._spending,
            redact=self._services.redactor.redact,
        )

    @property
    def _mcp_servers(self) -> tuple[McpServer, ...]:
        return servers_of(self.spec, self._services.expand)

    def _spending(self, usage: Usage) -> None:
        """What the agent says that it has used so far."""
        self._usage = usage
        self._budget.spent(usage)

    def _agent_sink(self, stream: Stream, chunk: bytes) -> None:
        """What an agent prints belongs to `setup/` until it is installed, to `agent/` from then on."""
        phase = "agent" if "agent_setup_ended_at" in self._journal.times else "setup"
        output = self._outputs.get(phase)
        if output is None:
            output = self._outputs[phase] = PhaseOutput(self.directory / phase, self._services.redactor, self._journal.warn)
        output(stream, chunk)

    def _close_output(self, phase: str) -> None:
        if output := self._outputs.pop(phase, None):
            output.close()

    def _trial_view(self, output: PhaseOutput, own_files: tuple[str, ...]) -> TrialView:
        spec, services = self.spec, self._services
        env = services.expand(self._verifier_env)
        if spec.verifier.agent_env:
            env = {**services.expand(spec.agent.env), **env}
        if spec.isolation in ("strict", "separate"):
            env = without_git_hooks(env)
        return TrialView(
            environment=self.environment or NoEnvironment(),
            task=self._task,
            episode=self._episode(),
            task_directory=self._task_directory,
            instruction=self._task.text,
            metadata=spec.task.metadata if spec.task.row is None else spec.task.row,
            env=env,
            workdir=self._place.workdir,
            user=self._verifier_user,
            trial_dir=self.directory,
            log_dir=self.directory / "verifier",
            sink=output,
            reward_files=tuple(dict.fromkeys((*own_files, *reward_files(rllm=spec.task.rllm)))),
            tests_directory=self._tests,
            collect_logs=self._collect_logs,
            run_python=services.python,
        )

    def _episode(self) -> Episode:
        """What the agent told of its work; of an agent that tells nothing, an episode with one empty trajectory."""
        turn, task, attempt = self._turn, self._task, self.spec.attempt
        episode = turn.episode
        if episode is None:
            made = Trajectory(
                uid=self.spec.trial_id, name=self.spec.agent.name, task=task.id, input=task.text, output=turn.output
            )
            episode = Episode(trajectories=[made])
        return replace(
            episode, id=episode.id or f"{task.id}:{attempt - 1}", task=episode.task or task.id, task_id=task.id, attempt=attempt
        )

    def _keep_episode(self) -> None:
        """Write what the agent told, for whoever scores the trial again."""
        if self._turn.output is not None or self._turn.episode is not None:
            make_folder(self.directory / "agent")
            write_atomic(self.directory / EPISODE, msgspec.json.format(msgspec.json.encode(self._episode().to_dict()), indent=2))

    async def _keep_trajectory(self) -> None:
        """Write what the agent did and take its usage from it. A report that cannot be read is a warning, and what Rollout knows
        by itself is written instead."""
        if self._agent is None or "agent_execution_started_at" not in self._journal.times:
            return
        report = None
        try:
            async with deadline(_READ_SEC / 2, AgentError, "reading the trajectory"):
                with foreign(AgentError, "reading the trajectory"):
                    report = await reported(self._agent, self.directory / "logs" / "agent")
        except AgentError as error:
            self._journal.warn(str(error))
        self._usage = self._turn.usage or (report.trajectory.usage() if report is not None else None) or self._usage
        work = WorkDone(
            spec=self.spec,
            instruction=self._instruction,
            turn=self._turn,
            usage=self._usage,
            error=self._journal.error,
            started_at=self._journal.times.get("agent_execution_started_at"),
            ended_at=self._journal.times.get("agent_execution_ended_at"),
        )
        write_trajectory(self.directory / TRAJECTORY, completed(report, work), self._services.redactor)

    async def _bring_tests(self, view: TrialView) -> None:
        if self._walls is None:
            return
        await self._walls.clear(view.reward_files, keep_tests=self._tests_are_built_in)
        folders = [folder for folder in self._test_folders if folder.is_dir()]
        for folder in folders:
            await view.environment.upload(folder, TESTS, owner=view.user)
        if folders:
            await self._walls.lock_tests()

    async def _collect_logs(self) -> TransferReport:
        if self.environment is None:
            return TransferReport()
        target = self.directory / "logs"
        try:
            with foreign(TransferError, f"copying {LOGS}"):
                report = await self.environment.download(LOGS, target)
        finally:
            if self._services.redactor:
                await run_shielded(self._redact("logs"))
        self._logs_collected = True
        for path, reason in report.skipped[:5]:
            self._journal.warn(f"{LOGS}/{path} was left out: {reason}")
        if report.skipped_count > 5:
            self._journal.warn(f"{report.skipped_count - 5} more files of {LOGS} were left out")
        return report

    async def _redact(self, *folders: str) -> None:
        for folder in folders:
            await asyncio.to_thread(self._services.redactor.tree, self.directory / folder)

    async def _close_outputs(self) -> None:
        for phase in tuple(self._outputs):
            self._close_output(phase)

    async def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _attempt(self, doing: str, seconds: float, work: Any, error_type: type[RolloutError] = SandboxError) -> None:
        try:
            async with deadline(seconds, error_type, doing):
                with foreign(error_type, doing):
                    await work
        except RolloutError as error:
            self._journal.warn(str(error) if str(error).startswith(doing) else f"{doing}: {error}")

    # What is recorded

    async def _metadata(self) -> dict[str, Any]:
        hooks = self._services.hooks
        if not hooks.implemented("rollout_add_result_metadata"):
            return {}
        added = await hooks.notify("rollout_add_result_metadata", trial=self.spec, result=self.result({}))
        metadata: dict[str, Any] = {}
        for block in added:
            try:
                with boundary(RolloutError, "a hook's metadata was left out"):
                    metadata |= msgspec.json.decode(msgspec.json.encode(block), type=dict[str, Any])
            except RolloutError as error:
                self._journal.warn(str(error))
        return metadata

    def status(self) -> Status:
        if self._cancelled:
            return "cancelled"
        if self._verdict is not None:
            return "scored"
        return "errored" if self._journal.error is not None else "unscored"

    def result(self, extra: dict[str, Any]) -> TrialResult:
        """What came of the trial so far."""
        spec = self.spec
        rewards = {} if self._verdict is None or self._cancelled else self._verdict.rewards
        usage = self._usage
        return TrialResult(
            trial_id=spec.trial_id,
            task_name=spec.task.name,
            dataset_name=spec.task.dataset,
            agent_name=spec.agent.name,
            attempt=spec.attempt,
            status=self.status(),
            reward=primary_reward(rewards),
            rewards=rewards,
            error=self._journal.error,
            agent_exit_code=self._turn.exit_code,
            verifier_exit_code=self._verdict.exit_code if self._verdict else None,
            reward_source=self._verdict.source if self._verdict else None,
            usage=usage,
            cost=usage.cost_usd if usage is not None else None,
            durations=self._journal.durations(),
            timestamps=self._journal.timestamps(),
            steps=self.steps,
            tries=self._tries,
            warnings=tuple(self._journal.warnings),
            environment_type=spec.environment_type,
            image=self._image,
            task_digest=spec.task.digest,
            task_git_commit_id=spec.task.git_commit_id,
            task_source=spec.task.source,
            task_metadata=spec.task.metadata,
            fingerprint=spec.fingerprint,
            plugins=self._services.plugins,
            extra=extra,
        )

    def _write_result(self, extra: dict[str, Any]) -> TrialResult:
        result = self.result(extra)
        self._journal.say(f"{result.status}, reward {result.reward}")
        write_atomic(f"{self.spec.directory}/result.json", to_json(result))
        return result


def _remove(path: Path) -> None:
    """Remove a file, a link or a folder of the host, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _returned(value: Any, wanted: type[T]) -> T:
    """What foreign code returned, if it is what the contract says, down to its fields: all of it goes into records."""
    if not isinstance(value, wanted):
        raise TypeError(f"it returned {type(value).__name__} instead of {wanted.__name__}")
    return msgspec.convert(msgspec.to_builtins(value), wanted)
