"""Real agents, installed for real by their own package managers, solve a task by what a scripted model tells them.

One job runs several agents, each of which asks the model server at an address of its own. What package managers of this machine
need to reach their indexes is given as a user would give it, as variables of the agents.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from connect_proxy import connect_proxy
from rollout.core.atif import AtifTrajectory, decode_atif
from rollout.testing.modelserver import ModelServer, Question, Recorded, Say, ToolUse

TASK = Path(__file__).parents[1] / "examples" / "quickstart" / "tasks" / "fix-interval-merge"
SOLUTION = (TASK / "solution" / "solve.sh").read_text()
SERVER = Path(__file__).with_name("mcp_server.py").read_text()
BOX = "4711"
SKILL = "How boxes of the vault are opened"
KEY = "sk-Zq81-not-a-real-key-7Hd2"
MORE = {'"no-network"': '"public"', '"512Mi"': '"4Gi"', '"1Gi"': '"10Gi"', "timeout_sec = 120.0": "timeout_sec = 600.0"}
"""What agents need of the task that its solution does not."""


@dataclass(frozen=True)
class RealAgent:
    """How one agent is pointed at the model server."""

    model: str
    path: str = ""
    """What follows the server's address."""
    edits: bool = False
    """It runs no commands: the model answers with the file."""
    equipped: bool = False
    """It is given an MCP server and a skill."""
    acp: str = ""
    """It is this agent, spoken to over ACP."""

    def block(self, url: str) -> dict[str, Any]:
        """What a job says of it."""
        options = {"model": self.model, "base_url": f"{url}{self.path}"}
        return {"type": f"acpx/{self.acp}", "options": {"options": options}} if self.acp else {"options": options}


AGENTS = {
    "claude": RealAgent("claude-sonnet-4-5", equipped=True),
    "codex": RealAgent("gpt-5.1-codex", "/v1", equipped=True),
    "gemini": RealAgent("gemini-2.5-flash", equipped=True),
    "opencode": RealAgent("anthropic/claude-sonnet-4-5", "/v1", equipped=True),
    "opencode-acp": RealAgent("anthropic/claude-sonnet-4-5", "/v1", equipped=True, acp="opencode"),
    "mini-swe-agent": RealAgent("openai/scripted", "/v1"),
    "aider": RealAgent("openai/scripted", "/v1", edits=True),
}
OTHERS = {
    "claude-acp": RealAgent("claude-sonnet-4-5", acp="claude"),
    "codex-acp": RealAgent("gpt-5.1-codex", "/v1", equipped=True, acp="codex"),
    "gemini-acp": RealAgent("gemini-2.5-flash", equipped=True, acp="gemini"),
    "pi-acp": RealAgent("anthropic/claude-sonnet-4-5", acp="pi"),
    "qwen-code": RealAgent("scripted", "/v1"),
    "pi": RealAgent("anthropic/claude-sonnet-4-5"),
    "kimi": RealAgent("scripted"),
    "copilot": RealAgent("scripted", "/v1"),
    "cline": RealAgent("openai-native/scripted", "/v1"),
}
"""Those that are tried where ROLLOUT_ALL_AGENTS is set."""
ALL = AGENTS | OTHERS


@dataclass(frozen=True)
class Ran:
    """What a job of agents left."""

    folder: Path
    requests: list[Recorded]
    output: str

    def trial(self, agent: str) -> Path:
        [folder] = (self.folder / "jobs").rglob(f"{agent}/*/*__1")
        return folder

    def result(self, agent: str) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.trial(agent) / "result.json").read_text())
        return result

    def trajectory(self, agent: str) -> AtifTrajectory:
        return decode_atif((self.trial(agent) / "trajectory.json").read_bytes())

    def asked(self, agent: str) -> list[Recorded]:
        """What the agent asked the model."""
        return [request for request in self.requests if request.path.startswith(f"/{agent}/")]

    def told(self, agent: str) -> str:
        """Everything that was printed, for whoever has to find out why the agent failed."""
        logs = [*sorted((self.trial(agent)).rglob("std*.txt")), *sorted((self.folder / "jobs/job/images").rglob("std*.txt"))]
        return self.output + "".join(f"\n--- {file}\n{file.read_text(errors='replace')[-4000:]}" for file in logs)


