"""Real agents in sandboxes of this machine: six of them, and with ROLLOUT_ALL_AGENTS=1 all that need no vendor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import real_agents
from real_agents import AGENTS, ALL, Ran
from require import require

WANTED = ALL if os.environ.get("ROLLOUT_ALL_AGENTS") else AGENTS


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    require("agents")
    require("local")
    folder: Path = tmp_path_factory.mktemp("agents")
    return real_agents.run(folder, WANTED, {"type": "local"})


@pytest.mark.parametrize("agent", WANTED)
def test_it_solves_a_task_and_tells_what_it_did(agent: str, ran: Ran) -> None:
    real_agents.check(ran, agent)


@pytest.mark.parametrize("agent", [name for name in WANTED if ALL[name].equipped])
def test_its_model_is_offered_the_tools_of_a_server_and_told_of_skills(agent: str, ran: Ran) -> None:
    real_agents.check_equipment(ran, agent)
