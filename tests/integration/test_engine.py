"""The engine on fake sandboxes: what each phase does when things go well, fail, hang or get lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import write_task
from rollout.api import run_job
from rollout.core.config.load import load_job
from rollout.core.errors import BuildError, EnvironmentLostError, HostLostError, StartError, UsageError
from rollout.core.job.events import Event, TrialFinished, TrialRetried
from rollout.core.job.planner import PlanOptions
from rollout.core.job.scheduler import JobOutcome
from rollout.core.types import Command, EnvironmentSpec, ExecResult
from rollout.testing.fakes import FakeEnvironment, FakeWorld, hanging, raising, reward


class Bench:
    """A job folder with fake sandboxes; `run` runs it once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self.environ = {"ROLLOUT_CACHE_DIR": str(folder / "cache")}

    def tasks(self, *names: str, **fields: str) -> None:
        for name in names:
            write_task(self.folder / "tasks" / name, **fields)

    async def run(self, world: FakeWorld, options: PlanOptions = PlanOptions(), **job: Any) -> JobOutcome:  # noqa: B008
        defaults = {
            "name": "bench",
            "jobs_dir": str(self.folder / "jobs"),
            "environment": {"type": "fake"},
            "agents": [{"name": "fake"}],
            "datasets": [{"path": "tasks"}],
        }
        path = self.folder / "job.json"
        path.write_text(json.dumps({**defaults, **job}))
        self.events = []
        with world.installed():
            return await run_job(load_job(path), options, on_event=self.events.append, environ=self.environ)

    @property
    def results(self) -> list[Any]:
        return [event.result for event in self.events if isinstance(event, TrialFinished)]

    def trial(self, name: str = "fake/tasks/one__1") -> Path:
        return self.folder / "jobs" / "bench" / name


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    bench.tasks("one")
    yield bench
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others, "the job left tasks running"


async def test_a_trial_goes_through_its_steps_in_order(bench: Bench) -> None:
    world = FakeWorld()
    outcome = await bench.run(world)
    assert outcome.exit_code == 0
    assert outcome.result.mean_reward == 1.0
    steps = [(step, what.argv[-1] if step == "exec" else what) for step, _, what in world.calls]
    tests = steps.index(("upload", "/tests"))
    agent = steps.index(("exec", "fake-agent"))
    cleared = steps.index(("exec", "/tests"))
    verified = steps.index(("exec", "/tests/test.sh"))
    assert [step for step, _ in steps[:2]] == ["prepare", "start"]
    assert agent < cleared < tests < verified < steps.index(("download", "/logs"))
    assert [step for step, _ in steps[-2:]] == ["stop", "remove"]
    assert world.live == 0
    assert world.closed == 1


async def test_an_agent_that_fails_is_recorded_and_still_verified(bench: Bench) -> None:
    def fail(environment: FakeEnvironment, command: Command) -> ExecResult:
        return ExecResult(exit_code=3, stderr=b"boom\n")

    outcome = await bench.run(FakeWorld(commands={"fake-agent": fail}))
    [result] = bench.results
    assert (result.status, result.reward, result.agent_exit_code) == ("scored", 1.0, 3)
    assert result.error.type == "agent_execution_failed"
    assert outcome.exit_code == 0
    assert (bench.trial() / "agent" / "stderr.txt").read_text() == "boom\n"


async def test_an_agent_timeout_is_recorded_and_still_verified(bench: Bench) -> None:
    async def hang(environment: FakeEnvironment, command: Command) -> None:
        await asyncio.Event().wait()

    bench.tasks("one", toml="[agent]\ntimeout_sec = 0.05\n")
    world = FakeWorld(commands={"fake-agent": hang})
    await bench.run(world)
    [result] = bench.results
    assert (result.status, result.reward, result.error.type) == ("scored", 1.0, "agent_execution_timeout")
    assert world.cancelled == 1


