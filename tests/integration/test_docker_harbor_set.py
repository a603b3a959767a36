"""A data set in Harbor's format, 120 folders of 30 shapes, runs unmodified on a real engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harbor_tasks import SHAPES, write_tasks
from require import DOCKER_IMAGE, require

COPIES = 4


@pytest.mark.timeout(900)
def test_every_task_is_solved_by_its_own_solution_and_by_nothing_else(tmp_path: Path) -> None:
    require("docker")
    names = write_tasks(tmp_path / "tasks", DOCKER_IMAGE, COPIES)
    assert len(names) == len(SHAPES) * COPIES >= 100
    job = {
        "name": "harbor",
        "n_concurrent_trials": 4,
        "environment": {"type": "docker", "options": {"pull": "never"}},
        "agents": [{"name": "oracle"}, {"name": "nop"}],
        "datasets": [{"path": "tasks"}],
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    done = subprocess.run(
        [sys.executable, "-m", "rollout", "job.json"], cwd=tmp_path, capture_output=True, text=True, timeout=850, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout[-2000:]
    records = [json.loads(line) for line in (tmp_path / "jobs/harbor/trials.jsonl").read_text().splitlines()]
    rewards = {"oracle": 1.0, "nop": 0.0}
    wrong = {record["trial_id"]: record["reward"] for record in records if record["reward"] != rewards[record["agent_name"]]}
    assert wrong == {}
    assert len(records) == 2 * len(names)
