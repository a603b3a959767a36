"""Promises of the engine that are easily broken: on fake sandboxes, and on real ones where users and files matter."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import rollout, trial_results, write_job, write_task
from integration.test_engine import Bench
from require import require
from rollout.core.aio import Once
from rollout.core.config.load import load_job
from rollout.core.errors import StartError, StoreError
from rollout.core.job.events import TrialStarted
from rollout.core.job.planner import plan_job
from rollout.core.job.scheduler import run_job as run_plan
from rollout.core.job.single import read_spec, run_spec
from rollout.core.plugins import override
from rollout.core.types import AgentTurn, Command, EnvironmentSpec, ExecResult, Struct
from rollout.testing.fakes import FakeAgent, FakeEnvironment, FakeVerifier, FakeWorld, raising

SECRET = "sk-Zx81LmQ0vT44pNcW9"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    bench.tasks("one")
    yield bench
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others, "the job left tasks running"


def texts(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text("utf-8", "replace") for path in folder.rglob("*") if path.is_file()}


# Agents that misbehave


async def test_an_agent_whose_session_cannot_be_closed_is_still_verified(bench: Bench) -> None:
    class Stubborn(FakeAgent):
        async def close(self) -> None:
            raise OSError("broken pipe")

    with override("agents", "stubborn", Stubborn):
        outcome = await bench.run(FakeWorld(), agents=[{"name": "stubborn"}], isolation="strict")
    [result] = bench.results
    assert (result.status, result.reward, result.error.type) == ("scored", 1.0, "agent_execution_failed")
    assert result.error.phase == "disconnect"
    assert outcome.exit_code == 0


async def test_what_is_printed_while_the_session_closes_is_kept(bench: Bench) -> None:
    class Talkative(FakeAgent):
        async def close(self) -> None:
            self._context.sink("stdout", b"bye\n")

    before = len(os.listdir("/proc/self/fd"))
    bench.environ["API_KEY"] = SECRET
    agent = {"name": "talkative", "env": {"API_KEY": "${API_KEY}"}}
    with override("agents", "talkative", Talkative):
        await bench.run(FakeWorld(), agents=[agent])
    assert (bench.trial("talkative/tasks/one__1") / "agent" / "stdout.txt").read_text() == "bye\n"
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("returned", [None, 0, AgentTurn(exit_code="zero"), AgentTurn(usage=object())])  # type: ignore[arg-type]
async def test_an_agent_that_returns_something_else_than_a_turn_failed(bench: Bench, returned: Any) -> None:
    class Odd(FakeAgent):
        async def prompt(self, text: str) -> AgentTurn:
            return returned  # type: ignore[no-any-return]

    with override("agents", "odd", Odd):
        outcome = await bench.run(FakeWorld(), agents=[{"name": "odd"}])
    [result] = bench.results
    assert (result.status, result.reward, result.error.type) == ("scored", 1.0, "agent_execution_failed")
    assert outcome.exit_code == 0


@pytest.mark.parametrize("returned", [None, 1.0, {"reward": 1}])
async def test_a_verifier_that_returns_something_else_than_a_verdict_failed(bench: Bench, returned: Any) -> None:
    class Odd(FakeVerifier):
        async def verify(self, trial: Any) -> Any:
            return returned

    with override("verifiers", "odd", Odd):
        outcome = await bench.run(FakeWorld(), verifier={"type": "odd"})
    [result] = bench.results
    assert (result.status, result.error.type) == ("errored", "verifier_failed")
    assert outcome.exit_code == 1


async def test_an_agent_that_cannot_be_made_is_a_failed_install(bench: Bench) -> None:
    class Unmade(FakeAgent):
        def __init__(self, options: Any, context: Any) -> None:
            raise KeyError("model")

    with override("agents", "unmade", Unmade):
        await bench.run(FakeWorld(), agents=[{"name": "unmade"}])
    [result] = bench.results
    assert (result.status, result.error.type) == ("errored", "agent_install_failed")


async def test_a_cancellation_that_a_plugin_made_up_is_an_error_of_its_trial_alone(bench: Bench) -> None:
    bench.tasks("two")

    class Cancelling(FakeAgent):
        async def prompt(self, text: str) -> AgentTurn:
            raise asyncio.CancelledError

    with override("agents", "cancelling", Cancelling):
        outcome = await bench.run(FakeWorld(), agents=[{"name": "cancelling"}], n_concurrent_trials=1)
    assert [(result.status, result.error.type) for result in bench.results] == [("scored", "agent_execution_failed")] * 2
    assert not outcome.result.cancelled


# Environments that misbehave


async def test_an_environment_without_the_special_folders_did_not_start(bench: Bench) -> None:
    def refuse(environment: FakeEnvironment, command: Command) -> ExecResult | None:
        return ExecResult(exit_code=1, stderr=b"mkdir: read-only file system\n") if command.stdin else None

    await bench.run(FakeWorld(commands={"sh": refuse}))
    [result] = bench.results
    assert (result.error.type, result.error.retryable) == ("environment_start_failed", True)
    assert "read-only file system" in result.error.message


async def test_the_job_ends_after_the_build_that_it_cancelled(bench: Bench) -> None:
    building, stopped = asyncio.Event(), asyncio.Event()

    async def build(spec: EnvironmentSpec) -> None:
        building.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            stopped.set()

    world = FakeWorld(faults={"prepare": build})
    job = asyncio.ensure_future(bench.run(world))
    await building.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert stopped.is_set()


async def test_a_failed_flight_that_is_forgotten_twice_does_not_take_the_next_one_with_it() -> None:
    once: Once[int] = Once()
    running = peak = 0

    async def fail() -> int:
        await asyncio.sleep(0)
        raise OSError

    async def make() -> int:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.01)
        running -= 1
        return 1

    async def call(turns: int) -> int:
        try:
            return await once("k", fail)
        except OSError:
            for _ in range(turns):
                await asyncio.sleep(0)
            once.forget("k")
        return await once("k", make)

    assert await asyncio.gather(*(call(turns) for turns in range(5))) == [1] * 5
    assert peak == 1


# Records


async def test_a_trial_that_was_done_when_the_job_was_interrupted_is_kept(bench: Bench) -> None:
    stopping = asyncio.Event()

    async def stop(spec: EnvironmentSpec) -> None:
        stopping.set()
        await asyncio.sleep(0.05)

    bench.tasks("two")
    job = asyncio.ensure_future(bench.run(FakeWorld(faults={"stop": stop}), n_concurrent_trials=1))
    await stopping.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert [(result.trial_id, result.reward) for result in bench.results] == [("fake/tasks/one__1", 1.0)]
    outcome = await bench.run(FakeWorld())
    assert outcome.exit_code == 0
    assert [event.trial_id for event in bench.events if isinstance(event, TrialStarted)] == ["fake/tasks/two__1"]


async def test_tries_of_an_earlier_run_are_in_the_record(bench: Bench) -> None:
    world = FakeWorld(faults={"start": raising(StartError("busy"), times=2)})
    await bench.run(world, retry={"max_retries": 1, "min_wait_sec": 0})
    await bench.run(world)
    [result] = bench.results
    assert [(record.number, record.error.type) for record in result.tries] == [(n, "environment_start_failed") for n in (1, 2)]
    assert sorted(path.name for path in (bench.trial() / "tries").iterdir()) == ["1", "2"]
    assert len(json.loads((bench.trial() / "result.json").read_text())["tries"]) == 2


async def test_the_lock_keeps_the_images_of_trials_that_are_kept(bench: Bench) -> None:
    await bench.run(FakeWorld())
    lock = bench.folder / "jobs" / "bench" / "lock.json"
    images = json.loads(lock.read_text())["images"]
    assert len(images) == 1
    await bench.run(FakeWorld())
    assert json.loads(lock.read_text())["images"] == images


async def test_metadata_of_a_hook_that_is_no_json_is_left_out_with_a_warning(bench: Bench) -> None:
    from rollout.core.hook_marker import hookimpl

    class Hooks:
        @hookimpl
        def rollout_add_result_metadata(self, trial: Any) -> dict[str, Any]:
            return {"object": object()}

    with FakeWorld().installed():
        (bench.folder / "job.json").write_text(
            json.dumps(
                {
                    "jobs_dir": str(bench.folder / "jobs"),
                    "environment": {"type": "fake"},
                    "agents": [{"name": "fake"}],
                    "datasets": [{"path": "tasks"}],
                }
            )
        )
        plan = await plan_job(load_job(bench.folder / "job.json"), environ=bench.environ)
        plan.hooks.register(Hooks, "odd")
        outcome = await run_plan(plan, bench.events.append)
    assert outcome.exit_code == 0
    [result] = bench.results
    assert result.extra == {}
    assert any("metadata" in warning for warning in result.warnings)


async def test_a_record_that_cannot_be_written_stops_the_job_and_leaves_no_descriptor(bench: Bench) -> None:
    def block(environment: FakeEnvironment, command: Command) -> ExecResult:
        (bench.trial() / "agent").write_text("in the way")
        return ExecResult(exit_code=0, stdout=b"hello\n")

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StoreError):
        await bench.run(FakeWorld(commands={"fake-agent": block}))
    assert len(os.listdir("/proc/self/fd")) == before


async def test_secrets_in_options_and_in_an_agents_own_files_stay_off_the_disk(bench: Bench) -> None:
    class Options(Struct, frozen=True, kw_only=True):
        api_key: str

    class Writing(FakeAgent):
        options_type = Options

        async def prompt(self, text: str) -> AgentTurn:
            own = self._context.log_dir / "agent"
            own.mkdir()
            (own / "trajectory.json").write_text(json.dumps({"key": self._context.env["API_KEY"]}))
            return AgentTurn()

    bench.environ["API_KEY"] = SECRET
    agent = {"name": "writing", "options": {"api_key": "literal-secret-91"}, "env": {"API_KEY": "${API_KEY}"}}
    with override("agents", "writing", Writing):
        await bench.run(FakeWorld(), agents=[agent])
    written = texts(bench.folder / "jobs")
    assert not [path for path, text in written.items() if SECRET in text or "literal-secret-91" in text]
    assert "[redacted:API_KEY]" in (bench.trial("writing/tasks/one__1") / "agent" / "trajectory.json").read_text()


# What a job says reaches the sandbox


async def test_overrides_reach_the_sandbox(bench: Bench) -> None:
    bench.tasks("one", toml='[environment]\ncpus = 4\nmemory = "8G"\nstorage = "1Gi"\n[verifier]\ntimeout_sec = 900.0\n')
    world = FakeWorld()
    await bench.run(
        world,
        environment={"type": "fake", "force_build": True, "override_cpus": 0.5, "override_memory": "512Mi"},
        verifier={"max_timeout_sec": 60},
        timeout_multiplier=2,
        agents=[{"name": "fake", "override_timeout_sec": 5}],
    )
    spec = json.loads((bench.trial() / "config.json").read_text())
    assert spec["environment"]["resources"] == {"cpus": 0.5, "memory_bytes": 2**29, "storage_bytes": 2**30, "gpus": None}
    assert (spec["timeouts"]["verifier_sec"], spec["timeouts"]["agent_sec"]) == (120.0, 10.0)
    assert world.steps("prepare") == [True]


@pytest.mark.parametrize(("said", "cpus"), [("spec", 1.0), ("none", None)])
async def test_a_task_without_limits_gets_the_defaults_unless_the_job_wants_none(
    bench: Bench, said: str, cpus: float | None
) -> None:
    await bench.run(FakeWorld(), environment={"type": "fake", "default_limits": said})
    spec = json.loads((bench.trial() / "config.json").read_text())
    assert spec["environment"]["resources"]["cpus"] == cpus


async def test_an_rllm_task_reads_its_own_reward_first_and_disagreement_is_a_warning(bench: Bench) -> None:
    def write(environment: FakeEnvironment, command: Command) -> None:
        environment.files["/tmp/rllm/reward.json"] = b'{"reward": 0.25, "is_correct": false}'
        environment.files["/logs/verifier/reward.txt"] = b"1"

    bench.tasks("one", toml="[rllm]\n")
    await bench.run(FakeWorld(commands={"test.sh": write}))
    [result] = bench.results
    assert (result.reward, result.reward_source) == (0.25, "/tmp/rllm/reward.json")
    assert any("/tmp/rllm/reward.json and /logs/verifier/reward.txt disagree" in warning for warning in result.warnings)


async def test_the_verifier_sees_the_agents_variables_only_if_the_job_says_so(bench: Bench) -> None:
    seen: list[dict[str, str]] = []

    def look(environment: FakeEnvironment, command: Command) -> None:
        seen.append({**environment.spec.env, **command.env})
        environment.files["/logs/verifier/reward.txt"] = b"1"

    agents = [{"name": "fake", "env": {"MODEL": "small"}}]
    await bench.run(FakeWorld(commands={"test.sh": look}), agents=agents)
    await bench.run(FakeWorld(commands={"test.sh": look}), agents=agents, verifier={"agent_env": True}, name="told")
    assert ["MODEL" in env for env in seen] == [False, True]
    assert all("ROLLOUT_TASK_INSTRUCTION" in env for env in seen)


async def test_a_trial_on_another_machine_may_not_show_its_jobs_other_trials(bench: Bench) -> None:
    await bench.run(FakeWorld())
    world = FakeWorld()
    private: list[Path] = []

    class Watched(world.backend):  # type: ignore[misc,name-defined]
        def __init__(self, options: Any, context: Any) -> None:
            super().__init__(options, context)
            private.extend(context.private_paths)

    with world.installed(), override("environments", "fake", Watched):
        result = await run_spec(read_spec(bench.trial() / "config.json"), bench.environ)
    assert result.status == "scored"
    assert [record.number for record in result.tries] == [1]
    assert bench.folder / "jobs" in private


# Users and folders, in real sandboxes


def local_job(tmp_path: Path, **job: Any) -> dict[str, Any]:
    done = rollout(tmp_path, write_job(tmp_path, job), "--display", "none")
    assert done.returncode == 0, done.stderr + json.dumps(trial_results(tmp_path / "jobs" / "job"), indent=1)
    return next(iter(trial_results(tmp_path / "jobs" / "job").values()))


def test_an_agent_of_a_user_of_its_own_cannot_reach_tests_and_rewards(tmp_path: Path) -> None:
    require("local")
    spy = r"""#!/bin/bash