async def test_a_failed_install_is_not_verified_and_its_logs_are_kept(bench: Bench) -> None:
    def fail(environment: FakeEnvironment, command: Command) -> ExecResult:
        return ExecResult(exit_code=1, stdout=b"no such package\n")

    agent = {"name": "inline", "install": "get it", "execute": "run it"}
    world = FakeWorld(commands={"install.sh": fail})
    outcome = await bench.run(world, agents=[agent])
    [result] = bench.results
    assert (result.status, result.reward, result.error.type) == ("errored", None, "agent_install_failed")
    assert "no such package" in result.error.message
    assert outcome.exit_code == 1
    assert "/tests" not in world.steps("upload")
    assert (bench.trial("inline/tasks/one__1") / "setup" / "stdout.txt").read_text() == "no such package\n"


async def test_a_verifier_timeout_collects_the_logs_all_the_same(bench: Bench) -> None:
    async def hang(environment: FakeEnvironment, command: Command) -> None:
        environment.files["/logs/agent/note.txt"] = b"was here"
        await asyncio.Event().wait()

    await bench.run(FakeWorld(commands={"test.sh": hang}), verifier={"override_timeout_sec": 0.05})
    [result] = bench.results
    assert (result.status, result.error.type) == ("errored", "verifier_timeout")
    assert (bench.trial() / "logs" / "agent" / "note.txt").read_text() == "was here"


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"nan", "verifier_reward_invalid"), (b"", "verifier_reward_invalid"), (None, "verifier_reward_missing")],
)
async def test_a_bad_or_missing_reward_is_an_error_and_not_a_zero(bench: Bench, content: bytes | None, code: str) -> None:
    def write(environment: FakeEnvironment, command: Command) -> None:
        if content is not None:
            environment.files["/logs/verifier/reward.txt"] = content

    outcome = await bench.run(FakeWorld(commands={"test.sh": write}))
    [result] = bench.results
    assert (result.status, result.reward, result.error.type) == ("errored", None, code)
    assert outcome.result.mean_reward is None
    assert outcome.result.mean_reward_errors_as_zero == 0.0


async def test_a_reward_that_the_agent_planted_does_not_count(bench: Bench) -> None:
    def plant(environment: FakeEnvironment, command: Command) -> None:
        environment.files["/logs/verifier/reward.txt"] = b"1"

    def clear(environment: FakeEnvironment, command: Command) -> ExecResult:
        return ExecResult(exit_code=1, stderr=b"cannot remove /tests\n")

    world = FakeWorld(commands={"fake-agent": plant, "/tests": clear, "tests": clear, "test.sh": lambda *_: None})
    await bench.run(world)
    [result] = bench.results
    assert (result.status, result.error.type) == ("errored", "verifier_failed")
    assert "cannot remove /tests" in result.error.message


async def test_rewards_may_be_several_numbers(bench: Bench) -> None:
    def write(environment: FakeEnvironment, command: Command) -> None:
        environment.files["/logs/verifier/reward.json"] = b'{"accuracy": 0.5, "seconds": 2}'

    outcome = await bench.run(FakeWorld(commands={"test.sh": write}))
    [result] = bench.results
    assert (result.reward, result.rewards, result.reward_source) == (
        None,
        {"accuracy": 0.5, "seconds": 2.0},
        "/logs/verifier/reward.json",
    )
    assert {report.key for report in outcome.result.metrics} == {"accuracy", "seconds"}


async def test_without_verification_rewards_are_null_and_the_job_is_fine(bench: Bench) -> None:
    world = FakeWorld()
    outcome = await bench.run(world, verifier={"disable": True})
    [result] = bench.results
    assert (result.status, result.reward, result.error) == ("unscored", None, None)
    assert outcome.exit_code == 0
    assert "/tests" not in world.steps("upload")


