"""What a job file may say about an agent that speaks ACP."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from rollout import Struct

Action = Literal["allow", "deny", "ask"]
Seconds = Annotated[float, Meta(ge=0)]


class McpServer(Struct, frozen=True, kw_only=True):
    """A server of the Model Context Protocol that the agent is told of: a `command`, or a `url`."""

    name: str
    command: str | None = None
    """Absolute path of its program, in the environment."""
    args: list[str] = []
    env: dict[str, str] = {}
    """Its variables. A value may be `$NAME`: the agent's variable of that name."""
    url: str | None = None
    type: Literal["http", "sse"] = "http"
    """How `url` is spoken to."""
    headers: dict[str, str] = {}
    """Sent with every request. A value may be `$NAME`: the agent's variable of that name."""

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ValueError(f"MCP server {self.name}: give exactly one of `command` and `url`")

    def message(self, env: dict[str, str]) -> dict[str, Any]:
        """The server as `session/new` tells it."""
        if self.command is not None:
            return {"name": self.name, "command": self.command, "args": self.args, "env": _pairs(self.env, env)}
        return {"type": self.type, "name": self.name, "url": self.url, "headers": _pairs(self.headers, env)}


class PermissionRule(Struct, frozen=True, kw_only=True):
    """An item of `permissions`; the first rule that matches decides, and what none matches is allowed."""

    action: Action
    tool: str = "*"
    """Glob over the title of the call that asks."""
    kind: str = "*"
    """Glob over its kind: read, edit, delete, move, search, execute, think, fetch, switch_mode, other."""


class SessionOptions(Struct, frozen=True, kw_only=True):
    """What every session may be told, whatever agent it is with."""

    model: str | None = None
    """The model, as the agent calls it. An agent that cannot be told ends the trial."""
    auth_method: str | None = None
    """The authentication method to use before the session, as the agent calls it."""
    mcp_servers: list[McpServer] = []
    """Servers that the agent is to use."""
    permissions: list[PermissionRule] = []
    """What the agent may do when it asks; everything, unless a rule says otherwise."""
    ask: str | None = None
    """`package.module:function` that decides where a rule says `ask`: it is called with the request's parameters and returns
    whether they are allowed; it may be `async`."""
    idle_timeout_sec: Seconds = 600.0
    """An agent that says nothing for so long is ended; 0 is no limit besides the agent's timeout."""
    start_timeout_sec: Seconds = 60.0
    """How long it may take to answer `initialize` and `session/new`; 0 is no limit besides the install timeout."""

    def __post_init__(self) -> None:
        if any(rule.action == "ask" for rule in self.permissions) and self.ask is None:
            raise ValueError("a rule says `ask`, and `ask` names no function")
        if self.ask is not None and not all(self.ask.rpartition(":")[::2]):
            raise ValueError(f"`ask` is {self.ask!r}; write `package.module:function`")


class AcpOptions(SessionOptions, frozen=True, kw_only=True):
    command: Annotated[str, Meta(min_length=1)]
    """Command line that speaks ACP on its standard streams, for `sh`."""
    install: str | None = None
    """Script that installs the agent inside the environment."""


def _pairs(block: dict[str, str], env: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": env.get(value[1:], "") if value.startswith("$") else value} for name, value in block.items()]