mkdir -p /tmp/rllm
setsid bash -c '
    while true; do
        cat /tests/* >> /tmp/seen 2>/dev/null
        echo 7 > /logs/verifier/reward.txt
        echo "{\"reward\": 7}" > /tmp/rllm/reward.json
        sleep 0.01
    done' > /dev/null 2>&1 &
"""
    tests = """#!/bin/bash
sleep 0.3
[ -s /tmp/seen ] && seen=0 || seen=1
echo "{\\"reward\\": $seen}" > /tmp/rllm/reward.json
stat -c '%U %a %n' /tests /logs/verifier /tmp/rllm
"""
    toml = '[agent]\nuser = "nobody"\n[rllm]\n'
    write_task(tmp_path / "tasks" / "one", toml=toml, tests=tests)
    result = local_job(tmp_path, agents=[{"name": "spy", "execute": spy}])
    assert (result["reward"], result["warnings"]) == (1.0, [])
    said = (tmp_path / "jobs/job/spy/tasks/one__1/verifier/stdout.txt").read_text()
    assert said.splitlines() == ["root 700 /tests", "root 700 /logs/verifier", "root 700 /tmp/rllm"]


def test_a_verifier_of_a_user_of_its_own_can_write_its_reward(tmp_path: Path) -> None:
    require("local")
    toml = '[agent]\nuser = "nobody"\n[verifier]\nuser = "daemon"\n'
    write_task(tmp_path / "tasks" / "one", toml=toml, tests="id -un; ls /tests; echo 1 > /logs/verifier/reward.txt\n")
    result = local_job(tmp_path, agents=[{"name": "nop"}])
    assert (result["reward"], result["error"]) == (1.0, None)


def test_the_oracle_of_an_ordinary_user_finds_its_solution_under_both_names(tmp_path: Path) -> None:
    require("local")
    solution = "#!/bin/bash\nset -e\nid -un > /tmp/answer\ncat /solution/part.txt /oracle/part.txt >> /tmp/answer\n"
    tests = "[ \"$(tr '\\n' ' ' < /tmp/answer)\" = 'nobody a a ' ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    task = write_task(tmp_path / "tasks" / "one", toml='[agent]\nuser = "nobody"\n', solution=solution, tests=tests)
    (task / "solution" / "part.txt").write_text("a\n")
    result = local_job(tmp_path)
    assert (result["reward"], result["error"]) == (1.0, None)


def test_tests_and_oracle_of_an_image_are_not_there_while_the_agent_runs(tmp_path: Path) -> None:
    require("local")
    task = write_task(tmp_path / "tasks" / "one", tests="cp /tmp/reward /logs/verifier/reward.txt\n")
    steps = "FROM debian:trixie-slim\nRUN mkdir -p /tests /oracle && touch /tests/answer /oracle/answer\n"
    (task / "environment" / "Dockerfile").write_text(steps)
    look = "#!/bin/bash\n[ -e /tests ] || [ -e /oracle ] && echo 0 > /tmp/reward || echo 1 > /tmp/reward\n"
    assert local_job(tmp_path, agents=[{"name": "look", "execute": look}])["reward"] == 1.0
