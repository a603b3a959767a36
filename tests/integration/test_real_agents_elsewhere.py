"""Real agents in containers and on other machines, whose images have neither their Node nor the packages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import real_agents
from real_agents import Ran
from require import require

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
    return real_agents.run(folder, list(DOCKER), environment, address=bridge())


@pytest.mark.parametrize("agent", DOCKER)
def test_it_solves_a_task_in_a_container(agent: str, containers: Ran) -> None:
    real_agents.check(containers, agent)
