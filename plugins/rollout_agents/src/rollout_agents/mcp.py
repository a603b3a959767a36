"""MCP servers as agents' own configuration files write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

from rollout import McpServer

Format = Literal["", "claude", "codex", "gemini", "opencode"]
"""Of the file that `$mcp_config` names. `claude` is the form that most agents read, and is there in any case."""

STDIO, SSE, HTTP = "stdio", "sse", "streamable-http"

SPOKEN: dict[str, frozenset[str]] = {
    "": frozenset(),
    "claude": frozenset({STDIO, SSE, HTTP}),
    "codex": frozenset({STDIO, HTTP}),
    "gemini": frozenset({STDIO, SSE, HTTP}),
    "opencode": frozenset({STDIO, SSE, HTTP}),
}
"""Format to the transports that it can tell of."""


def codex(servers: Sequence[McpServer]) -> str:
    """Tables of Codex's config.toml. What JSON writes for a text, a list of them and a key is TOML too."""
    lines: list[str] = []
    for server in servers:
        lines.append(f"[mcp_servers.{_toml(server.name)}]")
        if server.command is not None:
            lines += [f"command = {_toml(server.command)}", f"args = {_toml(server.args)}", f"env = {_table(server.env)}"]
        else:
            lines += [f"url = {_toml(server.url)}", f"http_headers = {_table(server.headers)}"]
        lines.append("")
    return "\n".join(lines)


def gemini(servers: Sequence[McpServer]) -> str:
    """A settings.json of Gemini CLI and what was made of it: the servers are trusted, for nobody is there to be asked."""
    told: dict[str, Any] = {}
    for server in servers:
        if server.command is not None:
            how: dict[str, Any] = {"command": server.command, "args": server.args, "env": server.env}
        else:
            how = {"url" if server.spoken == SSE else "httpUrl": server.url, "headers": server.headers}
        told[server.name] = {**how, "trust": True}
    return json.dumps({"mcpServers": told}, indent=2)


def opencode(servers: Sequence[McpServer]) -> str:
    """A config of opencode's."""
    told: dict[str, Any] = {}
    for server in servers:
        if server.command is not None:
            how: dict[str, Any] = {"type": "local", "command": [server.command, *server.args], "environment": server.env}
        else:
            how = {"type": "remote", "url": server.url, "headers": server.headers}
        told[server.name] = {**how, "enabled": True}
    return json.dumps({"mcp": told}, indent=2)


WRITERS: dict[str, Callable[[Sequence[McpServer]], str]] = {"codex": codex, "gemini": gemini, "opencode": opencode}
"""Formats other than the common one."""


def _toml(value: Any) -> str:
    # TOML's basic strings are JSON's, but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def _table(block: dict[str, str]) -> str:
    pairs = ", ".join(f"{_toml(key)} = {_toml(value)}" for key, value in block.items())
    return f"{{ {pairs} }}" if pairs else "{}"