def script(question: Question) -> Say | ToolUse:
    """Solve the task in one command (or, for an agent without a shell, by one edit), then hand in."""
    if not question.tools:
        if "interval" in question.text and "SEARCH/REPLACE" not in question.text and "*file listing*" in question.text:
            return Say(f"I will solve it in one go.\n\nintervals.py\n```python\n{_repaired()}```\n")
        return Say("Intervals")  # a side question, of a title or the like
    mini = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" in question.text
    box = next((name for name in question.tools if name.endswith("open_box")), None)
    if question.turn == 1 and box is not None:
        return ToolUse(box)
    if question.turn > (1 if mini else 0):
        return Say("It is solved.")
    if question.turn == 1:
        return ToolUse("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})
    coded = b64encode(SOLUTION.encode()).decode()  # some agents run nothing that looks like a command substitution
    command = f"echo {coded} | base64 -d > /tmp/solve.sh && bash /tmp/solve.sh"
    described = {"command": command, "description": "Solve it"}
    return ToolUse(
        "Bash",
        described,
        text="I will solve it in one go.",
        others=(
            ("bash", described),
            ("run_shell_command", described),
            ("exec_command", {"cmd": command}),
            ("shell_command", {"command": command}),
            ("shell", {"command": ["bash", "-lc", command]}),
            ("run_commands", {"commands": [command]}),
        ),
    )


def run(
    folder: Path, agents: Iterable[str], environment: dict[str, Any], *, address: str = "127.0.0.1", proxy: bool = False
) -> Ran:
    """One job of these agents; the sandboxes reach this machine at `address`, and package indexes only by a `proxy` there."""
    return asyncio.run(_run(folder, agents, environment, address, proxy))


async def _run(folder: Path, agents: Iterable[str], environment: dict[str, Any], address: str, proxy: bool) -> Ran:
    tasks = folder / "tasks" / TASK.name
    shutil.copytree(TASK, tasks)
    text = (tasks / "task.toml").read_text()
    for old, new in MORE.items():
        assert old in text
        text = text.replace(old, new)
    (tasks / "task.toml").write_text(text)
    env = package_managers()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ModelServer(script, host=address))
        if proxy:
            env |= {"HTTPS_PROXY": await stack.enter_async_context(connect_proxy(address)), "NO_PROXY": address}
        blocks = [
            {
                "name": name,
                **ALL[name].block(f"{server.url}/{name}"),
                "env": env,
                **(equipment(folder) if ALL[name].equipped else {}),
            }
            for name in agents
        ]
        job = {"name": "job", "environment": environment, "agents": blocks, "datasets": [{"path": "tasks"}]}
        (folder / "job.json").write_text(json.dumps(job))
        environ = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_BASE_URL"))}
        environ |= {"ROLLOUT_CACHE_DIR": str(folder / "cache")}
        environ |= {"BOX": BOX}
        environ |= {f"{vendor}_API_KEY": KEY for vendor in ("ANTHROPIC", "OPENAI", "GEMINI", "KIMI", "COPILOT_PROVIDER")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rollout", "run", "job.json",
            cwd=folder, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await process.communicate()
        return Ran(folder, list(server.requests), output.decode())


def equipment(folder: Path) -> dict[str, Any]:
    """A server that runs in the environment, and a skill, as a job gives them."""
    skill = folder / "skills" / "box-opening" / "SKILL.md"
    skill.parent.mkdir(parents=True, exist_ok=True)
    skill.write_text(f"---\nname: box-opening\ndescription: {SKILL}\n---\nAsk the vault.\n")
    server = {"name": "vault", "command": "python3", "args": ["-c", SERVER], "env": {"BOX": "${BOX}"}}
    return {"mcp_servers": [server], "skills": ["skills"]}


def check_equipment(ran: Ran, agent: str) -> None:
    """The model was offered the server's tool and got what it said, and was told of the skill."""
    asked = [json.dumps(request.body) for request in ran.asked(agent)]
    assert any(f"heron-{BOX}" in text for text in asked), ran.told(agent)
    assert any(SKILL in text for text in asked), ran.told(agent)


def check(ran: Ran, agent: str) -> None:
    """It solved the task, and told what it did and used; the task was in its prompt, and its key is nowhere."""
    result = ran.result(agent)
    assert result["reward"] == 1.0, ran.told(agent)
    asked = ran.asked(agent)
    assert any("room-booking" in json.dumps(request.body) for request in asked), "the task is not in its prompt"

    trajectory = ran.trajectory(agent)
    assert trajectory.extra is not None
    assert trajectory.extra["rollout"]["trust"] == ("observed" if ALL[agent].acp else "reported"), ran.told(agent)
    assert "room-booking" in str(trajectory.steps[0].message)
    assert any("I will solve it in one go." in str(step.message) for step in trajectory.steps if step.source == "agent")
    step, call = next((step, call) for step in trajectory.steps for call in step.tool_calls or ())
    assert ("intervals.py" if ALL[agent].edits else "solve.sh") in json.dumps(
        [call.arguments, call.extra]
    )  # some tell a command in its title alone
    assert step.observation is not None
    assert step.observation.results[0].source_call_id == call.tool_call_id

    for path in ran.trial(agent).rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), f"the key is in {path}"
    usage = result["usage"]
    if usage is None and ALL[agent].acp:
        return  # some tell nothing of it there
    assert usage["input_tokens"] >= 100
    assert usage["output_tokens"] >= 20


def package_managers() -> dict[str, str]:
    """What pip and npm of this machine need to reach their indexes, as variables."""
    found = {name: value for name, value in os.environ.items() if re.match("pip_|uv_|npm_config_", name, re.IGNORECASE)}
    for variable, asked in {
        "NPM_CONFIG_REGISTRY": ["npm", "config", "get", "registry"],
        "NPM_CONFIG_CAFILE": ["npm", "config", "get", "cafile"],
        "PIP_INDEX_URL": [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
    }.items():
        value = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        if value not in ("", "null", "undefined"):
            found.setdefault(variable, value)
    if authorities := found.get("NPM_CONFIG_CAFILE"):
        found |= dict.fromkeys(("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "PIP_CERT"), authorities)
    return found


def authorities() -> list[str]:
    """The file that certificates are checked with, to be mounted at the same path; empty where none is configured."""
    file = package_managers().get("NPM_CONFIG_CAFILE")
    return [f"{os.path.realpath(file)}:{file}:ro"] if file else []


def _repaired() -> str:
    return SOLUTION.partition("<<'PYTHON'\n")[2].partition("PYTHON\n")[0]
