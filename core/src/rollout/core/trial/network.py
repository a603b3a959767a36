"""The network of a trial's phases: what the environment starts with, and what agent and verifier have instead."""

from __future__ import annotations

from rollout.core.errors import SandboxError
from rollout.core.protocols import Environment, SwitchableEnvironment
from rollout.core.records import TrialSpec
from rollout.core.trial.deadlines import deadline, foreign
from rollout.core.types import NetworkAccess

_SWITCH_SEC = 60.0


class PhaseNetwork:
    """Of one environment. Nothing happens where no phase asks for anything of its own."""

    def __init__(self, spec: TrialSpec) -> None:
        self._switched = bool(spec.environment.later_networks)
        self._first = NetworkAccess(mode=spec.environment.network, hosts=spec.environment.allowed_hosts)
        self._agents = spec.task.agent_network or self._first
        self._verifiers = spec.task.verifier_network or self._first
        self._now: NetworkAccess | None = None

    async def at_start(self, environment: Environment) -> None:
        await self._set(environment, self._first)

    async def for_agent(self, environment: Environment) -> None:
        await self._set(environment, self._agents)

    async def for_verifier(self, environment: Environment) -> None:
        await self._set(environment, self._verifiers)

    async def _set(self, environment: Environment, access: NetworkAccess) -> None:
        """
        Raises:
            SandboxError and its kinds
        """
        if not self._switched or access == self._now:
            return
        async with deadline(_SWITCH_SEC, SandboxError, "changing the network"):
            with foreign(SandboxError, "changing the network"):
                if not isinstance(environment, SwitchableEnvironment):
                    raise SandboxError("the environment's network cannot be changed")
                self._now = None
                await environment.set_network(access)
        self._now = access
