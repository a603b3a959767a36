"""The examples run as they stand: the quickstart's controls hold, the pipeline's gate works, the registry is fetched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from rollout.core.config.load import load_job
from rollout.core.job.store import RESULT
from rollout.core.tasks.check import check_paths
from rollout.core.tasks.directory import load_dataset

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TASKS = EXAMPLES / "quickstart/tasks"


@pytest.fixture
def jobs_dir(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


def rollout(job: Path, jobs_dir: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "rollout", "run", str(job), "--jobs-dir", str(jobs_dir), "--display", "plain", *flags]
    env = {**os.environ, "ROLLOUT_CACHE_DIR": str(jobs_dir.parent / "cache")}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)


def trials(jobs_dir: Path, job: str) -> list[dict[str, Any]]:
    lines = (jobs_dir / job / "trials.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.needs("local")
def test_quickstart_oracle_earns_everything_and_nop_nothing(jobs_dir: Path) -> None:
    done = rollout(EXAMPLES / "quickstart/job.yaml", jobs_dir)
    assert done.returncode == 0, done.stdout + done.stderr
    tasks = {task.name for task in load_dataset(TASKS).tasks}
    rewards: dict[str, dict[str, float | None]] = {}
    for trial in trials(jobs_dir, "quickstart"):
        rewards.setdefault(trial["agent_name"], {})[trial["task_name"]] = trial.get("reward")
    assert rewards["oracle"] == dict.fromkeys(tasks, 1.0)
    assert rewards["nop"] == dict.fromkeys(tasks, 0.0)
    assert set(rewards["scripted"]) == tasks
    assert {0.0, 0.6, 1.0} < set(rewards["scripted"].values())
    assert "oracle" in done.stdout and (jobs_dir / "quickstart" / RESULT).is_file()


@pytest.mark.needs("local")
def test_pipeline_passes_its_gate_and_leaves_a_report(jobs_dir: Path) -> None:
    report = jobs_dir.parent / "results.xml"
    flags = ("--fail-under", "oracle:mean=1", "--junit", str(report))
    done = rollout(EXAMPLES / "ci/job.yaml", jobs_dir, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    suites = {suite.get("name"): suite for suite in ElementTree.parse(report).getroot()}
    assert suites["oracle on quickstart"].get("failures") == "0"
    assert suites["nop on quickstart"].get("failures") == suites["nop on quickstart"].get("tests")

    done = rollout(EXAMPLES / "ci/job.yaml", jobs_dir, "--fail-under", "nop:mean=0.1")
    assert done.returncode == 3, done.stdout + done.stderr


@pytest.mark.needs("local")
def test_registry_tasks_are_fetched_from_git(jobs_dir: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(EXAMPLES, checkout / "examples", symlinks=True)
    git = ["git", "-C", str(checkout), "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "examples"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()

    done = rollout(checkout / "examples/registry/job.yaml", jobs_dir)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {trial["task_name"]: (trial["reward"], trial["task_git_commit_id"]) for trial in trials(jobs_dir, "registry")}
    assert len(found) == 5
    assert set(found.values()) == {(1.0, head)}


def test_example_tasks_have_no_findings() -> None:
    checked = check_paths([TASKS])
    assert checked.tasks >= 10
    assert [str(finding) for finding in checked.findings] == []


@pytest.mark.parametrize("job", sorted(EXAMPLES.glob("*/job.yaml")), ids=lambda path: path.parent.name)
def test_example_jobs_are_read_without_a_warning(job: Path) -> None:
    assert load_job(job, environ={}).warnings == ()


@pytest.mark.parametrize("task", load_dataset(TASKS).tasks, ids=lambda task: task.name)
def test_example_tasks_are_complete_and_need_no_network(task: Any) -> None:
    assert task.has_solution
    assert {"author_name", "difficulty", "category", "tags"} <= task.config.metadata.keys()
    assert task.config.environment.network_mode == "no-network"
    scripts = [*task.path.glob("tests/**/*"), *task.path.glob("solution/**/*"), task.path / "environment/Dockerfile"]
    text = "\n".join(path.read_text() for path in scripts if path.is_file() and path.suffix in ("", ".sh", ".py"))
    for program in ("apt-get", "pip install", "curl ", "wget ", "https://"):
        assert program not in text
