"""Jobs on the fake world: what it is told to do happens, and it can say what was done to it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import write_job, write_task
from rollout import JobOutcome, TrialResult, run_job
from rollout.core.errors import EnvironmentLostError, PluginError, StartError, TeardownError
from rollout.core.job.events import Event, TrialFinished
from rollout.core.plugins import find
from rollout.core.types import Command, EnvironmentSpec, ExecResult, TransferLimits
from rollout.testing import FakeEnvironment, FakeWorld
from rollout.testing.fakes import hanging, raising, reward


async def run(world: FakeWorld, folder: Path, *, tasks: int = 1, **job: Any) -> tuple[JobOutcome, list[TrialResult]]:
    """Run a job of the fake agent on tasks that look at nothing."""
    for number in range(tasks):
        write_task(folder / "tasks" / f"task-{number}")
    results: list[TrialResult] = []

    def on_event(event: Event) -> None:
        if isinstance(event, TrialFinished):
            results.append(event.result)

    settings = {"jobs_dir": str(folder / "jobs"), "environment": {"type": "fake"}, "agents": [{"name": "fake"}], **job}
    with world.installed():
        path = write_job(folder, settings)
        outcome = await run_job(path, on_event=on_event, environ={"ROLLOUT_CACHE_DIR": str(folder / "cache")})
    return outcome, results


async def test_a_trial_gets_the_reward_that_its_tests_write(tmp_path: Path) -> None:
    world = FakeWorld(commands={"test.sh": reward(0.25)})
    outcome, (result,) = await run(world, tmp_path)
    assert (outcome.exit_code, result.status, result.reward) == (0, "scored", 0.25)
    assert (tmp_path / "jobs" / "job" / result.trial_id / "logs" / "verifier" / "reward.txt").read_text() == "0.25\n"


async def test_nothing_is_left_and_no_more_lived_than_the_job_allows(tmp_path: Path) -> None:
    world = FakeWorld()
    await run(world, tmp_path, tasks=6, n_attempts=5, n_concurrent_trials=4)
    assert (world.started, world.live, world.closed) == (30, 0, 1)
    assert 1 <= world.peak <= 4
    assert world.images == {}, "images are removed after their last user"


async def test_what_the_agent_does_is_up_to_the_test(tmp_path: Path) -> None:
    def agent(environment: FakeEnvironment, command: Command) -> ExecResult:
        assert command.env["ROLLOUT_TASK_INSTRUCTION"].startswith("Write 42")
        environment.files["/logs/agent/said.txt"] = b"42"
        return ExecResult(exit_code=3, stdout=b"out", stderr=b"err")

    _, (result,) = await run(FakeWorld(commands={"fake-agent": agent}), tmp_path)
    folder = tmp_path / "jobs" / "job" / result.trial_id
    assert (result.agent_exit_code, result.reward) == (3, 1.0)
    assert (folder / "logs" / "agent" / "said.txt").read_text() == "42"
    assert [(folder / "agent" / f"{name}.txt").read_text() for name in ("stdout", "stderr")] == ["out", "err"]


@pytest.mark.parametrize(
    ("step", "error", "code"),
    [
        ("prepare", RuntimeError("no"), "environment_build_failed"),
        ("start", StartError("no"), "environment_start_failed"),
        ("exec", EnvironmentLostError("gone"), "environment_lost"),
    ],
)
async def test_a_fault_befalls_the_step_it_is_put_on(step: str, error: Exception, code: str, tmp_path: Path) -> None:
    world = FakeWorld(faults={step: raising(error)})
    outcome, (result,) = await run(world, tmp_path)
    assert result.error is not None
    assert (outcome.exit_code, result.status, result.error.type) == (1, "errored", code)
    assert world.live == 0


async def test_a_fault_can_pass(tmp_path: Path) -> None:
    world = FakeWorld(faults={"start": raising(StartError("not yet"), times=2)})
    outcome, (result,) = await run(world, tmp_path, retry={"max_retries": 2, "min_wait_sec": 0})
    assert (outcome.exit_code, result.reward, len(result.tries)) == (0, 1.0, 2)


async def test_a_failed_stop_leaves_the_sandbox_alive(tmp_path: Path) -> None:
    world = FakeWorld(faults={"stop": raising(TeardownError("stuck"))})
    _, (result,) = await run(world, tmp_path)
    assert result.reward == 1.0
    assert "stuck" in result.warnings[0]
    assert world.live == 1


async def test_a_hanging_command_is_cancelled_with_its_job(tmp_path: Path) -> None:
    async def hang(environment: FakeEnvironment, command: Command) -> None:
        await hanging(environment.spec)

    world = FakeWorld(commands={"fake-agent": hang})
    job = asyncio.ensure_future(run(world, tmp_path, tasks=3))
    async with asyncio.timeout(60):
        while not any(command.argv == ("fake-agent",) for command in world.steps("exec")):
            await asyncio.sleep(0.001)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
    assert world.cancelled >= 1
    assert world.live == 0


class TestSandbox:
    @pytest.fixture
    def sandbox(self) -> FakeEnvironment:
        return FakeEnvironment(FakeWorld(), EnvironmentSpec(task_name="t", directory=None, digest="d"))

    async def test_a_folder_goes_in_and_comes_out_again(self, sandbox: FakeEnvironment, tmp_path: Path) -> None:
        (tmp_path / "in" / "deep" / "empty").mkdir(parents=True)
        (tmp_path / "in" / "deep" / "file").write_bytes(b"\0data")
        await sandbox.upload(tmp_path / "in", "/app")
        await sandbox.upload(tmp_path / "in" / "deep" / "file", "/app/copy")
        report = await sandbox.download("/app", tmp_path / "out")
        assert (report.files, report.total_bytes) == (2, 10)
        assert {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*")} == {
            "copy",
            "deep",
            "deep/empty",
            "deep/file",
        }
        await sandbox.download("/app/copy", tmp_path / "single" / "file")
        assert (tmp_path / "single" / "file").read_bytes() == b"\0data"

    async def test_what_is_not_there_is_not_found(self, sandbox: FakeEnvironment, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            await sandbox.download("/nothing", tmp_path / "out")

    async def test_a_file_beyond_the_limit_is_left_out_and_reported(self, sandbox: FakeEnvironment, tmp_path: Path) -> None:
        sandbox.files |= {"/logs/big": b"x" * 11, "/logs/small": b"x"}
        report = await sandbox.download("/logs", tmp_path / "out", TransferLimits(max_file_bytes=10))
        assert (report.files, report.skipped_count) == (1, 1)
        assert not (tmp_path / "out" / "big").exists()

    async def test_a_lost_or_stopped_one_answers_nothing(self, sandbox: FakeEnvironment, tmp_path: Path) -> None:
        sandbox.lost = True
        for ask in (
            sandbox.exec(Command(argv=("true",))),
            sandbox.upload(tmp_path, "/x"),
            sandbox.download("/logs", tmp_path / "out"),
        ):
            with pytest.raises(EnvironmentLostError):
                await ask
        sandbox.lost = False
        await sandbox.stop()
        await sandbox.stop()
        with pytest.raises(EnvironmentLostError):
            await sandbox.exec(Command(argv=("true",)))
        assert sandbox.world.live == 0


def test_the_fakes_are_gone_after_their_block() -> None:
    with FakeWorld().installed("somewhere"):
        assert find("environments", "somewhere").cls.world is not None
    with pytest.raises(PluginError):
        find("environments", "somewhere")
