"""Whole jobs on other machines: the quickstart in both modes, and engines of the hosts."""

from __future__ import annotations

import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from house.sources import ROOT
from integration.jobs import rollout, trial_results, write_job, write_task
from pages import Block, blocks
from require import require
from ssh_machines import KEY, KNOWN_HOSTS, NOTHING_LEFT, host, options, wait_until

QUICKSTART = ROOT / "examples" / "quickstart"


def _mode(block: Block) -> str:
    return str(yaml.safe_load(block.text)["environment"]["options"].get("mode", "namespace"))


def _with_ssh(folder: Path) -> str:
    """A PATH whose ssh program knows our machines."""
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F none -i {KEY} -o UserKnownHostsFile={KNOWN_HOSTS} "$@"\n')
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


@pytest.fixture(autouse=True, scope="module")
def _machines() -> None:
    require("ssh")


@pytest.mark.parametrize(("mode", "machines"), [("namespace", (6, 7)), ("host", (17, 18))])
def test_the_quickstart_scores_on_two_hosts(tmp_path: Path, mode: str, machines: tuple[int, int]) -> None:
    job = yaml.safe_load((QUICKSTART / "job.yaml").read_text())
    job["environment"] = {"type": "ssh", "options": options(*machines, mode=mode)}
    job["agents"] = [{"name": "oracle"}, {"name": "nop"}]
    job["datasets"][0]["path"] = str(QUICKSTART / "tasks")
    done = rollout(tmp_path, write_job(tmp_path, job))
    assert done.returncode == 0, done.stderr
    results = trial_results(tmp_path / "jobs" / "quickstart").values()
    rewards = {(result["agent_name"], result["reward"]) for result in results}
    assert rewards == {("oracle", 1.0), ("nop", 0.0)}
    for machine in machines:
        wait_until(machine, NOTHING_LEFT)


JOBS = [block for block in blocks() if block.page == "docs/ssh.md" and block.title == "job.yaml"]


def test_the_documentation_has_jobs_of_every_mode() -> None:
    assert {_mode(block) for block in JOBS} == {"namespace", "host", "docker", "apptainer"}


@pytest.mark.parametrize(
    "block", [block for block in JOBS if _mode(block) != "apptainer"], ids=lambda block: f"line {block.line}"
)
def test_the_jobs_of_the_documentation_run(block: Block, tmp_path: Path) -> None:
    """With our machines in place of those it names, and files in their places."""
    job = yaml.safe_load(block.text)
    given = job["environment"]["options"]
    hosts = [host(17), host(18)] if _mode(block) == "host" else [f"{host(6)} slots=4", host(7)]
    if "host_file" in given:
        (tmp_path / given["host_file"]).write_text("# ours\n" + "".join(f"{line}\n" for line in hosts))
        (tmp_path / given["identity_file"]).parent.mkdir()
        shutil.copy(KEY, tmp_path / given["identity_file"])
        given |= {"config": None, "agent": False}
    elif _mode(block) == "docker":
        require("docker")
        given["hosts"] = hosts
    else:
        given |= {**options(), "hosts": hosts}
    for number in range(3):
        write_task(tmp_path / "tasks" / f"t{number}")
    done = rollout(tmp_path, write_job(tmp_path, job), PATH=_with_ssh(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [result["reward"] for result in trial_results(tmp_path / "jobs" / "job").values()] == [1.0] * 3


def test_a_host_runs_as_many_trials_at_once_as_it_has_slots(tmp_path: Path) -> None:
    for number in range(4):
        write_task(tmp_path / "tasks" / f"t{number}")
    agents = [{"name": "slow", "execute": "sleep 0.5"}]
    path = write_job(tmp_path, {"environment": {"type": "ssh", "options": options(6, slots=1)}, "agents": agents})
    done = rollout(tmp_path, path)
    assert done.returncode == 0, done.stderr
    times = sorted(
        (result["timestamps"]["agent_execution_started_at"], result["timestamps"]["agent_execution_ended_at"])
        for result in trial_results(tmp_path / "jobs" / "job").values()
    )
    assert all(ended <= started for (_, ended), (started, _) in pairwise(times))


def test_an_agent_is_installed_once_per_host(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    agent = {
        "name": "kept",
        "install": f"echo {os.urandom(8).hex()} > /opt/whose; cat /proc/sys/kernel/random/uuid > /opt/installed; echo new",
        "execute": "cat /etc/hostname /proc/sys/kernel/hostname /opt/installed > /logs/agent/found; echo 42 > /app/answer.txt",
    }
    environment = {"type": "ssh", "options": options(6, 7, slots=2)}
    path = write_job(tmp_path, {"environment": environment, "agents": [agent], "n_attempts": 8})
    done = rollout(tmp_path, path)
    assert done.returncode == 0, done.stderr
    job = tmp_path / "jobs" / "job"
    assert [result["reward"] for result in trial_results(job).values()] == [1.0] * 8
    found = {path.read_text() for path in job.glob("*/*/*/logs/agent/found")}
    assert len(found) == 2, "one installation on each host, and both were used"
    assert [path.read_text() for path in job.rglob("setup/stdout.txt")] == ["new\nnew\n"]


def test_the_docker_of_a_host_is_used_through_the_docker_environment(tmp_path: Path) -> None:
    require("docker")
    write_task(tmp_path / "tasks" / "one")
    engine: dict[str, Any] = {"pull": "never"}
    environment = {"hosts": [f"{host(6)} slots=2", host(7)], "mode": "docker", "engine": engine}
    path = write_job(tmp_path, {"environment": {"type": "ssh", "options": environment}, "n_attempts": 3})
    done = rollout(tmp_path, path, PATH=_with_ssh(tmp_path))
    assert done.returncode == 0, done.stderr
    results = trial_results(tmp_path / "jobs" / "job").values()
    assert [result["reward"] for result in results] == [1.0] * 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mode": "docker", "password_file": "secret"}, "environment.options.password_file: mode: docker logs in with the ssh"),
        ({"mode": "docker", "engine": {"no_such": 1}}, "no_such"),
        ({"mode": "apptainer", "engine": {"disk": 1}}, "environment.options.engine"),
        ({"mode": "apptainer", "tmpfs": True}, "environment.options.tmpfs: `mode: apptainer` does not have it"),
        ({"image": "/x.sif"}, "`image` goes with `mode: apptainer`"),
        ({"engine": {"pull": "never"}}, "`engine` goes with `mode: docker`"),
    ],
)
def test_what_an_engine_cannot_do_over_ssh_is_said_in_a_line(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    write_task(tmp_path / "tasks" / "one")
    path = write_job(tmp_path, {"environment": {"type": "ssh", "options": {"hosts": [host(6)], **changes}}})
    done = rollout(tmp_path, path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
