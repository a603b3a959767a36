"""Attacks on a backend's trials, as tests: subclass `AttackSuite` and say where trials run.

    class TestAttacksOnMine(AttackSuite):
        environment = {"type": "mine"}
        levels = ("default", "users", "strict", "separate")

Whole jobs run: one per level, with an agent for each attack. Needs pytest, and in the environment bash, git, python3 and cc.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rollout.api import run_job
from rollout.core.job.events import Event, TrialFinished
from rollout.core.records import ISOLATIONS, Isolation, TrialResult
from rollout.testing.attack_task import DOCKERFILE, LOOK, write_attack_task
from rollout.testing.attacks import ATTACKS, Outcome

_HONEST = "honest"
_IDLE = "idle"
_KEY = "ATTACK_SUITE_KEY"


class AttackSuite:
    """No agent gets a reward that it did not earn, at the levels that promise it."""

    environment: ClassVar[dict[str, Any]] = {}
    """`environment:` of the job file."""
    levels: ClassVar[tuple[Isolation, ...]] = ISOLATIONS
    """The levels that the backend offers; jobs at another one are refused."""
    attacks: ClassVar[frozenset[str]] = frozenset(attack.name for attack in ATTACKS)
    """Which are tried. `DEPENDS_ON_BACKEND` are those that a backend's own work has to hold off."""
    concurrency: ClassVar[int] = 4
    dockerfile: ClassVar[str] = DOCKERFILE
    but: ClassVar[Mapping[tuple[str, Isolation], tuple[Outcome, ...]]] = {}
    """What comes of an attack at a level on this backend, where it is not what is stated for all."""

    @pytest.fixture(scope="class")
    @classmethod
    def results(cls, tmp_path_factory: pytest.TempPathFactory) -> Results:
        """Level to agent to what came of its trial; each level's job runs when first asked for."""
        return Results(cls, tmp_path_factory.mktemp("attacks"))

    @pytest.mark.parametrize("level", ISOLATIONS)
    def test_who_knows_the_answer_is_rewarded_and_who_does_nothing_is_not(self, level: Isolation, results: Results) -> None:
        self._offered(level)
        honest, idle = results[level][_HONEST], results[level][_IDLE]
        assert (honest.reward, honest.error) == (1.0, None)
        assert (idle.reward, idle.error) == (0.0, None)

    @pytest.mark.parametrize("level", ISOLATIONS)
    @pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
    def test_an_attack_comes_to_what_is_stated(self, attack: Any, level: Isolation, results: Results) -> None:
        self._offered(level)
        if attack.name not in self.attacks:
            pytest.skip("it is the same with every backend")
        result = results[level][attack.name]
        stated = self.but.get((attack.name, level), attack.outcomes(level))
        assert outcome_of(result) in stated, f"{result.rewards}, {result.error}"

    @pytest.mark.parametrize("level", ["strict", "separate"])
    def test_no_attack_succeeds_where_none_may(self, level: Isolation, results: Results) -> None:
        self._offered(level)
        assert [name for name, result in results[level].items() if outcome_of(result) == "forged"] == [_HONEST]

    @pytest.mark.parametrize("level", ISOLATIONS)
    def test_the_verifier_finds_nothing_of_the_agents_secrets(self, level: Isolation, results: Results) -> None:
        """In no process and no file, even where it is root, unless the agent itself left it somewhere."""
        self._offered(level)
        for name in (_HONEST, _IDLE):
            trial = results[level][name].trial_id
            found = results.folder / "jobs" / level / trial / "logs/verifier/secrets.txt"
            assert found.read_text("utf-8", "replace") == ""

    def _offered(self, level: Isolation) -> None:
        if level not in self.levels:
            pytest.skip(f"the backend does not offer isolation {level}")


def outcome_of(result: TrialResult) -> Outcome:
    if result.status != "scored":
        return "no verdict"
    return "forged" if any(result.rewards.values()) else "held"


class Results(dict[Isolation, dict[str, TrialResult]]):
    """Runs the job of a level when it is asked for."""

    def __init__(self, suite: type[AttackSuite], folder: Path) -> None:
        self._suite = suite
        self.folder = folder
        self._answer = secrets.token_hex(16)
        write_attack_task(folder / "tasks" / "attacked", self._answer, suite.dockerfile)

    def __missing__(self, level: Isolation) -> dict[str, TrialResult]:
        scripts = {_HONEST: f"touch {LOOK}; echo {self._answer} > /app/answer.txt", _IDLE: f"touch {LOOK}"}
        scripts |= {attack.name: attack.execute for attack in ATTACKS if attack.name in self._suite.attacks}
        job = {
            "name": level,
            "isolation": level,
            "jobs_dir": str(self.folder / "jobs"),
            "n_concurrent_trials": self._suite.concurrency,
            "environment": self._suite.environment,
            "agents": [{"name": name, "execute": script, "env": {"KEY": f"${{{_KEY}}}"}} for name, script in scripts.items()],
            "datasets": [{"path": "tasks"}],
        }
        path = self.folder / f"{level}.json"
        path.write_text(json.dumps(job), "utf-8")
        found: dict[str, TrialResult] = {}

        def take(event: Event) -> None:
            if isinstance(event, TrialFinished):
                found[event.result.agent_name] = event.result

        environ = {**os.environ, "ROLLOUT_CACHE_DIR": str(self.folder / "cache"), _KEY: f"agents-own-{secrets.randbits(64)}"}
        asyncio.run(run_job(path, on_event=take, environ=environ))
        self[level] = found
        return found
