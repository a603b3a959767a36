"""`rollout tasks check --oracle --nop`: every task's solution gets the full reward, and doing nothing does not."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import pytest

from integration.jobs import WRITE_ONE, command, environ, rollout, write_task

pytestmark = pytest.mark.needs("local")

LOCAL = ("--environment", "local")


def job_of(folder: Path) -> Path:
    (job,) = (folder / "jobs").iterdir()
    return job


def test_a_sound_data_set_is_proved_and_not_run_twice(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_task(tmp_path / "tasks" / name)
    first = rollout(tmp_path, "tasks", "check", "tasks", "--oracle", "--nop", *LOCAL)
    assert first.returncode == 0, first.stdout + first.stderr
    assert first.stdout.splitlines()[-1].startswith("2 tasks, 0 errors")
    lines = (job_of(tmp_path) / "trials.jsonl").read_text()
    assert lines.count("\n") == 4
    assert rollout(tmp_path, "tasks", "check", "tasks", "--oracle", "--nop", *LOCAL).returncode == 0
    assert (job_of(tmp_path) / "trials.jsonl").read_text() == lines


def test_each_faulty_task_has_a_line_that_says_what_is_wrong(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/sound")
    write_task(tmp_path / "tasks/gives-away", tests=WRITE_ONE)
    write_task(tmp_path / "tasks/unsolved", solution="#!/bin/bash\necho 41 > /app/answer.txt\n")
    write_task(tmp_path / "tasks/mute", tests="#!/bin/bash\n# reward\nexit 3\n")
    done = rollout(tmp_path, "tasks", "check", "tasks", "--oracle", "--nop", *LOCAL, "--json")
    assert done.returncode == 1, done.stderr
    faults = [finding for finding in json.loads(done.stdout)["findings"] if finding["severity"] == "error"]
    assert [(fault["file"], fault["code"]) for fault in faults] == [
        ("tasks/gives-away", "nop"),
        ("tasks/mute", "oracle"),
        ("tasks/mute", "nop"),
        ("tasks/unsolved", "oracle"),
    ]
    assert faults[0]["message"].startswith("doing nothing gets the full reward")
    assert "wrote neither /logs/verifier/reward.txt" in faults[1]["message"]
    assert faults[3]["message"].startswith("its solution gets 0, not the full reward")


def test_a_task_that_was_put_right_is_run_again_alone(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/a")
    write_task(tmp_path / "tasks/b", solution="#!/bin/bash\nexit 1\n")
    assert rollout(tmp_path, "tasks", "check", "tasks", "--oracle", *LOCAL).returncode == 1
    write_task(tmp_path / "tasks/b")
    assert rollout(tmp_path, "tasks", "check", "tasks", "--oracle", *LOCAL).returncode == 0
    names = [json.loads(line)["task_name"] for line in (job_of(tmp_path) / "trials.jsonl").read_text().splitlines()]
    assert sorted(names) == ["a", "b", "b"]


def test_tasks_that_cannot_be_used_are_listed_and_the_others_proved(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/a", tests=WRITE_ONE)
    (write_task(tmp_path / "tasks/b") / "instruction.md").unlink()
    done = rollout(tmp_path, "tasks", "check", "tasks", "--nop", *LOCAL)
    assert done.returncode == 1
    assert "tasks/b/instruction.md: error" in done.stdout
    assert "tasks/a: error: doing nothing gets the full reward" in done.stdout


def test_without_a_usable_task_nothing_is_run(tmp_path: Path) -> None:
    (write_task(tmp_path / "tasks/b") / "instruction.md").unlink()
    done = rollout(tmp_path, "tasks", "check", "tasks", "--nop", *LOCAL)
    assert done.returncode == 1
    assert not (tmp_path / "jobs").exists()


def test_an_environment_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/a")
    done = rollout(tmp_path, "tasks", "check", "tasks", "--oracle", "--environment", "nowhere")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "no environment 'nowhere'" in done.stderr


async def test_a_killed_check_goes_on_where_it_stopped(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_task(tmp_path / "tasks" / name)
    gate = tmp_path / "tasks/b/solution/solve.sh"
    gate.write_text("#!/bin/bash\nsleep 1000\n")
    arguments = ("tasks", "check", "tasks", "--oracle", *LOCAL, "-n", "1")
    process = subprocess.Popen(
        command(*arguments), cwd=tmp_path, env=environ(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    async with asyncio.timeout(120):
        while not list(tmp_path.glob("jobs/*/trials.jsonl")) or not (job_of(tmp_path) / "trials.jsonl").read_text():
            await asyncio.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    write_task(tmp_path / "tasks/b")
    done = rollout(tmp_path, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [json.loads(line)["task_name"] for line in (job_of(tmp_path) / "trials.jsonl").read_text().splitlines()]
    assert names == ["a", "b"]


def test_a_task_without_a_solution_is_at_fault_when_solutions_are_to_prove_it(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/a")
    write_task(tmp_path / "tasks/b")
    (tmp_path / "tasks/b/solution/solve.sh").unlink()
    done = rollout(tmp_path, "tasks", "check", "tasks", "--oracle", *LOCAL)
    assert done.returncode == 1
    assert "tasks/b: error: no solution/solve.sh" in done.stdout
    assert (job_of(tmp_path) / "trials.jsonl").read_text().count("\n") == 1
