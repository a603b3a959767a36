"""Servers of the Model Context Protocol in agents' own configuration files."""

from __future__ import annotations

import json

import tomli
from hypothesis import given
from hypothesis import strategies as st

from rollout import McpServer
from rollout_agents.mcp import codex, gemini, opencode

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
BLOCKS = st.dictionaries(NAMES, TEXT, max_size=3)
STDIO = st.builds(McpServer, name=NAMES, command=NAMES, args=st.lists(TEXT, max_size=3), env=BLOCKS)
WEB = st.builds(McpServer, name=NAMES, url=NAMES, headers=BLOCKS)


@given(st.lists(STDIO | WEB, max_size=3, unique_by=lambda server: server.name))
def test_what_codex_reads_is_toml_that_says_the_same(servers: list[McpServer]) -> None:
    read = tomli.loads(codex(servers)).get("mcp_servers", {})
    assert read == {
        server.name: {"command": server.command, "args": server.args, "env": server.env}
        if server.command is not None
        else {"url": server.url, "http_headers": server.headers}
        for server in servers
    }


def test_gemini_and_opencode_tell_the_transports_apart() -> None:
    servers = [
        McpServer(name="a", command="x", args=["1"], env={"K": "v"}),
        McpServer(name="b", url="http://b"),
        McpServer(name="c", url="http://c", transport="streamable-http", headers={"H": "v"}),
    ]
    assert json.loads(gemini(servers))["mcpServers"] == {
        "a": {"command": "x", "args": ["1"], "env": {"K": "v"}, "trust": True},
        "b": {"url": "http://b", "headers": {}, "trust": True},
        "c": {"httpUrl": "http://c", "headers": {"H": "v"}, "trust": True},
    }
    assert json.loads(opencode(servers))["mcp"] == {
        "a": {"type": "local", "command": ["x", "1"], "environment": {"K": "v"}, "enabled": True},
        "b": {"type": "remote", "url": "http://b", "headers": {}, "enabled": True},
        "c": {"type": "remote", "url": "http://c", "headers": {"H": "v"}, "enabled": True},
    }
