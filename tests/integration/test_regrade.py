"""`rollout regrade`: old trials verified again from what was kept, by today's tests or another verifier."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import command, environ, rollout, write_job, write_task

pytestmark = pytest.mark.needs("local")

SAYS = {"name": "says", "execute": "echo 41"}
STRICT = "def evaluate(task, episode, trajectory): return 0.25\n"


def verdicts(job: Path) -> dict[str, dict[str, Any]]:
    """The last line of each trial."""
    return {line["trial_id"]: line for line in map(json.loads, (job / "trials.jsonl").read_text().splitlines())}


def run(folder: Path, verifier: dict[str, Any], tasks: tuple[str, ...] = ("a", "b"), **more: Any) -> Path:
    for name in tasks:
        (write_task(folder / "tasks" / name) / "tests/evaluate.py").write_text("def evaluate(task): return 1\n")
    done = rollout(folder, write_job(folder, {"verifier": verifier, "agents": [SAYS], **more}), "--name", "j", "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "jobs/j"


PYTHON = {"type": "python", "options": {"module": "tests.evaluate"}}


def test_todays_tests_give_new_verdicts_and_the_old_ones_are_kept(tmp_path: Path) -> None:
    job = run(tmp_path, PYTHON)
    (tmp_path / "tasks/a/tests/evaluate.py").write_text(STRICT)
    done = rollout(tmp_path, "regrade", job)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "says/tasks/a__1: 1 -> 0.25" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 regraded (1 changed)"
    trial = verdicts(job)["says/tasks/a__1"]
    assert (trial["reward"], trial["status"]) == (0.25, "scored")
    assert [(earlier["reward"], earlier["status"]) for earlier in trial["earlier_verdicts"]] == [(1.0, "scored")]
    assert trial["timestamps"]["verifier_ended_at"] > trial["timestamps"]["ended_at"]
    assert json.loads((job / "says/tasks/a__1/result.json").read_text()) == trial
    assert json.loads((job / "says/tasks/a__1/regrades/1/verdict.json").read_text())["rewards"] == {"reward": 0.25}
    assert json.loads((job / "result.json").read_text())["mean_reward"] == 0.625
    assert "0.625" in rollout(tmp_path, "show", job).stdout


def test_the_same_verifier_is_not_asked_twice(tmp_path: Path) -> None:
    job = run(tmp_path, PYTHON, tasks=("a",))
    lines = (job / "trials.jsonl").read_text().count("\n")
    assert rollout(tmp_path, "regrade", job).returncode == 0
    second = rollout(tmp_path, "regrade", job)
    assert second.stdout == "0 regraded (0 changed), 1 as they were\n"
    assert (job / "trials.jsonl").read_text().count("\n") == lines + 1
    assert "1 regraded" in rollout(tmp_path, "regrade", job, "--again").stdout
    assert len(verdicts(job)["says/tasks/a__1"]["earlier_verdicts"]) == 2


def test_another_verifier_judges_what_the_agent_said(tmp_path: Path) -> None:
    job = run(tmp_path, PYTHON)
    other = tmp_path / "other.yaml"
    other.write_text("verifier:\n  rewards:\n  - type: string_match\n    options: {expected: '41'}\n")
    done = rollout(tmp_path, "regrade", job, "--verifier", other, "--task", "a", "--json")
    assert [json.loads(line)["what"] for line in done.stdout.splitlines()] == ["regraded"]
    assert verdicts(job)["says/tasks/a__1"]["reward_source"] == "string_match"
    assert verdicts(job)["says/tasks/b__1"]["earlier_verdicts"] == []


def test_what_was_not_kept_is_said_and_the_verdict_stands(tmp_path: Path) -> None:
    job = run(tmp_path, {"type": "script"}, tasks=("a",))
    before = (job / "trials.jsonl").read_bytes()
    done = rollout(tmp_path, "regrade", job)
    assert done.returncode == 1
    assert "cannot be verified again: cannot run" in done.stdout
    assert "the environment of this trial was not kept" in done.stdout
    assert (job / "trials.jsonl").read_bytes() == before


def test_a_verifier_that_fails_leaves_the_verdict(tmp_path: Path) -> None:
    job = run(tmp_path, PYTHON, tasks=("a",))
    (tmp_path / "tasks/a/tests/evaluate.py").write_text("def evaluate(task): return 1 / 0\n")
    done = rollout(tmp_path, "regrade", job)
    assert done.returncode == 1
    assert "failed: " in done.stdout and "ZeroDivisionError" in done.stdout
    assert verdicts(job)["says/tasks/a__1"]["reward"] == 1.0


def test_a_job_that_is_resumed_keeps_the_new_verdicts(tmp_path: Path) -> None:
    job = run(tmp_path, PYTHON, tasks=("a",))
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"rewards": [{"type": "string_match", "options": {"expected": "no"}}]}))
    assert rollout(tmp_path, "regrade", job, "--verifier", other).returncode == 0
    assert rollout(tmp_path, tmp_path / "job.json", "--name", "j", "-q").returncode == 0
    assert verdicts(job)["says/tasks/a__1"]["reward"] == 0.0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--verifier", "no-such"), "neither a file, nor a verifier, nor a reward function"),
        (("--task", "zzz"), "no finished trial matches"),
        (("--verifier", "bad.yaml"), "bad.yaml: verifier"),
        (("--verifier", "unset.yaml"), "NOT_SET_ANYWHERE"),
    ],
)
def test_wrong_arguments_change_nothing(tmp_path: Path, arguments: tuple[str, ...], why: str) -> None:
    job = run(tmp_path, PYTHON, tasks=("a",))
    (tmp_path / "bad.yaml").write_text("verifier: {typ: script}\n")
    (tmp_path / "unset.yaml").write_text("verifier: {rewards: [test], env: {K: '${NOT_SET_ANYWHERE}'}}\n")
    before = (job / "trials.jsonl").read_bytes()
    done = rollout(tmp_path, "regrade", job, *arguments)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert why in done.stderr
    assert (job / "trials.jsonl").read_bytes() == before


def test_what_is_damaged_or_gone_is_named(tmp_path: Path) -> None:
    tests = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"
    for name in "abcd":
        write_task(tmp_path / "tasks" / name, tests=tests, toml='artifacts = ["/app", "/app/none"]\n')
    agent = {"name": "w", "execute": "echo 42 > answer.txt"}
    job = write_job(tmp_path, {"agents": [agent], "isolation": "separate"})
    assert rollout(tmp_path, job, "--name", "j", "-q").returncode == 0
    shown = rollout(tmp_path, "show", "jobs/j").stdout
    assert "warning: w/tasks/a__1 and 3 further trials: artifact /app/none is not in the agent's environment" in shown
    trials = tmp_path / "jobs/j/w/tasks"
    (trials / "a__1/result.json").write_text("{")
    (trials / "b__1/config.json").unlink()
    shutil.rmtree(trials / "c__1/artifacts/app")
    (trials / "d__1/artifacts/manifest.json").unlink()
    done = rollout(tmp_path, "regrade", "jobs/j", "--again")
    lines = sorted(line.removeprefix("w/tasks/").replace(f"{trials}/", "") for line in done.stdout.splitlines())
    assert [line for line in lines if "__1" in line] == [
        "a__1: cannot be verified again: jobs/j/w/tasks/a__1/result.json cannot be read, which the trial recorded",
        "b__1: cannot be verified again: jobs/j/w/tasks/b__1/config.json is missing, which the trial recorded",
        "c__1: cannot be verified again: artifacts of the trial are not in jobs/j/w/tasks/c__1/artifacts any more: /app",
        "d__1: cannot be verified again: jobs/j/w/tasks/d__1/artifacts/manifest.json is missing, "
        "which says what the verifier got of the agent's work",
    ]
    trial = rollout(tmp_path, "regrade", "jobs/j/w/tasks/c__1")
    assert (trial.returncode, "is the folder of one trial" in trial.stderr) == (2, True)
    (tmp_path / "jobs/j/config.json").write_text("{'job_id': 1")
    broken = rollout(tmp_path, "regrade", "jobs/j")
    assert (broken.returncode, "jobs/j/config.json is damaged" in broken.stderr) == (2, True)


def test_a_folder_that_is_no_jobs_is_refused(tmp_path: Path) -> None:
    done = rollout(tmp_path, "regrade", tmp_path)
    assert done.returncode == 2
    assert "is not a job's folder" in done.stderr
    assert not (tmp_path / ".lock").exists()


async def test_a_killed_regrade_is_resumed(tmp_path: Path) -> None:
    names = ("a", "b", "c")
    job = run(tmp_path, PYTHON, tasks=names, n_concurrent_trials=1)
    started = tmp_path / "started"
    for name in names:
        hangs = f"    open({str(started)!r}, 'w').close()\n    import time\n    time.sleep(1000)\n" if name == "c" else ""
        (tmp_path / f"tasks/{name}/tests/evaluate.py").write_text(f"def evaluate(task):\n{hangs}    return 0.5\n")
    process = subprocess.Popen(
        command("regrade", job, "-n", "1"), cwd=tmp_path, env=environ(tmp_path, TMPDIR=str(tmp_path)), stdout=subprocess.DEVNULL
    )
    async with asyncio.timeout(60):
        while not started.exists():
            await asyncio.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert [verdicts(job)[f"says/tasks/{name}__1"]["reward"] for name in names] == [0.5, 0.5, 1.0]
    (tmp_path / "tasks/c/tests/evaluate.py").write_text("def evaluate(task): return 0.5\n")
    done = rollout(tmp_path, "regrade", job)
    assert done.stdout.splitlines()[-1] == "1 regraded (1 changed), 2 as they were"


def test_a_separate_verifiers_script_is_run_again_on_the_artifacts(tmp_path: Path) -> None:
    tests = "#!/bin/bash\necho checked\ngrep -q 42 /app/answer.txt && echo 1 > /logs/verifier/reward.txt\n"
    write_task(tmp_path / "tasks/a", tests=tests, toml='artifacts = ["/app"]\n')
    agent = {"name": "writes", "execute": "echo 42 > answer.txt; echo seen > /logs/agent/note"}
    job = write_job(tmp_path, {"agents": [agent], "isolation": "separate"})
    assert rollout(tmp_path, job, "--name", "j", "-q").returncode == 0
    stricter = "#!/bin/bash\ncat /logs/agent/note\ngrep -q 43 /app/answer.txt; echo $((1-$?)) > /logs/verifier/reward.txt\n"
    (tmp_path / "tasks/a/tests/test.sh").write_text(stricter)
    done = rollout(tmp_path, "regrade", "jobs/j")
    assert "writes/tasks/a__1: 1 -> 0" in done.stdout, done.stdout + done.stderr
    trial = tmp_path / "jobs/j/writes/tasks/a__1"
    assert (trial / "regrades/1/verifier/stdout.txt").read_text() == "seen\n"
    assert (trial / "verifier/stdout.txt").read_text() == "checked\n"
    assert verdicts(tmp_path / "jobs/j")["writes/tasks/a__1"]["reward_source"] == "/logs/verifier/reward.txt"
    assert list((tmp_path / "cache/work").iterdir()) == []
