"""Real agents in containers and on other machines, whose images have neither their Node nor the packages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import real_agents
import ssh_machines
from real_agents import Ran
from require import APPTAINER, require

SSH_BRIDGE = "10.213.77.1"
"""This machine, as those of components/ssh.sh see it; they reach nothing else."""
DOCKER = ("claude", "codex")


def bridge() -> str:
    """The address at which containers of the default bridge reach this machine."""
    asked = ["docker", "network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    require("agents")
    require("docker")
    environment = {"type": "docker", "options": {"mounts": real_agents.authorities()}}
    folder: Path = tmp_path_factory.mktemp("docker")
    return real_agents.run(folder, DOCKER, environment, address=bridge())


@pytest.mark.parametrize("agent", DOCKER)
def test_it_solves_a_task_in_a_container(agent: str, containers: Ran) -> None:
    real_agents.check(containers, agent)


@pytest.mark.needs("agents", "apptainer")
def test_it_solves_a_task_in_a_sif(tmp_path: Path) -> None:
    options = {
        "program": str(APPTAINER / "usr/bin/apptainer"),
        "bases": {"python:3.12-bookworm": str(APPTAINER / "base.sif")},
        "cache": str(tmp_path / "images"),
        "scratch": str(tmp_path / "scratch"),
        "mounts": real_agents.authorities(),
    }
    ran = real_agents.run(tmp_path, ["gemini"], {"type": "apptainer", "options": options})
    real_agents.check(ran, "gemini")


@pytest.mark.needs("agents", "ssh")
def test_it_solves_a_task_on_a_machine_behind_a_proxy(tmp_path: Path) -> None:
    environment = {"type": "ssh", "options": ssh_machines.options(15)}
    ran = real_agents.run(tmp_path, ["codex"], environment, address=SSH_BRIDGE, proxy=True)
    real_agents.check(ran, "codex")
