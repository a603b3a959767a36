"""Budgets: what is used up starts nothing more, ends the agent of a trial, and stays used after a resume or a SIGKILL."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import command, environ, rollout, trial_results, write_job, write_task
from rollout import JobOutcome, TrialResult, Usage, run_job
from rollout.core.job.events import Event, JobFinished, TrialFinished, WarningRaised
from rollout.core.plugins import override
from rollout.core.types import AgentTurn, Command
from rollout.testing import FakeEnvironment, FakeWorld
from rollout.testing.fakes import FakeAgent


class Spender(FakeAgent):
    """Uses a dollar and 100 tokens in each trial, and tells at the end."""

    async def prompt(self, text: str) -> AgentTurn:
        turn = await super().prompt(text)
        usage = Usage(input_tokens=90, output_tokens=10, cost_usd=1.0)
        return AgentTurn(exit_code=turn.exit_code, usage=usage)


class Telling(FakeAgent):
    """Tells half a dollar more ten times, and would go on for ever."""

    async def prompt(self, text: str) -> AgentTurn:
        for count in range(1, 11):
            self._context.spent(Usage(input_tokens=count * 50, cost_usd=count * 0.5))
            await asyncio.sleep(0)
        await asyncio.Event().wait()
        raise AssertionError


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[Event] = []

    async def run(self, world: FakeWorld, agent: Any = Spender, *, tasks: int = 6, **job: Any) -> JobOutcome:
        for number in range(tasks):
            write_task(self.folder / "tasks" / f"task-{number}")
        settings = {
            "jobs_dir": str(self.folder / "jobs"),
            "environment": {"type": "fake"},
            "agents": [{"name": "spender"}],
            "n_concurrent_trials": 1,
            **job,
        }
        self.events = []
        with world.installed(), override("agents", "spender", agent):
            path = write_job(self.folder, settings)
            return await run_job(path, on_event=self.events.append, environ={"ROLLOUT_CACHE_DIR": str(self.folder / "cache")})

    @property
    def results(self) -> list[TrialResult]:
        return [event.result for event in self.events if isinstance(event, TrialFinished)]

    @property
    def warnings(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, WarningRaised)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize(
    ("budget", "said"),
    [({"cost_usd": 3}, "$3 of $3 are spent"), ({"tokens": 250}, "300 of 250 tokens are used")],
)
async def test_a_job_starts_no_more_trials_when_its_budget_is_used_up(bench: Bench, budget: Any, said: str) -> None:
    outcome = await bench.run(FakeWorld(), budget=budget)
    assert outcome.exit_code == 4
    assert (len(bench.results), outcome.result.skipped_trials, outcome.result.completed_trials) == (3, 3, 3)
    assert outcome.result.stopped == f"the job's budget is used up: {said}"
    assert outcome.result.spent == Usage(input_tokens=270, output_tokens=30, cost_usd=3.0)
    assert bench.warnings == [f"the job's budget is used up: {said}; no more trials are started"]
    finished = bench.events[-1]
    assert isinstance(finished, JobFinished) and (finished.stopped, finished.exit_code) == (outcome.result.stopped, 4)


async def test_trials_under_way_end_by_themselves(bench: Bench) -> None:
    outcome = await bench.run(FakeWorld(), budget={"cost_usd": 1}, n_concurrent_trials=4)
    assert outcome.exit_code == 4
    assert all(result.status == "scored" for result in bench.results)
    assert 1 <= len(bench.results) <= 4


async def test_a_larger_budget_goes_on_and_the_same_one_does_not(bench: Bench) -> None:
    await bench.run(FakeWorld(), budget={"cost_usd": 3})
    again = await bench.run(FakeWorld(), budget={"cost_usd": 3})
    assert (again.exit_code, len(bench.results), again.result.skipped_trials) == (4, 0, 3)
    more = await bench.run(FakeWorld(), budget={"cost_usd": 5})
    assert (more.exit_code, len(bench.results), more.result.spent and more.result.spent.cost_usd) == (4, 2, 5.0)
    rest = await bench.run(FakeWorld())
    assert (rest.exit_code, rest.result.stopped, rest.result.total_cost) == (0, None, 6.0)


async def test_a_job_that_is_done_is_done_whatever_was_spent(bench: Bench) -> None:
    outcome = await bench.run(FakeWorld(), budget={"cost_usd": 6})
    assert (outcome.exit_code, outcome.result.stopped) == (0, None)
    again = await bench.run(FakeWorld(), budget={"cost_usd": 1})
    assert (again.exit_code, again.result.stopped) == (0, None)


async def test_tries_that_are_repeated_count(bench: Bench) -> None:
    """The verifier fails, so that the trial errors after the agent has spent."""
    world = FakeWorld(commands={"test.sh": lambda environment, command: 1})
    retry = {"max_retries": 5, "include": ["verifier_reward_missing"], "min_wait_sec": 0}
    outcome = await bench.run(world, tasks=1, budget={"cost_usd": 3}, retry=retry)
    assert outcome.result.spent is not None and outcome.result.spent.cost_usd == 3.0
    assert (outcome.result.total_cost, outcome.result.failed_trials) == (1.0, 1)
    assert outcome.exit_code == 1, "every trial was run; this one errored"


async def test_wall_time_starts_nothing_more(bench: Bench) -> None:
    async def slow(environment: FakeEnvironment, command: Command) -> None:
        await asyncio.sleep(0.4)

    outcome = await bench.run(FakeWorld(commands={"fake-agent": slow}), budget={"wall_sec": 1})
    assert outcome.exit_code == 4
    assert outcome.result.stopped == "the job's budget is used up: its 1 s are over"
    assert 0 < len(bench.results) < 6
    again = await bench.run(FakeWorld())
    assert again.exit_code == 0, "each run has its own time"


# --- of one trial ---


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"cost_usd": 2}, "$2 of $2 are spent"),
        ({"tokens": 120}, "150 of 120 tokens are used"),
    ],
)
async def test_the_agent_of_a_trial_is_ended_when_it_says_that_it_used_too_much(bench: Bench, budget: Any, said: str) -> None:
    outcome = await bench.run(FakeWorld(), Telling, tasks=2, budget={"per_trial": budget})
    assert outcome.exit_code == 0, "its work was verified"
    for result in bench.results:
        assert (result.status, result.reward) == ("scored", 1.0)
        assert result.error is not None
        assert (result.error.type, result.error.message) == ("agent_budget_exceeded", f"the agent's budget is used up: {said}")
    used = bench.results[0].usage
    assert used is not None and used.cost_usd is not None and used.cost_usd < 5, "what it told last is what it used"
    assert outcome.result.spent is not None


async def test_the_wall_time_of_a_trial_is_a_deadline(bench: Bench) -> None:
    outcome = await bench.run(FakeWorld(), Telling, tasks=1, budget={"per_trial": {"wall_sec": 0.2}})
    (result,) = bench.results
    assert result.error is not None and result.error.type == "agent_budget_exceeded"
    assert "still working after the 0.2 s of its budget" in result.error.message
    assert outcome.exit_code == 0


async def test_a_deadline_that_comes_first_is_a_timeout(bench: Bench) -> None:
    agents = [{"name": "spender", "override_timeout_sec": 0.2}]
    await bench.run(FakeWorld(), Telling, tasks=1, agents=agents, budget={"per_trial": {"wall_sec": 30}})
    (result,) = bench.results
    assert result.error is not None and result.error.type == "agent_execution_timeout"


# --- by the command ---

COSTS = """
printf '%s' '{"schema_version": "ATIF-v1.8", "agent": {"name": "a", "version": "1"}, "steps": [{"step_id": 1, "source": "agent",
"message": "", "metrics": {"prompt_tokens": 12345, "completion_tokens": 5, "cost_usd": 1.0}}]}' > /logs/agent/trajectory.json
echo 42 > /app/answer.txt
"""


def waited(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.needs("local")
def test_what_a_killed_job_has_spent_counts_when_it_goes_on(tmp_path: Path) -> None:
    for number in range(5):
        toml = f"[agent]\ntimeout_sec = 60\n[metadata]\nnumber = {number}\n"
        write_task(tmp_path / "tasks" / f"task-{number}", toml=toml, instruction="wait\n" if number == 2 else "go\n")
    wait = f'case "$ROLLOUT_TASK_INSTRUCTION" in wait*) sleep "$WAIT" ;; esac\n{COSTS}'
    agent = {"name": "a", "execute": wait, "env": {"WAIT": "${WAIT_SEC}"}}
    write_job(tmp_path, {"agents": [agent], "n_concurrent_trials": 1, "budget": {"cost_usd": 3}})
    spent = tmp_path / "jobs" / "job" / "spent.jsonl"
    process = subprocess.Popen(
        command("job.json"), cwd=tmp_path, env=environ(tmp_path, WAIT_SEC="50"), stderr=subprocess.DEVNULL, text=True
    )
    waited(lambda: spent.exists() and spent.read_text().count("\n") == 2, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with spent.open("a") as file:
        file.write('{"trial_id": "torn')
    done = rollout(tmp_path, "job.json", WAIT_SEC="0")
    assert done.returncode == 4, done.stderr
    assert "stopped: the job's budget is used up: $3 of $3 are spent; 2 trials not run" in done.stdout
    assert len(trial_results(tmp_path / "jobs" / "job")) == 3
    result = json.loads((tmp_path / "jobs" / "job" / "result.json").read_text())
    assert (result["exit_code"], result["spent"]["cost_usd"], result["total_cost"]) == (4, 3.0, 3.0)
    shown = rollout(tmp_path, "show", "jobs/job")
    head, row = (line.split() for line in shown.stdout.splitlines()[2:4])
    assert head[-4:] == ["tokens", "cost", "mean", "time"]
    assert row[-4:-2] == ["37k", "$3.00"]
    assert shown.stdout.startswith("job: stopped, 3 of 5 trials")
    assert json.loads(rollout(tmp_path, "show", "jobs/job", "--json").stdout)["groups"][0]["tokens"] == 37050


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"cost_usd": 0}, "budget.cost_usd"),
        ({"tokens": 1.5}, "budget.tokens"),
        ({"per_trial": {"wall": 3}}, "known here: cost_usd, tokens, wall_sec"),
    ],
)
def test_a_budget_that_is_none_is_refused(budget: Any, said: str, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    write_job(tmp_path, {"budget": budget})
    done = rollout(tmp_path, "job.json")
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