@pytest.mark.parametrize(
    ("step", "error", "code"),
    [
        ("prepare", BuildError("step 3 failed"), "environment_build_failed"),
        ("prepare", ValueError("odd"), "environment_build_failed"),
        ("start", StartError("no room"), "environment_start_failed"),
        ("start", OSError("odd"), "environment_start_failed"),
        ("upload", EnvironmentLostError("gone"), "environment_lost"),
    ],
)
async def test_a_sandbox_that_fails_is_an_error_of_its_trial_alone(bench: Bench, step: str, error: Exception, code: str) -> None:
    bench.tasks("two")
    world = FakeWorld(faults={step: raising(error, times=1)})
    outcome = await bench.run(world, n_concurrent_trials=1)
    first, second = bench.results
    assert first.error.type == code
    assert str(error) in first.error.message
    assert first.status == "errored"
    if step != "prepare":
        assert second.status == "scored"
    assert outcome.exit_code == 1
    assert world.live == 0


async def test_an_image_is_prepared_once_and_removed_after_its_last_user(bench: Bench) -> None:
    world = FakeWorld()
    await bench.run(world, n_attempts=20, n_concurrent_trials=8)
    assert len(world.steps("prepare")) == 1
    assert len(world.steps("remove")) == 1
    assert world.images == {}
    kept = FakeWorld()
    await bench.run(kept, name="other", environment={"type": "fake", "delete": False})
    assert len(kept.images) == 1


async def test_a_failed_build_is_not_repeated_for_every_trial(bench: Bench) -> None:
    world = FakeWorld(faults={"prepare": raising(BuildError("no such base"))})
    await bench.run(world, n_attempts=10, n_concurrent_trials=2)
    assert len(world.steps("prepare")) == 1
    assert len(bench.results) == 10


async def test_a_retry_keeps_the_record_of_the_failed_try(bench: Bench) -> None:
    world = FakeWorld(faults={"start": raising(StartError("busy"), times=2)})
    outcome = await bench.run(world, retry={"max_retries": 3, "min_wait_sec": 0.01})
    [result] = bench.results
    assert outcome.exit_code == 0
    assert [(record.number, record.error.type) for record in result.tries] == [
        (1, "environment_start_failed"),
        (2, "environment_start_failed"),
    ]
    assert [event.wait_sec for event in bench.events if isinstance(event, TrialRetried)] == [0.01, 0.02]
    assert json.loads((bench.trial() / "tries" / "1" / "result.json").read_text())["error"]["message"] == "busy"
    assert json.loads((bench.trial() / "result.json").read_text())["status"] == "scored"


async def test_a_trial_of_a_lost_machine_is_tried_again_whatever_the_job_says_of_retries(bench: Bench) -> None:
    world = FakeWorld(faults={"start": raising(HostLostError("a is lost"), times=2)})
    outcome = await bench.run(world, retry={"max_retries": 0, "min_wait_sec": 0})
    assert outcome.exit_code == 0
    assert [record.error.type for record in bench.results[0].tries] == ["environment_host_lost"] * 2


async def test_lost_machines_do_not_use_up_the_retries_of_a_trial(bench: Bench) -> None:
    errors = iter([HostLostError("a is lost"), StartError("busy"), HostLostError("b is lost")])

    async def fault(spec: EnvironmentSpec) -> None:
        if (error := next(errors, None)) is not None:
            raise error

    outcome = await bench.run(FakeWorld(faults={"start": fault}), retry={"max_retries": 1, "min_wait_sec": 0})
    assert outcome.exit_code == 0
    assert len(bench.results[0].tries) == 3


async def test_a_trial_that_loses_machine_after_machine_errors_in_the_end(bench: Bench) -> None:
    world = FakeWorld(faults={"start": raising(HostLostError("lost"), times=1000)})
    outcome = await bench.run(world, retry={"min_wait_sec": 0})
    assert outcome.exit_code == 1
    assert len(bench.results[0].tries) == 5
    assert bench.results[0].error.type == "environment_host_lost"


async def test_an_error_that_cannot_change_is_not_retried_unless_the_job_says_so(bench: Bench) -> None:
    def nothing(environment: FakeEnvironment, command: Command) -> None:
        return None

    world = FakeWorld(commands={"test.sh": nothing})
    await bench.run(world, retry={"max_retries": 2, "min_wait_sec": 0})
    assert bench.results[0].tries == ()
    await bench.run(world, name="again", retry={"max_retries": 2, "min_wait_sec": 0, "include": ["verifier_reward_missing"]})
    assert len(bench.results[0].tries) == 2


