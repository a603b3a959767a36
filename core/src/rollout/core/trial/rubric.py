"""Rubrics: reward functions of any shape, called with one trial, and their weighted mean."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from rollout.core.errors import ConfigError, RolloutError, VerifierError, boundary
from rollout.core.protocols import PythonCall, TrialView
from rollout.core.trial.answer import told
from rollout.core.trial.coercion import coerce
from rollout.core.trial.python_verifier import call_arguments
from rollout.core.trial.python_worker import Rejected, call_by_name
from rollout.core.trial.recorded import recorded_trial
from rollout.core.trial.rewards import check_rewards
from rollout.core.types import RewardEvent, VerifyResult, primary_reward

Judge = Callable[[TrialView], Awaitable[VerifyResult]]
Compat = Literal["benchflow"]

_PATH_NAMES = ("rollout_dir", "trial_dir", "workspace", "path", "directory")


@dataclass(frozen=True)
class Part:
    """One reward function of a rubric."""

    name: str
    judge: Judge
    weight: float


class Rubric:
    """Reward functions and their weights.

    The reward is the weighted mean, so it stays between the lowest and the highest of what the functions give; without
    weights all count the same. A function that raises makes the whole rubric raise: an error is not a reward of 0.
    """

    def __init__(
        self,
        reward_funcs: Sequence[Any],
        weights: Sequence[float] | None = None,
        *,
        names: Sequence[str] | None = None,
        compat: Compat | None = None,
    ) -> None:
        """`reward_funcs`: objects with a method `score`, or functions, see `judge_of`.

        `names`: how results call them; by default their own names. `compat="benchflow"`: the sum of weight times reward, not
        divided by anything; a function that raises counts 0 and its text is in `error`; no functions give 0.

        Raises:
            ConfigError: weights that do not fit.
        """
        if weights is not None and len(weights) != len(reward_funcs):
            raise ConfigError(f"a rubric of {len(reward_funcs)} functions has {len(weights)} weights; give one for each")
        numbers = [1.0] * len(reward_funcs) if weights is None else [float(weight) for weight in weights]
        if not all(math.isfinite(weight) for weight in numbers) or (compat is None and any(w < 0 for w in numbers)):
            raise ConfigError(f"the weights of a rubric must be finite and not below 0: {list(weights or ())}")
        if compat is None and not sum(numbers) > 0:
            raise ConfigError("a rubric needs a function with a weight above 0")
        if weights is None and compat is not None and numbers:
            numbers = [1.0 / len(numbers)] * len(numbers)
        called = unique_names(names if names is not None else [name_of(func) for func in reward_funcs])
        self._parts = [
            Part(name, judge_of(func), weight) for name, func, weight in zip(called, reward_funcs, numbers, strict=True)
        ]
        self._compat = compat

    async def score(self, rollout_dir: Path | str) -> VerifyResult:
        """Score the folder of an earlier trial (or any folder that holds what the functions look for).

        Raises:
            VerifierError and its kinds: a function raised, or what it wants to look at was not kept.
        """
        async with recorded_trial(Path(rollout_dir)) as trial:
            return await self.judge(trial)

    async def judge(self, trial: TrialView) -> VerifyResult:
        """Call every function with the trial, all at once, and weigh what they give.

        Raises:
            VerifierError and its kinds.
        """
        outcomes = await asyncio.gather(*(_outcome(part, trial) for part in self._parts))
        pairs = list(zip(self._parts, outcomes, strict=True))
        failed = [(part, outcome) for part, outcome in pairs if isinstance(outcome, RolloutError)]
        if failed and self._compat is None:
            raise _combined(failed)
        given = [(part, outcome) for part, outcome in pairs if isinstance(outcome, VerifyResult)]
        if len(self._parts) == 1 and len(given) == 1 and self._compat is None:
            part, only = given[0]
            return _with_parts(only, only.rewards, [(part, only)], None)
        total = sum(part.weight * _primary(part, outcome) for part, outcome in given)
        if self._compat is None:
            total /= sum(part.weight for part in self._parts)
        rewards = {"reward": total}
        for part, outcome in given:
            rewards.setdefault(part.name, _primary(part, outcome))
            for key, value in outcome.rewards.items():
                if key != "reward" and len(outcome.rewards) > 1:
                    rewards.setdefault(f"{part.name}.{key}", value)
        error = "; ".join(f"{part.name}: {fault}" for part, fault in failed) or None
        return _with_parts(VerifyResult(rewards=rewards), rewards, given, error)


def judge_of(func: Any) -> Judge:
    """What calls a reward function of any shape with a trial.

    An object with a method `score` is called with the trial, or with its folder when the method says so (the parameter is
    called `rollout_dir`, or annotated as a Path). A function whose parameter is called `trial` gets the trial, one that takes
    a folder gets that; any other is a Python verifier and is called by the names of its parameters: `task`, `metadata`,
    `episode`, `trajectory`. All may be async.

    Raises:
        ConfigError: it cannot be called.
    """
    method = getattr(func, "score", None)
    evaluate = getattr(func, "evaluate", None)
    called = method if callable(method) else evaluate if callable(evaluate) else func
    if not callable(called):
        raise ConfigError(f"{func!r} is no reward function: it has no method `score` and cannot be called")
    takes = _first_parameter(called)
    if takes == "folder":
        return _judge(lambda trial: called(trial.trial_dir))
    if takes == "trial" or callable(method):
        return _judge(called)
    return _judge(lambda trial: _evaluate(called, trial))


def in_process_of_its_own(module: str, function: str) -> Judge:
    """A judge that calls an importable Python verifier in a process of its own."""

    async def judge(trial: TrialView) -> VerifyResult:
        said = await trial.run_python(
            PythonCall(
                target="rollout.core.trial.verify_function:evaluate",
                name=f"{module}:{function}",
                arguments=await call_arguments(trial, file=None, module=module, function=function, sandbox=False),
                env=trial.env,
                sink=trial.sink,
            )
        )
        return msgspec.convert(said, VerifyResult)

    return judge


def wants_trial(function: Any) -> bool:
    """Whether a function is to be called with the trial, and not as a Python verifier."""
    return _first_parameter(function) is not None


def name_of(func: Any) -> str:
    """How a reward function calls itself: its attribute `name`, a function's name, an object's class."""
    own = getattr(func, "name", None)
    if isinstance(own, str) and own:
        return own
    return str(getattr(func, "__name__", None) or type(func).__name__)


def unique_names(names: Sequence[str]) -> list[str]:
    """The names, with `_1`, `_2` ... where one was there before."""
    taken: set[str] = set()
    unique = []
    for name in names:
        number, candidate = 0, name
        while candidate in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate)
        unique.append(candidate)
    return unique


def _judge(call: Callable[[TrialView], Any]) -> Judge:
    async def judge(trial: TrialView) -> VerifyResult:
        value = call(trial)
        if inspect.isawaitable(value):
            value = await value
        return coerce(value, "it")

    return judge


async def _evaluate(function: Callable[..., Any], trial: TrialView) -> Any:
    episode = await told(trial)
    last = episode.trajectories[-1].to_dict() if episode.trajectories else {}
    trajectory = {**last, "output": episode.answer}
    known = {"task": trial.task, "metadata": trial.task.metadata, "episode": episode, "trajectory": trajectory}
    try:
        value = call_by_name(function, known)
    except Rejected as error:
        raise VerifierError(str(error)) from error
    return await value if inspect.isawaitable(value) else value


def _first_parameter(function: Any) -> Literal["trial", "folder"] | None:
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return None
    if not parameters:
        return None
    first = parameters[0]
    said = first.annotation if isinstance(first.annotation, str) else getattr(first.annotation, "__name__", "")
    if first.name == "trial" or said.endswith("TrialView"):
        return "trial"
    if first.name in _PATH_NAMES or said in ("Path", "pathlib.Path", "PosixPath"):
        return "folder"
    return None


async def _outcome(part: Part, trial: TrialView) -> VerifyResult | RolloutError:
    try:
        with boundary(VerifierError, "it raised"):
            result = await part.judge(trial)
            return msgspec.structs.replace(result, rewards=check_rewards(result.rewards))
    except RolloutError as error:
        return error


def _combined(failed: Sequence[tuple[Part, RolloutError]]) -> RolloutError:
    """One error for all that failed. What is not about the verdict (the sandbox is gone ...) stays what it is."""
    for _, error in failed:
        if not isinstance(error, VerifierError):
            return error
    part, first = failed[0]
    if len(failed) == 1:
        combined = type(first)(f"{part.name}: {first}")
    else:
        combined = VerifierError("; ".join(f"{part.name}: {error}" for part, error in failed))
    combined.__cause__ = first
    return combined


def _primary(part: Part, outcome: VerifyResult) -> float:
    reward = primary_reward(outcome.rewards)
    if reward is None:
        raise VerifierError(f"{part.name} gave {', '.join(outcome.rewards)}, and none is called `reward`")
    return reward


def _with_parts(
    verdict: VerifyResult, rewards: dict[str, float], given: Sequence[tuple[Part, VerifyResult]], error: str | None
) -> VerifyResult:
    """The verdict with the parts that it is made of, named."""
    now = datetime.now(UTC)
    items = {part.name: reward for part, outcome in given if (reward := primary_reward(outcome.rewards)) is not None}
    events = [event for part, outcome in given for event in outcome.events or _event(part, outcome, now)]
    details = {part.name: outcome.details for part, outcome in given if outcome.details}
    warnings = [f"{part.name}: {warning}" for part, outcome in given for warning in outcome.warnings]
    return VerifyResult(
        rewards=rewards,
        exit_code=verdict.exit_code,
        source=verdict.source or " + ".join(part.name for part, _ in given) or None,
        warnings=tuple(warnings),
        items=items,
        events=tuple(events),
        error=error,
        details=details,
    )


def _event(part: Part, outcome: VerifyResult, now: datetime) -> list[RewardEvent]:
    reward = primary_reward(outcome.rewards)
    return [] if reward is None else [RewardEvent(reward=reward, source=part.name, ts=now)]
