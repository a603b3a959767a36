"""Runner, run_dataset and BenchmarkLoader: data sets and flows from Python, over the same engine as job files."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from rollout import (
    BenchmarkLoader,
    Episode,
    EvalOutput,
    FlowConfig,
    Runner,
    Step,
    Task,
    TaskError,
    TaskNotFoundError,
    TerminationReason,
    Trajectory,
    UsageError,
    run_dataset,
)
from unit.tasks.datasets import folder_task, rows_dataset, write_files

pytestmark = pytest.mark.asyncio


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "ROLLOUT_CACHE_DIR": str(tmp_path / "cache")}


class Adds:
    """A flow as most are: an object with `run`."""

    max_concurrent = 2

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running = self.most = 0
        self.configs: list[FlowConfig] = []

    def run(self, task: Task, config: FlowConfig) -> Episode:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.configs.append(config)
        answer = str(task.metadata["a"] + task.metadata["b"])
        with self.lock:
            self.running -= 1
        return Episode(trajectories=[Trajectory(name="solver", steps=[Step(output=answer)], output=answer)])


def sums(root: Path, count: int = 3, toml: str = '[dataset]\nname = "sums"\n') -> Path:
    rows = [{"id": f"s{number}", "question": "?", "a": number, "b": 1, "answer": number + 1} for number in range(count)]
    return rows_dataset(root / "sums", rows, toml)


async def test_a_runner_runs_a_row_and_writes_rewards_on_its_trajectories(tmp_path: Path, environ: dict[str, str]) -> None:
    task = BenchmarkLoader.load(sums(tmp_path)).tasks[1]
    flow = Adds()
    config = FlowConfig(base_url="http://model", model="m", sampling_params={"temperature": 0})
    episode = await Runner(flow, environ=environ).run(task, config)
    assert (episode.id, episode.task_id, episode.is_correct, episode.answer) == ("s1:0", "s1", True, "2")
    assert [(trajectory.name, trajectory.reward) for trajectory in episode.trajectories] == [("solver", 1.0)]
    assert episode.termination_reason is None
    assert (flow.configs[0].base_url, flow.configs[0].model, flow.configs[0].session_uid) == ("http://model", "m", "s1:0")
    assert {"time/agentflow_s", "time/evaluator_s", "time/rollout_s"} <= episode.metrics.keys()


@pytest.mark.parametrize(
    ("evaluator", "correct", "signals"),
    [
        (lambda task, episode: EvalOutput(0.25, True), True, {}),
        (lambda metadata, trajectory: (float(trajectory["output"] == "1"), True), True, {}),
        (lambda task, episode: {"reward": 0.5, "signals": {"speed": 2}}, False, {"speed": 2.0}),
    ],
)
async def test_an_evaluator_from_python_overrides_the_data_sets(
    tmp_path: Path, environ: dict[str, str], evaluator: Any, correct: bool, signals: dict[str, float]
) -> None:
    task = Task(id="own", instruction="add", metadata={"a": 0, "b": 1})
    episode = await Runner(Adds(), evaluator_override=evaluator, environ=environ).run(task)
    assert episode.is_correct is correct
    assert episode.trajectories[0].signals == signals


async def test_rewards_that_a_flow_set_itself_are_kept(environ: dict[str, str]) -> None:
    async def flow(task: Task, config: FlowConfig) -> Episode:
        return Episode(trajectories=[Trajectory(name="a", reward=0.1), Trajectory(name="b", output="x")])

    async def evaluate(task: Task, episode: Episode) -> bool:
        return episode.answer == "x"

    episode = await Runner(flow, evaluator_override=evaluate, environ=environ).run(Task("t", "x"))
    assert [trajectory.reward for trajectory in episode.trajectories] == [0.1, 1.0]


async def test_what_goes_wrong_is_in_the_episode_and_is_no_reward(environ: dict[str, str]) -> None:
    def broken(task: Task, episode: Episode) -> float:
        raise RuntimeError("no judge")

    episode = await Runner(lambda task, config: "x", evaluator_override=broken, environ=environ).run(Task("t", "x"))
    assert episode.termination_reason is TerminationReason.ERROR
    assert episode.trajectories[0].reward is None
    assert "no judge" in episode.metadata["error"]["message"]


@pytest.mark.parametrize("value", [None, float("nan"), "x", [1], (1, 2, 3), {}])
async def test_what_is_no_verdict_is_an_error(environ: dict[str, str], value: Any) -> None:
    episode = await Runner(lambda task, config: "x", evaluator_override=lambda task: value, environ=environ).run(Task("t", "x"))
    assert episode.metadata["error"]["type"] == "verifier_reward_invalid"


async def test_a_task_without_a_verifier_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="no verifier: give an evaluator"):
        await Runner(Adds(), environ=environ).run(Task("t", "x", dataset_dir=tmp_path))


async def test_a_whole_data_set_with_attempts_and_its_summary(tmp_path: Path, environ: dict[str, str]) -> None:
    tasks = BenchmarkLoader.load(sums(tmp_path, 4)).tasks
    seen: list[str] = []
    flow = Adds()

    def evaluate(task: Task, episode: Episode) -> float:
        if task.id == "s3":
            raise ValueError("broken")
        return float(task.id != "s0" or episode.attempt == 2)

    result, episodes = await run_dataset(
        tasks, flow, model="m", attempts=2, evaluator=evaluate, on_episode_complete=lambda e: seen.append(e.id), environ=environ
    )
    assert [episode.id for episode in episodes] == [f"s{task}:{attempt}" for task in range(4) for attempt in range(2)]
    assert sorted(seen) == [episode.id for episode in episodes]
    assert (result.total, result.correct, result.errors, result.score) == (8, 5, 2, 5 / 8)
    assert result.pass_at == {1: pytest.approx((0.5 + 1 + 1 + 0) / 4), 2: pytest.approx(3 / 4)}
    assert [(item.idx, item.attempt, item.reward) for item in result.items[:2]] == [(0, 1, 0.0), (0, 2, 1.0)]
    assert flow.most <= flow.max_concurrent


async def test_asynchronous_callbacks_are_awaited(tmp_path: Path, environ: dict[str, str]) -> None:
    done: list[str] = []

    async def callback(episode: Episode) -> None:
        await asyncio.sleep(0)
        done.append(episode.task_id)

    await run_dataset(BenchmarkLoader.load(sums(tmp_path)).tasks, Adds(), on_episode_complete=callback, environ=environ)
    assert sorted(done) == ["s0", "s1", "s2"]


async def test_the_same_call_resumes_what_it_recorded(tmp_path: Path, environ: dict[str, str]) -> None:
    tasks = BenchmarkLoader.load(sums(tmp_path)).tasks
    flow = Adds()
    settings: dict[str, Any] = {"dataset_name": "sums", "jobs_dir": tmp_path / "jobs", "environ": environ}
    first, _ = await run_dataset(tasks, flow, **settings)
    again, episodes = await run_dataset(tasks, flow, **settings)
    assert len(flow.configs) == 3
    assert (again.correct, len(episodes)) == (first.correct, 3)
    assert (tmp_path / "jobs/sums/trials.jsonl").is_file()


async def test_two_tasks_of_one_id_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="another task has this id"):
        await run_dataset([Task("a", "x"), Task("a", "y")], Adds(), evaluator=lambda task: 1, environ=environ)


@pytest.mark.needs("local")
async def test_a_flow_with_env_gets_the_tasks_environment_and_a_script_verifies(tmp_path: Path, environ: dict[str, str]) -> None:
    root = write_files(tmp_path / "bench", {"dataset.toml": '[dataset]\nname = "b"\ndefault_sandbox = "local"\n'})
    files = {"tests/test.sh": "cp /app/x /logs/verifier/reward.txt\n", "environment/Dockerfile": "FROM x\nWORKDIR /app\n"}
    folder_task(root, "one", '[task]\nname = "org/one"\n', files)
    loaded = BenchmarkLoader.load(root)
    task = loaded.tasks[0]
    assert (task.id, task.task_dir, task.metadata["workdir"]) == ("org/one", root / "one", "/app")

    def flow(task: Task, config: FlowConfig, env: Any) -> str:
        env.exec("echo 0.5 > /app/x")
        return str(env.exec("cat /app/x").strip())

    async def also(task: Task, config: FlowConfig, *, env: Any) -> str:
        from rollout import Command

        await env.exec(Command(argv=("sh", "-c", "echo 1 > /app/x")))
        return "done"

    runner = Runner(flow, sandbox_backend=loaded.sandbox_backend, environ=environ)
    episode = await runner.run(task)
    assert (episode.answer, episode.trajectories[0].reward, episode.is_correct) == ("0.5", 0.5, False)
    assert (await Runner(also, sandbox_backend="local", environ=environ).run(task)).is_correct


async def test_what_a_folder_is_is_found_out(tmp_path: Path) -> None:
    toml = '[dataset]\nname = "sums"\ncategory = "math"\ndescription = "d"\ndefault_agent = "react"\ndefault_sandbox = "docker"\n'
    rows = BenchmarkLoader.load(sums(tmp_path, 3, toml))
    assert (rows.name, rows.split, rows.category, rows.description) == ("sums", "test", "math", "d")
    assert (rows.harness_name, rows.sandbox_backend, len(rows.tasks)) == ("react", "docker", 3)
    assert [task.id for task in rows.tasks] == [task.id for task in rows.tasks[:]] == ["s0", "s1", "s2"]
    given = BenchmarkLoader.load(tmp_path / "sums", sandbox_backend="local", harness_name="mine")
    assert (given.harness_name, given.sandbox_backend) == ("mine", "local")

    tests = {"tests/test.sh": "true\n"}
    folder_task(tmp_path / "plain", "b", files=tests)
    folder_task(tmp_path / "plain/group", "a", files=tests)
    assert [task.id for task in BenchmarkLoader.load(tmp_path / "plain").tasks] == ["b", "a"]
    (single,) = BenchmarkLoader.load(tmp_path / "plain/b").tasks
    assert (single.sub_dir, single.task_dir) == (None, tmp_path / "plain/b")
    write_files(tmp_path / "plain", {"dataset.toml": 'tasks = ["group/a", "b"]\n'})
    assert [(task.id, task.sub_dir) for task in BenchmarkLoader.load(tmp_path / "plain").tasks] == [
        ("a", Path("group/a")),
        ("b", Path("b")),
    ]
    assert BenchmarkLoader.is_local_benchmark(tmp_path / "plain")
    assert not BenchmarkLoader.is_local_benchmark(tmp_path)


async def test_a_data_set_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    with pytest.raises(TaskNotFoundError, match="no such folder"):
        BenchmarkLoader.load(tmp_path / "none")
    rows_dataset(tmp_path / "rows", ["x"])
    with pytest.raises(TaskError, match=r"test\.jsonl:1: is not JSON"):
        BenchmarkLoader.load(tmp_path / "rows")