async def test_the_same_job_again_runs_only_what_errored(bench: Bench) -> None:
    bench.tasks("two", "three")
    first = FakeWorld(faults={"start": raising(StartError("busy"), times=1)})
    assert (await bench.run(first, n_concurrent_trials=1)).exit_code == 1
    second = FakeWorld()
    outcome = await bench.run(second)
    assert outcome.exit_code == 0
    assert second.started == 1
    assert outcome.result.completed_trials == 3
    assert (bench.trial() / "tries" / "1").is_dir() or (bench.trial("fake/tasks/three__1") / "tries" / "1").is_dir()


async def test_a_job_is_extended_by_attempts_agents_and_tasks(bench: Bench) -> None:
    await bench.run(FakeWorld())
    bench.tasks("two")
    world = FakeWorld()
    outcome = await bench.run(world, n_attempts=2, agents=[{"name": "fake"}, {"name": "nop"}], n_concurrent_trials=3)
    assert outcome.result.total_trials == 8
    assert world.started == 7


@pytest.mark.parametrize("part", ["task", "agent", "verifier"])
async def test_what_changed_runs_again_and_the_job_says_so(bench: Bench, part: str) -> None:
    bench.tasks("two")
    await bench.run(FakeWorld())
    changed: dict[str, Any] = {}
    if part == "task":
        (bench.folder / "tasks" / "one" / "tests" / "test.sh").write_text("#!/bin/bash\n# better\n")
    elif part == "agent":
        changed = {"agents": [{"name": "fake", "env": {"MODE": "fast"}}]}
    else:
        changed = {"isolation": "strict"}
    world = FakeWorld()
    await bench.run(world, **changed)
    assert world.started == (1 if part == "task" else 2)
    assert bench.events[0].rerun == {f"{part} changed": world.started}  # type: ignore[attr-defined]


async def test_fresh_starts_over_in_a_new_folder(bench: Bench) -> None:
    await bench.run(FakeWorld())
    world = FakeWorld()
    await bench.run(world, PlanOptions(fresh=True))
    assert world.started == 1
    assert (bench.folder / "jobs" / "bench-2" / "result.json").is_file()
    assert (bench.folder / "jobs" / "bench" / "result.json").is_file()


async def test_a_job_that_is_cancelled_tears_down_and_says_so(bench: Bench) -> None:
    world = FakeWorld(faults={"exec": hanging})
    task = asyncio.ensure_future(bench.run(world, n_attempts=5))
    while not world.live:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.live == 0
    result = json.loads((bench.folder / "jobs" / "bench" / "result.json").read_text())
    assert (result["cancelled"], result["exit_code"], result["skipped_trials"]) == (True, 130, 5)
    assert (bench.folder / "jobs" / "bench" / "trials.jsonl").read_text() == ""
    again = FakeWorld()
    assert (await bench.run(again, n_attempts=5)).exit_code == 0
    assert again.started == 5


async def test_no_more_trials_than_asked_for_are_alive_at_once(bench: Bench) -> None:
    async def slow(environment: FakeEnvironment, command: Command) -> None:
        await asyncio.sleep(0.01)

    world = FakeWorld(commands={"fake-agent": slow})
    await bench.run(world, n_attempts=40, n_concurrent_trials=7)
    assert world.peak == 7


