"""Reward functions as job files, task.toml and dataset.toml name them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, to_builtins

from rollout.core.types import Struct

Name = Annotated[str, Meta(min_length=1, max_length=300)]


class RewardConfig(Struct, frozen=True, kw_only=True):
    """An item of `rewards` of a verifier; its name alone will do."""

    type: Name
    """Reward function; `rollout plugins rewards` lists them."""
    name: Name | None = None
    """How results call it; its type when unset."""
    weight: Annotated[float, Meta(ge=0)] | None = None
    """Its share of the reward, in proportion to the other weights; all the same when none has one."""
    options: dict[str, Any] = {}
    """The reward function's own options."""


class RubricConfig(Struct, frozen=True, kw_only=True):
    """`rubric` of a verifier: reward functions and their weights, in two lists."""

    funcs: Annotated[list[RewardConfig | str], Meta(min_length=1)]
    """Reward functions, as in `rewards`."""
    weights: list[Annotated[float, Meta(ge=0)]] = []
    """One for each of `funcs`."""

    def __post_init__(self) -> None:
        if self.weights and len(self.weights) != len(self.funcs):
            raise ValueError(f"there are {len(self.funcs)} `funcs` and {len(self.weights)} `weights`; give one weight for each")
        if self.weights and any(isinstance(item, RewardConfig) and item.weight is not None for item in self.funcs):
            raise ValueError("weights are given twice; keep `weights` or the `weight` of each item")


Rewards = Annotated[list[RewardConfig | str], Meta(min_length=1)]


def rewards_options(rewards: Rewards | None, rubric: RubricConfig | None) -> dict[str, Any] | None:
    """The options of the verifier `rewards` that the two ways to name reward functions mean; None when neither was used."""
    items = rubric.funcs if rubric is not None else rewards
    if items is None:
        return None
    given = [to_builtins(item) for item in items]
    if rubric is not None and rubric.weights:
        given = [
            {**({"type": item} if isinstance(item, str) else item), "weight": weight}
            for item, weight in zip(given, rubric.weights, strict=True)
        ]
    return {"rewards": given}
