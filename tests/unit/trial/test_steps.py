"""What comes of the steps of a task together: Harbor's rules, but that no verdict is not 0."""

from __future__ import annotations

import pytest

from rollout.core.records import StepResult, StepStrategy
from rollout.core.trial.steps import rewards_together, shortfall, usage_together
from rollout.core.types import Usage


def step(**rewards: float) -> StepResult:
    return StepResult(name="s", status="scored" if rewards else "errored", rewards=rewards)


@pytest.mark.parametrize(
    ("strategy", "steps", "together"),
    [
        ("mean", [step(reward=0.25), step(reward=0.75)], {"reward": 0.5}),
        ("final", [step(reward=0.25), step(reward=0.75)], {"reward": 0.75}),
        ("mean", [step(reward=1, speed=4), step(reward=0)], {"reward": 0.5, "speed": 2.0}),
        ("mean", [step(reward=0.0)], {"reward": 0.0}),
        ("mean", [step(reward=0.25), step()], None),
        ("final", [step(reward=0.25), step()], None),
        ("final", [step(), step(reward=1)], {"reward": 1.0}),
        ("mean", [], None),
    ],
)
def test_rewards_of_steps_become_one(strategy: StepStrategy, steps: list[StepResult], together: dict[str, float] | None) -> None:
    assert rewards_together(steps, strategy) == together


@pytest.mark.parametrize(
    ("rewards", "wanted", "why"),
    [
        ({"reward": 1.0}, {}, None),
        ({"reward": 0.5}, {"reward": 0.5}, None),
        ({"reward": 0.4}, {"reward": 0.5}, "`reward` is 0.4, and has to be at least 0.5"),
        ({"other": 1.0}, {"reward": 0.5}, "`reward` is missing, and has to be at least 0.5"),
        ({"reward": 1.0, "safety": 0.0}, {"reward": 0, "safety": 1}, "`safety` is 0, and has to be at least 1"),
    ],
)
def test_the_gate_between_steps(rewards: dict[str, float], wanted: dict[str, float], why: str | None) -> None:
    assert shortfall(rewards, wanted) == why


def test_tokens_of_steps_are_added_and_what_nobody_tells_stays_unknown() -> None:
    one = StepResult(name="a", status="scored", usage=Usage(input_tokens=1, cost_usd=0.5))
    two = StepResult(name="b", status="scored", usage=Usage(input_tokens=2))
    total = usage_together([one, two, step()])
    assert total is not None
    assert (total.input_tokens, total.cost_usd, total.output_tokens) == (3, 0.5, None)
    assert usage_together([step()]) is None
