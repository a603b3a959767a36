"""What the trials of a process share: the backend, its images, the hooks, the plugins found for them, the host's variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollout.core.config.interpolate import expand
from rollout.core.hooks import HookBus
from rollout.core.plugins import Plugin, decode_options, find
from rollout.core.protocols import EnvironmentBackend
from rollout.core.records import AgentSpec, VerifierSpec
from rollout.core.trial.images import Images
from rollout.core.trial.installs import Installs
from rollout.core.trial.python_processes import PythonProcesses
from rollout.core.trial.redact import Redactor


@dataclass
class Services:
    """Made once per job (or per `rollout trial run`), used by every trial."""

    backend: EnvironmentBackend
    images: Images
    installs: Installs
    hooks: HookBus
    environ: Mapping[str, str]
    redactor: Redactor
    python: PythonProcesses
    """Where Python verifiers and reward functions run; no process is started before the first call."""
    plugins: dict[str, str] = field(default_factory=dict)
    """Distribution to version of every plugin in use."""
    _agents: dict[int, tuple[AgentSpec, Plugin, Any]] = field(default_factory=dict)
    _verifiers: dict[int, tuple[VerifierSpec, Plugin, Any]] = field(default_factory=dict)

    def agent(self, spec: AgentSpec) -> tuple[Plugin, Any]:
        """The agent's plugin and its decoded options. Specs are shared between trials, so this is a look-up.

        Raises:
            PluginError
        """
        known = self._agents.get(id(spec))
        if known is None:
            plugin = find("agents", spec.plugin)
            known = self._agents[id(spec)] = (spec, plugin, decode_options(plugin, spec.options, f"agent {spec.name}"))
        return known[1], known[2]

    def verifier(self, spec: VerifierSpec) -> tuple[Plugin, Any]:
        """The verifier's plugin and its decoded options.

        Raises:
            PluginError
        """
        known = self._verifiers.get(id(spec))
        if known is None:
            plugin = find("verifiers", spec.plugin)
            known = self._verifiers[id(spec)] = (spec, plugin, decode_options(plugin, spec.options, "verifier"))
        return known[1], known[2]

    async def aclose(self) -> None:
        """End the processes of Python verifiers. Idempotent."""
        await self.python.aclose()

    def expand(self, block: Mapping[str, str]) -> dict[str, str]:
        """The block with `${NAME}` replaced by the host's values.

        Raises:
            ConfigError: a variable without default is unset.
        """
        return {key: expand(text, self.environ) for key, text in block.items()}
