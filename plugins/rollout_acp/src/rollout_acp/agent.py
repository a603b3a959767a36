"""The agents `acp` and `acp:COMMAND`: any command that speaks ACP on its standard streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollout import API_VERSION, LIVE_STDIO, AgentContext, ScriptAgent, ScriptOptions, TrajectoryReport
from rollout_acp.options import TRANSPORTS, AcpOptions
from rollout_acp.session import AcpSession


class AcpAgent:
    """Starts `command` in the environment and speaks ACP with it: one session, one prompt after the other.

    `acp:COMMAND` as an agent's name is this agent with that command. It runs as the task's agent user in the task's working
    directory, with the agent's variables. It uses files and commands by itself; the client offers it none.
    """

    api_version = API_VERSION
    options_type = AcpOptions
    needs_capabilities = frozenset({LIVE_STDIO})

    def __init__(self, options: AcpOptions, context: AgentContext) -> None:
        self._options = options
        self._context = context
        self._session: AcpSession | None = None

    @staticmethod
    def options_of_name(rest: str) -> dict[str, Any]:
        """The options that the rest of `acp:COMMAND` stands for."""
        return {"command": rest}

    @staticmethod
    def acp_command(options: AcpOptions) -> str:
        """Its command."""
        return options.command

    @staticmethod
    def equipment(options: AcpOptions) -> frozenset[str]:
        """MCP servers by the protocol, and skills when its command mentions them."""
        return TRANSPORTS | ScriptAgent.equipment_in(options.command)

    async def install(self) -> None:
        await self._script().install()

    def shared_install(self, withheld: frozenset[str]) -> str | None:
        return self._script().shared_install(withheld)

    async def connect(self) -> AcpSession:
        self._session = AcpSession(self._options, self._options.command, self._context)
        await self._session.start()
        return self._session

    def trajectory(self, logs: Path) -> TrajectoryReport | None:
        return self._session.report() if self._session is not None else None

    def _script(self) -> ScriptAgent:
        return ScriptAgent(ScriptOptions(install=self._options.install, execute=self._options.command), self._context)
