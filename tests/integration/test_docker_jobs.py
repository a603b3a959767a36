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

from integration.jobs import rollout as run_job
from integration.jobs import write_task
from require import DOCKER_IMAGE, require, unavailable
from rollout_docker.compose import why_not

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


def test_a_task_of_two_services_is_solved_and_the_other_service_leaves_its_log(tmp_path: Path) -> None:
    if (reason := why_not()) is not None:
        unavailable("docker-compose", reason)
    task = write_task(
        tmp_path / "tasks" / "web",
        tests="#!/bin/sh\ncurl -s http://web:8000/page | grep -qx served && echo 1 > /logs/verifier/reward.txt\n",
    )
    (task / "environment" / "Dockerfile").write_text(f"FROM {DOCKER_IMAGE}\nWORKDIR /app\n")
    (task / "environment" / "docker-compose.yaml").write_text(
        f"""
services:
  main:
    depends_on: [web]
  web:
    image: {DOCKER_IMAGE}
    working_dir: /srv
    command: [sh, -c, "echo served > page; echo key $KEY; exec python3 -u -m http.server 8000"]
    environment: {{KEY: "${{KEY}}"}}
"""
    )
    (task / "task.toml").write_text(
        'artifacts = ["/app/own", {source = "/srv/made", service = "web"}]\n[environment.env]\nKEY = "${WEB_KEY}"\n'
        '[[verifier.collect]]\ncommand = "echo by the hook > made"\nservice = "web"\n'
    )
    job = {"name": "services", "environment": {"type": "docker", "options": {"pull": "never"}}, "agents": [{"name": "oracle"}]}
    (tmp_path / "job.json").write_text(json.dumps({**job, "datasets": [{"path": "tasks"}]}))
    done = run_job(tmp_path, "job.json", WEB_KEY="s3cr3t-of-the-web")
    assert done.returncode == 0, done.stderr
    (record,) = results(tmp_path / "jobs" / "services").values()
    assert record["reward"] == 1.0
    log = (tmp_path / "jobs" / "services" / "oracle" / "tasks" / "web__1" / "services" / "web.log").read_text()
    assert "GET /page" in log
    assert "key " in log and "s3cr3t-of-the-web" not in log
    artifacts = tmp_path / "jobs" / "services" / "oracle" / "tasks" / "web__1" / "artifacts"
    assert (artifacts / "srv" / "made").read_text() == "by the hook\n"
    statuses = {item["source"]: item["status"] for item in json.loads((artifacts / "manifest.json").read_text())["artifacts"]}
    assert statuses == {"/app/own": "missing", "/srv/made": "kept"}


def test_a_service_that_the_task_does_not_have_is_said_in_the_manifest_and_elsewhere_refused(tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks" / "alone")
    (task / "environment" / "Dockerfile").write_text(f"FROM {DOCKER_IMAGE}\nWORKDIR /app\n")
    (task / "task.toml").write_text('artifacts = [{source = "/made", service = "db"}]\n')
    job = {"name": "alone", "agents": [{"name": "oracle"}], "datasets": [{"path": "tasks"}]}
    (tmp_path / "job.json").write_text(json.dumps({**job, "environment": {"type": "docker", "options": {"pull": "never"}}}))
    done = run_job(tmp_path, "job.json")
    assert done.returncode == 0, done.stderr
    (record,) = results(tmp_path / "jobs" / "alone").values()
    assert record["reward"] == 1.0
    assert any("no service 'db'" in warning for warning in record["warnings"])
    (tmp_path / "job.json").write_text(json.dumps({**job, "environment": {"type": "local"}}))
    refused = run_job(tmp_path, "job.json", "--fresh")
    assert refused.returncode == 2
    assert "cannot start the service db" in refused.stderr
