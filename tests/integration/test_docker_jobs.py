"""Whole jobs under `type: docker`: the quickstart's tasks, and a job that is killed and run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from require import DOCKER_IMAGE, require, unavailable

TASKS = Path(__file__).parents[2] / "examples" / "quickstart" / "tasks"
BASE = "python:3.12-bookworm"


@pytest.fixture(autouse=True, scope="module")
def _docker() -> None:
    require("docker")


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def rollout(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rollout", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def results(job: Path) -> dict[str, dict[str, object]]:
    """Trial to its last record."""
    lines = (job / "trials.jsonl").read_text().splitlines()
    return {record["trial_id"]: record for record in map(json.loads, lines)}


def test_the_quickstart_is_solved_by_the_oracle_and_by_nobody_else(tmp_path: Path) -> None:
    if subprocess.run(["docker", "image", "inspect", BASE], capture_output=True, check=False).returncode != 0:
        unavailable("docker", f"the image {BASE} is not there")
    job = {
        "name": "quickstart",
        "n_concurrent_trials": 4,
        "environment": {"type": "docker"},
        "agents": [{"name": "oracle"}, {"name": "nop"}],
        "datasets": [{"path": str(TASKS)}],
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    process = rollout(tmp_path, "job.json")
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    records = results(tmp_path / "jobs" / "quickstart")
    tasks = len(list(TASKS.glob("*/task.toml")))
    for agent, reward in (("oracle", 1.0), ("nop", 0.0)):
        assert [record["reward"] for record in records.values() if record["agent_name"] == agent] == [reward] * tasks


def test_a_killed_job_goes_on_and_leaves_nothing(tmp_path: Path) -> None:
    task = tmp_path / "tasks" / "slow"
    (task / "environment").mkdir(parents=True)
    (task / "tests").mkdir()
    mark = os.urandom(4).hex()
    (task / "environment" / "Dockerfile").write_text(f"FROM {DOCKER_IMAGE}\nRUN echo {mark} > /mark\n")
    (task / "instruction.md").write_text("Wait.")
    (task / "task.toml").write_text('version = "1.0"\n')
    (task / "tests" / "test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    job = {
        "name": f"killed-{mark}",
        "n_concurrent_trials": 4,
        "n_attempts": 6,
        "environment": {"type": "docker"},
        "agents": [{"name": "waits", "execute": "#!/bin/sh\nsleep 3\n"}],
        "datasets": [{"path": str(tmp_path / "tasks")}],
    }
    (tmp_path / "job.json").write_text(json.dumps(job))

    def mine() -> list[str]:
        return docker("ps", "-a", "--no-trunc", "--filter", f"name=killed-{mark}", "--format", "{{.Names}}").split()

    process = rollout(tmp_path, "job.json")
    try:
        deadline = time.monotonic() + 120
        while len(mine()) < 3 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert mine() != []
    process = rollout(tmp_path, "job.json")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    records = results(tmp_path / "jobs" / f"killed-{mark}").values()
    assert [record["rewards"] for record in records] == [{"reward": 1.0}] * 6
    assert mine() == []
    job_id = json.loads((tmp_path / "jobs" / f"killed-{mark}" / "config.json").read_text())["job_id"]
    assert docker("images", "-q", "--filter", f"label=rollout.job={job_id}") == ""
