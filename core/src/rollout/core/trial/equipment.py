"""What an agent is given besides its prompt: MCP servers it is told of, and skills. Found by two variables of the agent's."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from rollout.core.errors import StartError
from rollout.core.protocols import Environment
from rollout.core.records import TrialSpec
from rollout.core.trial.paths import SCRIPTS
from rollout.core.types import Command, McpServer

MCP_CONFIG_VARIABLE = "ROLLOUT_MCP_CONFIG"
"""A JSON file of the form that most agents read: `{"mcpServers": {NAME: ...}}`."""

SKILLS_VARIABLE = "ROLLOUT_SKILLS_DIR"
"""A folder of folders with a SKILL.md each."""

EQUIPMENT_VARIABLES = (MCP_CONFIG_VARIABLE, SKILLS_VARIABLE)

MCP_CONFIG = f"{SCRIPTS}/mcp.json"
SKILLS_DIR = f"{SCRIPTS}/skills"

# $1: the file, $2: its owner or empty. What it holds is on stdin, because secrets may be in it.
_WRITE = """
set -e
folder=$(dirname "$1")
[ -d "$folder" ] || { mkdir -p "$folder"; chmod 755 "$folder"; }
rm -f -- "$1"
umask 077
cat > "$1"
if [ -n "$2" ]; then chown "$2" "$1"; fi
"""


def servers_of(spec: TrialSpec, expand: Callable[[Mapping[str, str]], dict[str, str]]) -> tuple[McpServer, ...]:
    """The task's servers and the job's for this agent, expanded; of one name the job's counts."""
    own = {server.name for server in spec.agent.mcp_servers}
    told = (*(server for server in spec.task.mcp_servers if server.name not in own), *spec.agent.mcp_servers)
    return tuple(replace(server, env=expand(server.env), headers=expand(server.headers)) for server in told)


def mcp_config(servers: Sequence[McpServer]) -> dict[str, Any]:
    """`{"mcpServers": {...}}`, as Claude Code and most others read it."""
    told: dict[str, dict[str, Any]] = {}
    for server in servers:
        if server.command is not None:
            told[server.name] = {"type": "stdio", "command": server.command, "args": server.args, "env": server.env}
        else:
            kind = "sse" if server.spoken == "sse" else "http"
            told[server.name] = {"type": kind, "url": server.url, "headers": server.headers}
    return {"mcpServers": told}


async def write_private(environment: Environment, path: str, text: str, *, user: str | None, root: str | None) -> None:
    """A file of the environment that only `user` can read.

    Raises:
        StartError
    """
    argv = ("sh", "-c", _WRITE, "sh", path, (user or "") if root is not None else "")
    result = await environment.exec(Command(argv=argv, stdin=text.encode(), user=root, cwd="/"))
    if result.exit_code != 0:
        said = (result.stderr or result.stdout).decode("utf-8", "replace").strip()
        raise StartError(f"{path} cannot be written: {said[-300:] or f'exit code {result.exit_code}'}")


async def equip(
    environment: Environment,
    spec: TrialSpec,
    servers: Sequence[McpServer],
    *,
    root: str | None,
    warn: Callable[[str], None],
) -> dict[str, str]:
    """Put what the agent is given into the environment; the variables by which the agent finds it.

    Raises:
        StartError
    """
    variables = {}
    if servers:
        await write_private(environment, MCP_CONFIG, json.dumps(mcp_config(servers), indent=2), user=spec.agent.user, root=root)
        variables[MCP_CONFIG_VARIABLE] = MCP_CONFIG
    brought = spec.task.skills_dir and await _skills_of_task(environment, spec.task.skills_dir, spec.environment.workdir)
    if spec.task.skills_dir and not brought:
        warn(f"the task's skills_dir {spec.task.skills_dir} is not in the environment: the agent gets no skills of it")
    if spec.agent.skills:
        for skill in map(Path, spec.agent.skills):
            await environment.upload(skill, posixpath.join(SKILLS_DIR, skill.name), owner=spec.agent.user)
        if brought:
            await _add_skills(environment, brought, root)
        variables[SKILLS_VARIABLE] = SKILLS_DIR
    elif brought:
        variables[SKILLS_VARIABLE] = brought
    return variables


async def _skills_of_task(environment: Environment, folder: str, workdir: str | None) -> str | None:
    """The folder, absolute; None when it is not there."""
    argv = ("sh", "-c", 'cd -- "$1" 2> /dev/null && pwd -P', "sh", folder)
    result = await environment.exec(Command(argv=argv, cwd=workdir))
    return result.stdout.decode("utf-8", "surrogateescape").rstrip("\n") if result.exit_code == 0 else None


async def _add_skills(environment: Environment, folder: str, root: str | None) -> None:
    """Those of the task beside those of the job, which win."""
    script = 'for skill in "$1"/*; do [ -e "$2/${skill##*/}" ] || cp -R "$skill" "$2/" || exit 1; done; chmod -R a+rX "$2"'
    command = Command(argv=("sh", "-c", script, "sh", folder, SKILLS_DIR), user=root, cwd="/")
    result = await environment.exec(command)
    if result.exit_code != 0:
        raise StartError(f"the skills in {folder} cannot be copied: {result.stderr.decode('utf-8', 'replace').strip()[-300:]}")