async def test_secrets_reach_the_agent_and_no_file(bench: Bench) -> None:
    secret = "sk-very-secret-value"
    seen: list[str | None] = []

    def leak(environment: FakeEnvironment, command: Command) -> ExecResult:
        seen.append(command.env.get("API_KEY"))
        environment.files["/logs/agent/log.txt"] = f"key {secret}".encode()
        return ExecResult(exit_code=1, stdout=f"key {secret}".encode())

    def check(environment: FakeEnvironment, command: Command) -> None:
        seen.append(command.env.get("API_KEY"))
        environment.files["/logs/verifier/reward.txt"] = b"1"

    bench.environ["MY_KEY"] = secret
    agent = {"name": "fake", "env": {"API_KEY": "${MY_KEY}"}}
    await bench.run(FakeWorld(commands={"fake-agent": leak, "test.sh": check}), agents=[agent])
    assert seen == [secret, None]
    files = [path for path in (bench.folder / "jobs").rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


async def test_an_unset_variable_stops_the_job_before_anything_starts_and_names_all(bench: Bench) -> None:
    agents = [{"name": "fake", "env": {"A": "${ROLLOUT_TEST_UNSET_A}"}}, {"name": "nop", "env": {"B": "${ROLLOUT_TEST_UNSET_B}"}}]
    with pytest.raises(UsageError) as caught:
        await bench.run(FakeWorld(), agents=agents)
    assert "ROLLOUT_TEST_UNSET_A (agents[0].env)" in str(caught.value)
    assert "ROLLOUT_TEST_UNSET_B (agents[1].env)" in str(caught.value)
    assert not (bench.folder / "jobs").exists()


async def test_a_long_instruction_is_given_as_a_file_only(bench: Bench) -> None:
    bench.tasks("one", instruction="x" * 140_000)
    seen: list[Command] = []

    def look(environment: FakeEnvironment, command: Command) -> None:
        seen.append(command)

    await bench.run(FakeWorld(commands={"fake-agent": look}))
    assert "ROLLOUT_TASK_INSTRUCTION" not in seen[0].env
    assert seen[0].env["ROLLOUT_TASK_INSTRUCTION_FILE"] == "/tmp/instruction.md"
    assert any("does not fit" in warning for warning in bench.results[0].warnings)


async def test_agents_and_tasks_can_be_chosen(bench: Bench) -> None:
    bench.tasks("two", "three")
    world = FakeWorld()
    agents = [{"name": "fake"}, {"name": "nop"}]
    outcome = await bench.run(world, PlanOptions(agents=["n*"], tasks=["t*"]), agents=agents)
    assert outcome.result.total_trials == 2
    assert {result.agent_name for result in bench.results} == {"nop"}


async def test_invalid_tasks_are_all_named_and_may_be_left_out(bench: Bench) -> None:
    bench.tasks("bad", "worse")
    (bench.folder / "tasks" / "bad" / "tests" / "test.sh").unlink()
    (bench.folder / "tasks" / "worse" / "instruction.md").unlink()
    with pytest.raises(UsageError) as caught:
        await bench.run(FakeWorld())
    assert "bad" in str(caught.value)
    assert "worse" in str(caught.value)
    outcome = await bench.run(FakeWorld(), PlanOptions(skip_invalid=True))
    assert outcome.result.total_trials == 1


async def test_two_datasets_with_one_name_do_not_share_a_folder(bench: Bench) -> None:
    write_task(bench.folder / "other" / "tasks" / "one")
    outcome = await bench.run(FakeWorld(), datasets=[{"path": "tasks"}, {"path": "other/tasks"}])
    assert outcome.result.total_trials == 2
    assert len({result.dataset_name for result in bench.results}) == 2


async def test_a_dry_run_leaves_nothing(bench: Bench) -> None:
    from rollout.core.job.planner import plan_job

    path = bench.folder / "job.json"
    await bench.run(FakeWorld(), name="real")
    path.write_text(path.read_text().replace('"real"', '"dry"'))
    with FakeWorld().installed():
        plan = await plan_job(load_job(path), PlanOptions(dry_run=True), bench.environ)
    assert plan.total == 1
    assert not (bench.folder / "jobs" / "dry").exists()


async def test_a_numeric_reward_is_kept_as_it_is(bench: Bench) -> None:
    await bench.run(FakeWorld(commands={"test.sh": reward(0.625)}))
    assert bench.results[0].reward == 0.625
