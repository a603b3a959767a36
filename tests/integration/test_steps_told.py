"""Tasks with steps: one trajectory of all of them, and one budget for all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integration.test_steps import run, write
from rollout import decode_atif

pytestmark = pytest.mark.needs("local")

TELLS = """
printf '%s' '{"schema_version": "ATIF-v1.8", "agent": {"name": "a", "version": "1"}, "steps": [{"step_id": 1, "source": "agent",
"message": "did it", "metrics": {"prompt_tokens": 100, "cost_usd": 1.5}}]}' > /logs/agent/trajectory.json
"""


def test_a_trial_with_steps_has_one_trajectory_and_its_steps_have_theirs(tmp_path: Path) -> None:
    write(tmp_path)
    trial, result = run(tmp_path, execute=TELLS)
    made = decode_atif((trial / "trajectory.json").read_bytes())
    assert [(step.step_id, step.message, (step.extra or {})["step"]) for step in made.steps] == [
        (1, "Write 1 to one.\n", "first"),
        (2, "did it", "first"),
        (3, "Write 2 to two.\n", "second"),
        (4, "did it", "second"),
    ]
    assert made.final_metrics is not None
    assert (made.final_metrics.total_cost_usd, made.final_metrics.total_steps, result["cost"]) == (3.0, 4, 3.0)
    assert made.extra is not None and list(made.extra["rollout"]["steps"]) == ["first", "second"]
    assert made.extra["rollout"]["steps"]["first"]["trust"] == "reported"
    assert (trial / "steps" / "first" / "trajectory.json").is_file()
    assert not any("trajector" in warning for warning in result["warnings"])


def test_the_time_of_a_trials_budget_is_that_of_all_of_its_steps(tmp_path: Path) -> None:
    write(tmp_path)
    trial, result = run(tmp_path, execute="sleep 2", budget={"per_trial": {"wall_sec": 3}})
    first, second = result["steps"]
    assert first["error"] is None
    assert second["error"]["type"] == "agent_budget_exceeded"
    spec = json.loads((trial / "config.json").read_text())
    assert spec["budget"]["wall_sec"] == 3
