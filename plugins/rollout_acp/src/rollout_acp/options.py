"""What a job file may say about an agent that speaks ACP."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from rollout import Struct

TRANSPORTS = frozenset({"stdio", "sse", "streamable-http"})
"""Of MCP servers; an agent says for itself whether it speaks the latter two."""

Action = Literal["allow", "deny", "ask"]
Seconds = Annotated[float, Meta(ge=0)]


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
