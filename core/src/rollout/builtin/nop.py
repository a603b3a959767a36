"""The `nop` agent: does nothing. The negative control of a dataset, which must get no reward."""

from __future__ import annotations

from rollout.core.protocols import API_VERSION, AgentContext, NoOptions
from rollout.core.types import EVERY_EQUIPMENT, AgentTurn


class NopAgent:
    """Does nothing: a task that rewards it is broken."""

    needs_environment = False
    api_version = API_VERSION
    options_type = NoOptions

    @staticmethod
    def equipment(options: NoOptions) -> frozenset[str]:
        """Everything: it uses none of it."""
        return EVERY_EQUIPMENT

    def __init__(self, options: NoOptions, context: AgentContext) -> None:
        pass

    async def install(self) -> None:
        pass

    async def connect(self) -> NopAgent:
        return self

    async def prompt(self, text: str) -> AgentTurn:
        return AgentTurn()

    async def close(self) -> None:
        pass
