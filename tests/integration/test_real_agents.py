"""Real agents in sandboxes of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

import real_agents
from real_agents import AGENTS, Ran
from require import require


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    require("agents")
    require("local")
    folder: Path = tmp_path_factory.mktemp("agents")
    return real_agents.run(folder, AGENTS, {"type": "local"})


@pytest.mark.parametrize("agent", AGENTS)
def test_it_solves_a_task_and_tells_what_it_did(agent: str, ran: Ran) -> None:
    real_agents.check(ran, agent)


@pytest.mark.parametrize("agent", [name for name, agent in AGENTS.items() if agent.equipped])
def test_its_model_is_offered_the_tools_of_a_server_and_told_of_skills(agent: str, ran: Ran) -> None:
    real_agents.check_equipment(ran, agent)
