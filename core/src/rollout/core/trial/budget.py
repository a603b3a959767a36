"""What the agent of one trial may use: its prompt is cancelled when the budget is used up."""

from __future__ import annotations

import asyncio
from types import TracebackType

from rollout.core.errors import BudgetExceededError
from rollout.core.records import Budget
from rollout.core.types import Usage


class TrialBudget:
    """Around the agent's work: cancels the block and raises BudgetExceededError. It knows what `spent` is told meanwhile."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._limit: asyncio.Timeout | None = None
        self._why = f"the agent was still working after the {budget.wall_sec or 0:g} s of its budget"

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
