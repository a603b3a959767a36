"""What verifiers may return, and what becomes of it: the table of rLLM's coercion, with errors where that scores 0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.core.episodes import EvalOutput, Signal
from rollout.core.errors import RewardInvalidError
from rollout.core.trial.coercion import coerce, eval_output
from rollout.core.types import VerifyResult


class Scalar:
    """Stands for a numpy scalar."""

    size = 1

    def __float__(self) -> float:
        return 0.25


@pytest.mark.parametrize(
    ("value", "rewards"),
    [
        (True, {"reward": 1.0}),
        (False, {"reward": 0.0}),
        (0, {"reward": 0.0}),
        (1, {"reward": 1.0}),
        (0.999, {"reward": 0.999}),
        (2, {"reward": 2.0}),
        (-1, {"reward": -1.0}),
        ("0.7", {"reward": 0.7}),
        (" 1\n", {"reward": 1.0}),
        (Scalar(), {"reward": 0.25}),
        ((0.5, True), {"reward": 0.5, "is_correct": 1.0}),
        ({"reward": 0.5}, {"reward": 0.5}),
        ({"reward": 1, "is_correct": False}, {"reward": 1.0, "is_correct": 0.0}),
        ({"reward": 1, "signals": {"tests": 0.5}}, {"reward": 1.0, "tests": 0.5}),
        ({"reward": 1, "signals": [{"name": "tests", "value": 0.5}]}, {"reward": 1.0, "tests": 0.5}),
        ({"reward": 1, "style": 0.2}, {"reward": 1.0, "style": 0.2}),
        ({"score": 0.5}, {"reward": 0.5}),
        ({"passed": True}, {"reward": 1.0}),
        ({"accuracy": 0.95, "runtime_sec": 1.2}, {"accuracy": 0.95, "runtime_sec": 1.2}),
        (EvalOutput(0.5, False, [Signal("f1", 0.3)]), {"reward": 0.5, "is_correct": 0.0, "f1": 0.3}),
    ],
)
def test_what_counts_as_a_verdict(value: Any, rewards: dict[str, float]) -> None:
    assert coerce(value).rewards == rewards


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "None"),
        ("x", "'x'"),
        (object(), "object"),
        (math.nan, "finite"),
        (math.inf, "finite"),
        ("nan", "finite"),
        ("1_0", "not a number"),
        ([0.5, True], "list"),
        ((0.5, True, 1), "tuple of 3"),
        ((0.5, "yes"), "tuple"),
        ({}, "empty map"),
        ({"reward": None}, "`reward`"),
        ({"reward": 1, "is_correct": "no"}, "`is_correct` is 'no'"),
        ({"reward": 1, "signals": 3}, "`signals`"),
        ({"reward": 1, "signals": [3]}, "`signals`"),
        ({"reward": 1, "signals": {"a": math.nan}}, "`a`"),
        ({"metadata": {}}, "without `reward`"),
        ({"reward": 1, "metadata": 3}, "`metadata`"),
        ({"reward": 10**400}, "not a number"),
    ],
)
def test_what_is_no_verdict_is_an_error_and_not_zero(value: Any, why: str) -> None:
    with pytest.raises(RewardInvalidError) as caught:
        coerce(value, "evaluate()")
    assert why in str(caught.value)
    assert str(caught.value).startswith("evaluate()")


def test_metadata_is_kept_as_plain_data() -> None:
    result = coerce({"reward": 1, "metadata": {"path": Scalar(), 3: [1, {2}]}})
    assert result.details["3"] == [1, [2]]
    assert isinstance(result.details["path"], str)


@pytest.mark.parametrize(("reward", "correct"), [(1.0, True), (0.999, False), (2.0, True), (0.0, False)])
def test_correct_is_a_reward_of_one_unless_said_otherwise(reward: float, correct: bool) -> None:
    assert eval_output(coerce(reward)).is_correct is correct
    assert eval_output(coerce((reward, not correct))).is_correct is not correct


def test_a_map_without_a_reward_of_that_name_is_no_eval_output() -> None:
    with pytest.raises(RewardInvalidError, match="a, b"):
        eval_output(coerce({"a": 1, "b": 2}))


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4)
keys = st.sampled_from(["reward", "score", "passed", "is_correct", "signals", "metadata", "a"]) | st.text(max_size=4)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=4)
)


@given(anything)
def test_whatever_is_returned_is_finite_numbers_or_an_error(value: Any) -> None:
    try:
        result = coerce(value)
    except RewardInvalidError as error:
        assert str(error)
        return
    assert isinstance(result, VerifyResult)
    assert isinstance(result.rewards, Mapping) and result.rewards
    assert all(isinstance(number, float) and math.isfinite(number) for number in result.rewards.values())
