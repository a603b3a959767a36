"""What the contract suites share: known failures, and the records that a contract is tried with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from rollout.core.episodes import Episode, Task, Trajectory
from rollout.core.protocols import AgentContext, Environment, TrialView
from rollout.core.records import AgentSpec, TaskSpec, TrialResult, TrialSpec
from rollout.core.types import EnvironmentSpec, OutputSink, Stream


class KnownFailures:
    """Lets a subclass name tests that fail, with the reason; such a test must fail."""

    known_failures: ClassVar[dict[str, str]] = {}
    """Name of a test to the reason why it fails."""

    @pytest.fixture(autouse=True)
    def _gate(self, request: pytest.FixtureRequest) -> None:
        reason = self.known_failures.get(request.function.__name__)
        if reason is not None:
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


class Output:
    """An output sink that keeps everything."""

    def __init__(self) -> None:
        self.chunks: list[tuple[Stream, bytes]] = []

    def __call__(self, stream: Stream, chunk: bytes) -> None:
        self.chunks.append((stream, chunk))

    def text(self) -> str:
        return b"".join(chunk for _, chunk in self.chunks).decode("utf-8", "replace")


def environment_spec(**changes: Any) -> EnvironmentSpec:
    """A sandbox without a task of its own."""
    return EnvironmentSpec(**{"task_name": "contract", "directory": None, "digest": "contract", "workdir": "/app", **changes})


def trial_spec(number: int, folder: Path) -> TrialSpec:
    """Trial `number` of a job that never existed."""
    trial_id = f"agent/dataset/task-{number}__1"
    return TrialSpec(
        job_id="contract",
        job_name="contract",
        trial_id=trial_id,
        directory=str(folder / trial_id),
        attempt=1,
        agent=AgentSpec(name="agent", plugin="nop"),
        task=TaskSpec(name=f"task-{number}", dataset="dataset", path=str(folder), digest="contract"),
        environment=environment_spec(task_name=f"task-{number}"),
        environment_type="fake",
    )


def trial_result(spec: TrialSpec, *, reward: float = 1.0) -> TrialResult:
    """What came of such a trial."""
    return TrialResult(
        trial_id=spec.trial_id,
        task_name=spec.task.name,
        dataset_name=spec.task.dataset,
        agent_name=spec.agent.name,
        attempt=spec.attempt,
        status="scored",
        reward=reward,
        rewards={"reward": reward},
    )


def agent_context(
    environment: Environment, folder: Path, *, instruction: str, env: dict[str, str], sink: OutputSink
) -> AgentContext:
    """An agent's view of a trial whose folder on the host is `folder`."""
    task = folder / "task"
    task.mkdir(parents=True, exist_ok=True)
    (task / "instruction.md").write_text(instruction, "utf-8")
    variables = {"ROLLOUT_TASK_INSTRUCTION": instruction, "ROLLOUT_TASK_INSTRUCTION_FILE": "/tmp/instruction.md"}
    return AgentContext(
        name="contract",
        instruction=instruction,
        task=Task(id="contract", instruction=instruction, dataset_dir=task),
        task_directory=task,
        environment=environment,
        env={**env, **variables},
        workdir="/app",
        log_dir=folder / "trial",
        sink=sink,
    )


def trial_view(
    environment: Environment, folder: Path, task_directory: Path, *, env: dict[str, str], sink: OutputSink
) -> TrialView:
    """A verifier's view of a trial whose folder on the host is `folder`."""
    trial_dir = folder / "trial"
    (trial_dir / "verifier").mkdir(parents=True, exist_ok=True)
    file = task_directory / "instruction.md"
    instruction = file.read_text("utf-8") if file.is_file() else ""

    async def collect_logs() -> Any:
        return await environment.download("/logs", trial_dir / "logs")

    return TrialView(
        environment=environment,
        task=Task(id="contract", instruction=instruction, dataset_dir=task_directory),
        episode=Episode(id="contract:0", task_id="contract", trajectories=[Trajectory(name="contract")]),
        task_directory=task_directory,
        instruction=instruction,
        metadata={},
        env=env,
        workdir="/app",
        user=None,
        trial_dir=trial_dir,
        log_dir=trial_dir / "verifier",
        sink=sink,
        tests_directory=task_directory / "tests",
        reward_files=("/logs/verifier/reward.txt", "/logs/verifier/reward.json"),
        collect_logs=collect_logs,
    )


def leaks(secret: str, folder: Path) -> list[str]:
    """The files below `folder` that hold `secret`."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [str(path.relative_to(folder)) for path in found if secret.encode() in path.read_bytes()]
