"""Every agent's run ends in trajectory.json: what the agent handed over, or what Rollout knows; none of it costs the trial."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

import harbor_models
from integration.jobs import write_job, write_task
from rollout import AgentLogs, AtifMetrics, TrajectoryBuilder, TrajectoryReport, TrialResult, Usage, decode_atif, run_job
from rollout.core.job.events import Event, TrialFinished
from rollout.core.plugins import override
from rollout.core.types import AgentTurn, Command, ExecResult
from rollout.testing import FakeEnvironment, FakeWorld
from rollout.testing.fakes import FakeAgent


async def run(folder: Path, world: FakeWorld | None = None, **job: Any) -> tuple[TrialResult, Path]:
    """Run one trial on a fake sandbox: its result and its folder."""
    write_task(folder / "tasks" / "one")
    results: list[TrialResult] = []

    def on_event(event: Event) -> None:
        if isinstance(event, TrialFinished):
            results.append(event.result)

    settings = {"jobs_dir": str(folder / "jobs"), "environment": {"type": "fake"}, "agents": [{"name": "fake"}], **job}
    with (world or FakeWorld()).installed():
        environ = {"ROLLOUT_CACHE_DIR": str(folder / "cache"), "DEMO_API_KEY": 'sk-"quoted"-0123456789'}
        await run_job(write_job(folder, settings), on_event=on_event, environ=environ)
    return results[0], folder / "jobs" / "job" / results[0].trial_id


def trajectory(folder: Path) -> Any:
    data = (folder / "trajectory.json").read_bytes()
    decode_atif(data)
    if harbor_models.missing() is None:
        harbor_models.validate(json.loads(data))
    return json.loads(data)


def leaves(name: str, text: str) -> Callable[[FakeEnvironment, Command], ExecResult]:
    """A script that leaves a file in /logs/agent."""

    def react(environment: FakeEnvironment, command: Command) -> ExecResult:
        environment.files[f"/logs/agent/{name}"] = text.encode()
        return ExecResult(exit_code=0)

    return react


TOOK = {"prompt_tokens": 7, "completion_tokens": 2, "cost_usd": 0.25}
OWN = {
    "schema_version": "ATIF-v1.6",
    "agent": {"name": "mine", "version": "3", "model_name": "m"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "go"},
        {
            "step_id": 2,
            "source": "agent",
            "message": "gone",
            "metrics": {"prompt_tokens": 7, "completion_tokens": 2, "cost_usd": 0.25},
        },
    ],
}
SCRIPT = [{"name": "mine", "execute": "run-it"}]


async def test_an_agent_that_tells_nothing_has_its_task_as_the_users_step(tmp_path: Path) -> None:
    result, folder = await run(tmp_path)
    made = trajectory(folder)
    assert [(step["source"], step["message"].strip()) for step in made["steps"]] == [("user", "Write 42 to /app/answer.txt.")]
    assert made["session_id"] == made["trajectory_id"] == result.trial_id
    assert made["extra"]["rollout"]["trust"] == "known"
    assert (result.usage, result.cost, result.warnings) == (None, None, ())


async def test_a_trajectory_that_the_agent_wrote_itself_is_kept_with_its_usage(tmp_path: Path) -> None:
    world = FakeWorld(commands={"execute.sh": leaves("trajectory.json", json.dumps(OWN))})
    result, folder = await run(tmp_path, world, agents=SCRIPT)
    made = trajectory(folder)
    assert [step["message"] for step in made["steps"]] == ["go", "gone"]
    assert made["agent"]["version"] == "3"
    assert {"trust": "reported", "native": "logs/agent/trajectory.json"}.items() <= made["extra"]["rollout"].items()
    assert result.usage == Usage(input_tokens=7, output_tokens=2, cost_usd=0.25)
    assert (result.cost, made["final_metrics"]["total_cost_usd"]) == (0.25, 0.25)
    assert (folder / "logs" / "agent" / "trajectory.json").exists(), "the native log stays"


@pytest.mark.parametrize("text", ["{", '{"steps": []}', "[" * 100_000, "\x00"])
async def test_a_trajectory_that_cannot_be_read_is_a_warning(text: str, tmp_path: Path) -> None:
    world = FakeWorld(commands={"execute.sh": leaves("trajectory.json", text)})
    result, folder = await run(tmp_path, world, agents=SCRIPT)
    assert (result.status, result.reward, result.error) == ("scored", 1.0, None)
    assert len(result.warnings) == 1 and result.warnings[0].startswith("reading the trajectory: ")
    assert trajectory(folder)["extra"]["rollout"]["trust"] == "known"


class Telling(FakeAgent):
    """Hands over what the test says."""

    report: ClassVar[Any] = None

    def trajectory(self, logs: Path) -> Any:
        return type(self).report(logs)


async def told(
    tmp_path: Path, report: Callable[[Path], Any], world: FakeWorld | None = None, **job: Any
) -> tuple[TrialResult, Path]:
    agent = type("Agent", (Telling,), {"report": staticmethod(report)})
    with override("agents", "telling", agent):
        return await run(tmp_path, world, agents=[{"name": "telling", **job}])


def small(message: str, **metrics: Any) -> TrajectoryReport:
    made = TrajectoryBuilder(name="demo")
    made.agent(message, metrics=AtifMetrics(**metrics) if metrics else None)
    return TrajectoryReport(trajectory=made.build(), trust="observed", native="agent/native.jsonl")


def fails(logs: Path) -> Any:
    raise RuntimeError("reader broke")


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (fails, "RuntimeError: reader broke"),
        (lambda logs: {"steps": []}, "returned dict"),
    ],
)
async def test_whatever_a_reader_raises_costs_the_trajectory_and_not_the_trial(
    report: Callable[[Path], Any], said: str, tmp_path: Path
) -> None:
    result, folder = await told(tmp_path, report)
    assert result.status == "scored" and result.error is None
    assert said in result.warnings[0]
    assert trajectory(folder)["steps"][0]["source"] == "user"


async def test_reading_does_not_stop_the_other_trials(tmp_path: Path) -> None:
    """A reader is called in a thread of its own."""
    loop_turns: list[int] = []
    released = threading.Event()

    def slow(logs: Path) -> TrajectoryReport:
        asyncio.run_coroutine_threadsafe(turn(), loop).result(30)
        return small("late")

    async def turn() -> None:
        loop_turns.append(1)
        released.set()

    loop = asyncio.get_running_loop()
    _, folder = await told(tmp_path, slow)
    assert loop_turns == [1] and released.is_set()
    assert trajectory(folder)["steps"][-1]["message"] == "late"


async def test_what_an_agent_did_before_its_deadline_is_kept(tmp_path: Path) -> None:
    async def hang(environment: FakeEnvironment, command: Command) -> None:
        await asyncio.Event().wait()

    world = FakeWorld(commands={"fake-agent": hang})
    result, folder = await told(tmp_path, lambda logs: small("so far", prompt_tokens=11), world, override_timeout_sec=0.2)
    assert result.error is not None and result.error.type == "agent_execution_timeout"
    made = trajectory(folder)
    assert made["steps"][-1]["message"] == "so far"
    assert made["extra"]["rollout"]["error"] == "agent_execution_timeout"
    assert result.usage == Usage(input_tokens=11)


async def test_a_failed_install_leaves_no_trajectory(tmp_path: Path) -> None:
    world = FakeWorld(commands={"install.sh": lambda environment, command: 1})
    result, folder = await run(tmp_path, world, agents=[{"name": "mine", "install": "false", "execute": "true"}])
    assert result.status == "errored"
    assert not (folder / "trajectory.json").exists()


async def test_secrets_are_taken_out_however_they_are_spelled(tmp_path: Path) -> None:
    secret = 'sk-"quoted"-0123456789'

    def report(logs: Path) -> TrajectoryReport:
        made = TrajectoryBuilder(name="demo")
        made.call("c", "bash", {"env": {secret: [f"x={secret}"]}})
        made.result("c", f"the key is {secret}")
        return TrajectoryReport(trajectory=made.build())

    _, folder = await told(tmp_path, report, env={"KEY": "${DEMO_API_KEY}"})
    text = json.dumps(trajectory(folder))
    assert "quoted" not in text
    assert text.count("[redacted:KEY]") == 3


async def test_the_answer_and_usage_of_an_agent_that_gives_them_are_steps_and_totals(tmp_path: Path) -> None:
    class Answering(FakeAgent):
        async def prompt(self, text: str) -> AgentTurn:
            return AgentTurn(output="42", usage=Usage(output_tokens=3, cost_usd=0.5))

    with override("agents", "answering", Answering):
        result, folder = await run(tmp_path, agents=[{"name": "answering"}])
    made = trajectory(folder)
    assert [step["message"] for step in made["steps"]][1:] == ["42"]
    assert made["final_metrics"] == {"total_completion_tokens": 3, "total_cost_usd": 0.5, "total_steps": 2}
    assert result.usage == Usage(output_tokens=3, cost_usd=0.5)


async def test_a_reader_is_a_plugin_that_a_job_names(tmp_path: Path) -> None:
    def read(logs: AgentLogs) -> Any:
        file = logs.file("log.txt")
        assert file is not None
        made = TrajectoryBuilder(name="lines")
        made.agent(file.read_text())
        return made.build()

    world = FakeWorld(commands={"execute.sh": leaves("log.txt", "hello")})
    with override("readers", "lines", read):
        _, folder = await run(tmp_path, world, agents=[{**SCRIPT[0], "trajectory": "lines"}])
    told, said = trajectory(folder)["steps"]
    assert (said["message"], told["source"]) == ("hello", "user"), "what it was told is added"


async def test_a_reader_that_nobody_has_stops_the_job_before_it_starts(tmp_path: Path) -> None:
    from rollout import UsageError

    with pytest.raises(UsageError, match="no reader 'nowhere' is installed"):
        await run(tmp_path, agents=[{**SCRIPT[0], "trajectory": "nowhere"}])
    assert not (tmp_path / "jobs" / "job" / "trials.jsonl").exists()
