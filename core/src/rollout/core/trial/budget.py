"""What the agent of one trial may use: its prompt is cancelled when the budget is used up."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from rollout.core.errors import BudgetExceededError
from rollout.core.records import Budget
from rollout.core.types import Usage


class TrialBudget:
    """Around the agent's work: cancels the block and raises BudgetExceededError. It knows what `spent` is told meanwhile."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._limit: asyncio.Timeout | None = None
        self._why = f"the agent was still working after the {budget.wall_sec or 0:.3g} s of its budget"

    def spent(self, usage: Usage) -> None:
        """What the agent has used so far; totals, not what was added."""
        why = self._budget.exceeded(usage)
        if why is not None and self._limit is not None and not self._limit.expired():
            self._why = f"the agent's budget is used up: {why}"
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> None:
        self._limit = asyncio.timeout(self._budget.wall_sec)
        await self._limit.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        limit, self._limit = self._limit, None
        assert limit is not None
        try:
            await limit.__aexit__(kind, error, trace)
        except TimeoutError as timeout:
            raise BudgetExceededError(self._why) from timeout


def left_of(budget: Budget, usage: Usage | None, agent_sec: float) -> Budget:
    """What is left of a trial's budget for its next step; what is used up is none at all."""
    usage = usage or Usage()
    return Budget(
        cost_usd=_left(budget.cost_usd, usage.cost_usd),
        tokens=_left(budget.tokens, (usage.input_tokens or 0) + (usage.output_tokens or 0)),
        wall_sec=_left(budget.wall_sec, agent_sec),
    )


def _left(allowed: Any, used: float | None) -> Any:
    return None if allowed is None else max(allowed - (used or 0), 0)
