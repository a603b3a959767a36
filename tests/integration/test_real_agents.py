"""Real agents, installed for real in sandboxes, solve a task by tool calls that a scripted model makes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from require import require
from rollout.core.atif import decode_atif
from rollout.testing.modelserver import ModelServer, Question, Say, ToolUse

TASKS = Path(__file__).parents[2] / "examples" / "quickstart" / "tasks"
TASK = "duplicate-files"
KEY = "sk-Zq81-not-a-real-key-7Hd2"

# Agent: the variable of its key, its model, the path after the server's address, what it calls its shell and how.
AGENTS: dict[str, tuple[str, str, str]] = {
    "claude": ("ANTHROPIC_API_KEY", "claude-sonnet-4-5", ""),
    "codex": ("OPENAI_API_KEY", "gpt-5.1-codex", "/v1"),
    "gemini": ("GEMINI_API_KEY", "gemini-2.5-flash", ""),
    "opencode": ("ANTHROPIC_API_KEY", "anthropic/claude-sonnet-4-5", "/v1"),
}


def script(question: Question) -> Say | ToolUse:
    """Solve the task in one command, then hand in."""
    solution = (TASKS / TASK / "solution" / "solve.sh").read_text()
    command = f"cat > /tmp/solve.sh <<'END-OF-SCRIPT'\n{solution}\nEND-OF-SCRIPT\nbash /tmp/solve.sh"
    hand_in = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    mini = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" in question.text
    if not question.tools:
        return Say("Duplicates")
    if question.turn > (1 if mini else 0):
        return Say("It is solved.")
    if question.turn == 1:
        return ToolUse("bash", {"command": hand_in})
    return ToolUse(
        "Bash",
        {"command": command, "description": "Solve it"},
        text="I will solve it in one go.",
        others=(
            ("bash", {"command": command, "description": "Solve it"}),
            ("run_shell_command", {"command": command, "description": "Solve it"}),
            ("exec_command", {"cmd": command}),
            ("shell_command", {"command": command}),
            ("shell", {"command": ["bash", "-lc", command]}),
        ),
    )


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(script) as server:
        yield server


def installer_variables() -> dict[str, str]:
    """What package managers need on this machine to reach their indexes."""
    asked = ["npm", "config", "get", "cafile"]
    cafile = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    found = {name: value for name, value in os.environ.items() if name.lower().startswith(("pip_", "uv_", "npm_config_"))}
    if cafile not in ("", "null"):
        found["NPM_CONFIG_CAFILE"] = cafile
    return found


async def run(folder: Path, agent: str, server: ModelServer, **changes: Any) -> dict[str, Any]:
    """The result of one trial; `changes` go into the job."""
    key, model, path = AGENTS[agent]
    url = changes.pop("url", server.url)
    shutil.copytree(TASKS / TASK, folder / "tasks" / TASK)
    toml = folder / "tasks" / TASK / "task.toml"
    plain = toml.read_text().replace('"no-network"', '"public"').replace('"512Mi"', '"4Gi"').replace('"1Gi"', '"10Gi"')
    toml.write_text(plain)
    job = {
        "name": "job",
        "environment": {"type": "local"},
        "agents": [{"name": agent, "options": {"model": model, "base_url": url + path}, "env": installer_variables()}],
        "datasets": [{"path": "tasks"}],
        **changes,
    }
    (folder / "job.json").write_text(json.dumps(job))
    environ = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_BASE_URL"))}
    environ |= {"ROLLOUT_CACHE_DIR": str(folder / "cache"), key: KEY}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rollout", "run", "job.json",
        cwd=folder, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    [path_] = (folder / "jobs").rglob("*__1/result.json")
    result: dict[str, Any] = json.loads(path_.read_text())
    trial = path_.parent
    result["_said"] = said.decode() + "".join(
        f"\n--- {file}\n{file.read_text(errors='replace')[-4000:]}"
        for file in (*sorted((trial / "agent").glob("std*.txt")), *sorted((folder / "jobs/job/images").rglob("stderr.txt")))
    )
    return result


@pytest.mark.needs("agents")
@pytest.mark.parametrize("agent", AGENTS)
async def test_it_solves_a_task_and_tells_what_it_did(tmp_path: Path, agent: str, server: ModelServer) -> None:
    require("local")
    result = await run(tmp_path, agent, server)
    assert result["reward"] == 1.0, result["_said"]
    asked = [request for request in server.requests if request.turn or request.model]
    assert asked, "it did not ask the server"
    assert any("duplicates.tsv" in json.dumps(request.body) for request in asked), "the task is not in its prompt"

    [told] = (tmp_path / "jobs").rglob("*__1/trajectory.json")
    trajectory = decode_atif(told.read_bytes())
    assert trajectory.extra is not None
    assert trajectory.extra["rollout"]["trust"] == "reported"
    steps = trajectory.steps
    calls = [(step, call) for step in steps for call in step.tool_calls or ()]
    step, call = calls[0]
    assert "solve.sh" in json.dumps(call.arguments)
    assert step.observation is not None
    assert step.observation.results[0].source_call_id == call.tool_call_id
    assert any("solve" in str(step.message) for step in steps if step.source == "agent")

    usage = result["usage"]
    assert usage["input_tokens"] >= 100
    assert usage["output_tokens"] >= 20
    for path in (tmp_path / "jobs").rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), f"the key is in {path}"
