"""Reward functions that need nothing: the answer against a text, and the reward that tests left; and those of the Python API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollout.core.errors import RewardMissingError
from rollout.core.plugins import decode_options, find
from rollout.core.protocols import API_VERSION, NoOptions, TrialView
from rollout.core.trial.answer import AnswerSource, answer_of, expected_faults, expected_of
from rollout.core.trial.paths import VERIFIER_LOGS
from rollout.core.trial.recorded import RecordedEnvironment, recorded_trial
from rollout.core.trial.rewards import choose_rewards, read_reward_file
from rollout.core.types import Struct, TaskFault, TaskOutline, VerifyResult


class StringMatchOptions(Struct, frozen=True, kw_only=True):
    expected: str | None = None
    """The text; what the task's metadata says when unset."""
    fuzzy: bool = False
    """1 when the answer contains the text, upper and lower case being the same."""
    answer: AnswerSource = AnswerSource()
    """Where the answer is."""


class StringMatch:
    """1 when the answer is the expected text but for white space around it, else 0."""

    api_version = API_VERSION
    options_type = StringMatchOptions

    def __init__(self, options: StringMatchOptions) -> None:
        self._options = options

    def task_faults(self, task: TaskOutline) -> Iterable[TaskFault]:
        return expected_faults(task, self._options.expected)

    async def score(self, trial: TrialView) -> float:
        options = self._options
        answer = (await answer_of(trial, options.answer)).strip()
        texts = expected_of(trial, options.expected)
        if options.fuzzy:
            return float(any(text.strip().lower() in answer.lower() for text in texts))
        return float(any(text.strip() == answer for text in texts))


class TestReward:
    """The reward of the task's own tests: its script is run, or of an earlier trial read from what it left."""

    __test__ = False  # it is none of pytest's
    api_version = API_VERSION
    options_type = NoOptions
    needs_environment = True

    def __init__(self, options: NoOptions) -> None:
        pass

    async def score(self, trial: TrialView) -> VerifyResult:
        """Raises VerifierError and its kinds, RewardMissingError and RewardInvalidError among them."""
        if not isinstance(trial.environment, RecordedEnvironment):
            # What lies in the logs of a trial that is not over may be the agent's.
            script = find("verifiers", "script")
            verdict: VerifyResult = await script.cls(decode_options(script, {}, "the reward test")).verify(trial)
            return verdict
        folders = (trial.trial_dir, trial.trial_dir / "verifier", trial.trial_dir / "logs" / "verifier")
        files = {str(folder / name): folder / name for folder in folders for name in ("reward.txt", "reward.json")}
        chosen = choose_rewards({name: read_reward_file(path, name) for name, path in files.items()})
        if chosen is None:
            raise RewardMissingError(f"there is no reward.txt or reward.json of {VERIFIER_LOGS} in {trial.trial_dir}")
        source, rewards, warnings = chosen
        return VerifyResult(rewards=rewards, source=source, warnings=tuple(warnings))


class TestRewardFunc:
    """The reward that the task's tests left in the trial's folder."""

    __test__ = False  # it is none of pytest's
    name = "TestRewardFunc"

    async def score(self, rollout_dir: Path) -> VerifyResult:
        async with recorded_trial(rollout_dir) as trial:
            return await TestReward(NoOptions()).score(trial)


class StringMatchRewardFunc:
    """1 when the answer is the expected text; with `fuzzy` when it contains it, upper and lower case being the same."""

    name = "StringMatchRewardFunc"

    def __init__(self, expected: str, fuzzy: bool = False) -> None:
        self._reward = StringMatch(StringMatchOptions(expected=expected, fuzzy=fuzzy))

    async def score(self, trial: TrialView) -> float:
        return await self._reward.score(trial)


class CodeExecRewardFunc:
    """A reward as a function of the trial's folder, sync or async."""

    name = "CodeExecRewardFunc"

    def __init__(self, func: Callable[[Path], float | Mapping[str, float] | Awaitable[float]]) -> None:
        self._func = func

    async def score(self, rollout_dir: Path) -> Any:
        value = self._func(rollout_dir)
        return await value if isinstance(value, Awaitable) else value


class LLMJudgeRewardFunc:
    """A model that judges the answer by criteria. The plugin `llm_judge` does it, which rollout-rewards brings."""

    name = "LLMJudgeRewardFunc"

    def __init__(
        self,
        prompt: str | None = None,
        model: str | None = None,
        *,
        rubric_path: Path | str | None = None,
        criteria: Sequence[str | Mapping[str, Any]] = (),
        judge_model: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`env`: variables with the model's key; the process's own `OPENAI_*` and `ANTHROPIC_*` when None.

        Raises:
            PluginError: rollout-rewards is not installed.
            ConfigError
        """
        given: dict[str, Any] = {
            "prompt": prompt,
            "model": judge_model or model,
            "rubric_path": str(rubric_path) if rubric_path else None,
        }
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if criteria:
            options["criteria"] = list(criteria)
        plugin = find("rewards", "llm_judge")
        self._reward = plugin.cls(decode_options(plugin, options, "LLMJudgeRewardFunc"))
        self._env = env

    async def score(self, trial: TrialView) -> VerifyResult:
        from os import environ

        import msgspec

        own = {name: value for name, value in environ.items() if name.startswith(("OPENAI_", "ANTHROPIC_"))}
        env = own if self._env is None else dict(self._env)
        result: VerifyResult = await self._reward.score(msgspec.structs.replace(trial, env={**env, **trial.env}))
        return result
