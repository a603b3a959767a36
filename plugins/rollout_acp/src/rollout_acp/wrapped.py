"""`acpx/AGENT`: an agent that is installed and configured as always, and spoken to over ACP."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rollout import API_VERSION, LIVE_STDIO, AgentContext, ConfigError, TrajectoryReport
from rollout.core.plugins import Plugin, decode_options, find
from rollout_acp.options import TRANSPORTS, SessionOptions
from rollout_acp.session import AcpSession


class AcpxOptions(SessionOptions, frozen=True, kw_only=True):
    agent: str
    """The agent plugin."""
    options: dict[str, Any] = {}
    """Its options."""

    def __post_init__(self) -> None:
        super().__post_init__()
        wrapped(self)


class AcpxAgent:
    """Another agent plugin over ACP. `acpx/AGENT` as an agent's name is this agent with that plugin.

    The plugin's installation, variables and credentials are its own; its class says with `acp_command(options)` how it is started
    so that it speaks ACP.
    """

    api_version = API_VERSION
    options_type: ClassVar[type[AcpxOptions]] = AcpxOptions
    needs_capabilities = frozenset({LIVE_STDIO})

    def __init__(self, options: AcpxOptions, context: AgentContext) -> None:
        plugin, inner = wrapped(options)
        self._options = options
        self._context = context
        self._command: str = plugin.cls.acp_command(inner)
        self._inner = getattr(plugin.cls, "over_acp", plugin.cls)(inner, context)
        self._session: AcpSession | None = None

    @staticmethod
    def options_of_name(rest: str) -> dict[str, Any]:
        """The options that the rest of `acpx/AGENT` stands for."""
        return {"agent": rest}

    @staticmethod
    def agent_env(options: AcpxOptions, given: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
        """The plugin's own variables."""
        plugin, inner = wrapped(options)
        agent_env = getattr(plugin.cls, "agent_env", None)
        env: dict[str, str] = agent_env(inner, given, environ) if agent_env is not None else {}
        return env

    @staticmethod
    def acp_command(options: AcpxOptions) -> str:
        """The plugin's own: an agent that is spoken to over ACP may be prefixed all the same."""
        plugin, inner = wrapped(options)
        command: str = plugin.cls.acp_command(inner)
        return command

    @classmethod
    def acp_equipment(cls, options: AcpxOptions) -> frozenset[str]:
        """The same: it is spoken to over ACP in any case."""
        return cls.equipment(options)

    @classmethod
    def over_acp(cls, options: AcpxOptions, context: AgentContext) -> Any:
        """What installs it."""
        return cls(options, context)._inner

    @staticmethod
    def equipment(options: AcpxOptions) -> frozenset[str]:
        """What the plugin says of itself over ACP; of one that does not, MCP servers, as the protocol wants it."""
        plugin, inner = wrapped(options)
        own = getattr(plugin.cls, "acp_equipment", None)
        return frozenset(own(inner)) if own is not None else TRANSPORTS

    async def install(self) -> None:
        await self._inner.install()

    def shared_install(self, withheld: frozenset[str]) -> str | None:
        shared = getattr(self._inner, "shared_install", None)
        made_of: str | None = shared(withheld) if shared is not None else None
        return made_of

    async def connect(self) -> AcpSession:
        self._session = AcpSession(self._options, self._command, self._context)
        await self._session.start()
        return self._session

    def trajectory(self, logs: Path) -> TrajectoryReport | None:
        return self._session.report() if self._session is not None else None


class ClaudeOptions(AcpxOptions, frozen=True, kw_only=True):
    agent: str = "claude"


class ClaudeAcpAgent(AcpxAgent):
    """Claude Code over ACP: `acpx/claude` by the name of its adapter."""

    options_type = ClaudeOptions


class CodexOptions(AcpxOptions, frozen=True, kw_only=True):
    agent: str = "codex"


class CodexAcpAgent(AcpxAgent):
    """Codex over ACP: `acpx/codex` by the name of its adapter."""

    options_type = CodexOptions


class PiOptions(AcpxOptions, frozen=True, kw_only=True):
    agent: str = "pi"


class PiAcpAgent(AcpxAgent):
    """pi over ACP: `acpx/pi` by the name of its adapter."""

    options_type = PiOptions


def wrapped(options: AcpxOptions) -> tuple[Plugin, Any]:
    """The plugin that is meant, and its options.

    Raises:
        PluginError: there is none of that name.
        ConfigError: its options are wrong, or it does not speak ACP.
    """
    plugin = find("agents", options.agent)
    inner = decode_options(plugin, options.options, f"agent {options.agent}")
    if getattr(plugin.cls, "acp_command", None) is None or not plugin.cls.acp_command(inner):
        raise ConfigError(f"agent {options.agent} does not speak ACP; give the command of one that does: `acp:COMMAND`")
    return plugin, inner
