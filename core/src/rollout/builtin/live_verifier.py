"""The `live` verifier: an evaluator that was handed to `Runner` or `run_dataset`, called in this process."""

from __future__ import annotations

import inspect
from typing import Any

from rollout.core.aio import in_own_thread
from rollout.core.errors import RewardInvalidError
from rollout.core.protocols import API_VERSION, TrialView
from rollout.core.trial.coercion import coerce
from rollout.core.trial.live import find_live
from rollout.core.trial.python_worker import Rejected, call_by_name
from rollout.core.trial.verify_function import Known
from rollout.core.types import Struct, VerifyResult


class LiveVerifierOptions(Struct, frozen=True, kw_only=True):
    name: str
    """The object's name in this process."""


class LiveVerifier:
    """Calls the object, or its method `evaluate`, as the `python` verifier calls functions. It has no deadline of its own and
    no process to be killed: for evaluators that are trusted."""

    api_version = API_VERSION
    options_type = LiveVerifierOptions
    needs_environment = False

    def __init__(self, options: LiveVerifierOptions) -> None:
        self._evaluator = find_live(options.name)
        self._name = options.name

    async def verify(self, trial: TrialView) -> VerifyResult:
        """Raises RewardInvalidError: what it returned is no verdict, or it wants what there is not."""
        function: Any = getattr(self._evaluator, "evaluate", self._evaluator)
        known = Known(trial.task.to_dict(), trial.episode.to_dict(), sandbox=False)
        try:
            value = await in_own_thread(lambda: call_by_name(function, known))
        except Rejected as error:
            raise RewardInvalidError(str(error)) from error
        if inspect.isawaitable(value):
            value = await value
        return coerce(value, f"{getattr(function, '__qualname__', 'the evaluator')}()")
