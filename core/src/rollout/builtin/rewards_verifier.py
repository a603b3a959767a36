"""The `rewards` verifier: reward functions by their names, combined in a rubric."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollout.core.config.rewards import RewardConfig, Rewards
from rollout.core.errors import ConfigError
from rollout.core.plugins import Plugin, decode_options, find
from rollout.core.protocols import API_VERSION, TrialView
from rollout.core.trial.rubric import Rubric, in_process_of_its_own, wants_trial
from rollout.core.types import Struct, TaskFault, TaskOutline, VerifyResult


class RewardsVerifierOptions(Struct, frozen=True, kw_only=True):
    rewards: Rewards
    """Reward functions, by name or with their options."""


class RewardsVerifier:
    """The weighted mean of reward functions, each of which is reported too."""

    api_version = API_VERSION
    options_type = RewardsVerifierOptions

    def __init__(self, options: RewardsVerifierOptions) -> None:
        """Find the functions and decode their options.

        Raises:
            PluginError, ConfigError
        """
        items = [RewardConfig(type=item) if isinstance(item, str) else item for item in options.rewards]
        weighted = [item.weight is not None for item in items]
        if any(weighted) and not all(weighted):
            missing = items[weighted.index(False)].type
            raise ConfigError(f"rewards: {missing} has no `weight`, and others have; give one to each or to none")
        funcs = [_made(item, index) for index, item in enumerate(items)]
        self.needs_environment = any(getattr(func, "needs_environment", False) for func in funcs)
        self._funcs = funcs
        self._rubric = Rubric(
            funcs,
            [item.weight for item in items if item.weight is not None] or None,
            names=[item.name or item.type.rpartition(":")[2] for item in items],
        )

    def task_faults(self, task: TaskOutline) -> Iterator[TaskFault]:
        """What its reward functions say."""
        for func in self._funcs:
            if (ask := getattr(func, "task_faults", None)) is not None:
                yield from ask(task)

    async def verify(self, trial: TrialView) -> VerifyResult:
        return await self._rubric.judge(trial)


def _made(item: RewardConfig, index: int) -> Any:
    """The reward function, with its options."""
    plugin = find("rewards", item.type)
    if hasattr(plugin.cls, "options_type"):
        return plugin.cls(decode_options(plugin, item.options, f"rewards[{index}]"))
    if item.options:
        raise ConfigError(f"rewards[{index}] ({item.type}): it is a plain function and has no options")
    if wants_trial(plugin.cls):
        return plugin.cls
    return _InItsProcess(plugin)


class _InItsProcess:
    """A registered Python verifier."""

    def __init__(self, plugin: Plugin) -> None:
        module, _, function = plugin.info.target.partition(":")
        self._judge = in_process_of_its_own(module, function)

    async def score(self, trial: TrialView) -> VerifyResult:
        return await self._judge(trial)
