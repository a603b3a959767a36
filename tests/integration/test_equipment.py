"""MCP servers and skills that tasks and jobs give to agents: what arrives in the environment, and who is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import environment_of, rollout, trial_results, write_job, write_task
from require import DOCKER_IMAGE, require
from rollout.testing import acp_agent

SECRET = "sk-Zq81-not-a-real-key-7Hd2"
TOML = """
[environment]
skills_dir = "skills"
[[environment.mcp_servers]]
name = "vault"
transport = "stdio"
command = "/opt/vault"
args = ["--box", "1"]
[[environment.mcp_servers]]
name = "web"
url = "http://localhost:1/sse"
headers = { Authorization = "Bearer ${WEB_TOKEN}" }
"""
LOOK = """#!/bin/sh
set -e
id -un > /logs/agent/user
cp "$ROLLOUT_MCP_CONFIG" /logs/agent/mcp.json
stat -c '%U %a' "$ROLLOUT_MCP_CONFIG" > /logs/agent/mode
cat "$ROLLOUT_SKILLS_DIR"/*/SKILL.md > /logs/agent/skills
echo 42 > /app/answer.txt
"""
OWN = {"name": "web", "transport": "streamable-http", "url": "http://localhost:2/mcp", "headers": {"X-Key": "${WEB_TOKEN}"}}


def job(folder: Path, kind: str, agents: list[dict[str, Any]], *, toml: str = TOML, **more: Any) -> Path:
    task = write_task(folder / "tasks" / "one", toml=toml)
    for name, text in {"shared": "of the task\n", "tasks-own": "of the task alone\n"}.items():
        file = task / "environment" / "skills" / name / "SKILL.md"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    (task / "environment" / "agent.py").write_text(Path(acp_agent.__file__).read_text())
    (task / "environment" / "Dockerfile").write_text(f"FROM {DOCKER_IMAGE}\nWORKDIR /app\nCOPY . .\n")
    return write_job(folder, {"environment": environment_of(kind, folder), "agents": agents, **more})


def write_skill(folder: Path, text: str) -> None:
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(text)


@pytest.mark.parametrize(
    ("kind", "isolation"),
    [
        ("local", "default"),
        pytest.param("docker", "users", marks=pytest.mark.needs("docker")),
        pytest.param("ssh", "default", marks=pytest.mark.needs("ssh")),
    ],
)
def test_a_script_finds_servers_and_skills_of_task_and_job_by_two_variables(tmp_path: Path, kind: str, isolation: str) -> None:
    require(kind)
    write_skill(tmp_path / "skills" / "shared", "of the job\n")
    write_skill(tmp_path / "single", "of the job alone\n")
    agent = {"name": "mine", "execute": LOOK, "mcp_servers": [OWN], "skills": ["skills", "./single"]}
    file = job(tmp_path, kind, [agent], isolation=isolation)
    done = rollout(tmp_path, "run", file, WEB_TOKEN=SECRET)
    assert done.returncode == 0, done.stdout + done.stderr
    [trial] = (tmp_path / "jobs").rglob("one__1")
    logs = trial / "logs" / "agent"
    told = json.loads((logs / "mcp.json").read_text())["mcpServers"]
    assert told["vault"] == {"type": "stdio", "command": "/opt/vault", "args": ["--box", "1"], "env": {}}
    assert told["web"]["type"] == "http"
    assert told["web"]["headers"] == {"X-Key": "[redacted:WEB_TOKEN]"}
    assert (logs / "mode").read_text().split() == [(logs / "user").read_text().strip(), "600"]
    assert (logs / "skills").read_text().splitlines() == ["of the job", "of the job alone", "of the task alone"]
    for path in (tmp_path / "jobs").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), f"the secret is in {path}"


def test_an_agent_that_speaks_acp_is_told_of_the_servers_in_its_session(tmp_path: Path) -> None:
    require("local")
    toml = TOML.replace('skills_dir = "skills"', "")
    file = job(
        tmp_path,
        "local",
        [{"name": 'acp:python3 agent.py --mcp --do cwd --do "write answer.txt 42"', "mcp_servers": [OWN]}],
        toml=toml,
    )
    assert rollout(tmp_path, "run", file, WEB_TOKEN="open-word").returncode == 0
    (result,) = trial_results(tmp_path / "jobs" / "job").values()
    assert result["reward"] == 1.0
    wire = (tmp_path / "jobs" / "job" / result["trial_id"] / "agent" / "acp.jsonl").read_text().splitlines()
    opened = next(record["message"] for record in map(json.loads, wire) if record["message"].get("method") == "session/new")
    header = {"name": "X-Key", "value": "[redacted:WEB_TOKEN]"}  # in the log alone
    assert opened["params"]["mcpServers"] == [
        {"name": "vault", "command": "/opt/vault", "args": ["--box", "1"], "env": []},
        {"type": "http", "name": "web", "url": "http://localhost:2/mcp", "headers": [header]},
    ]


def test_agents_that_cannot_be_given_what_a_task_declares_are_named_before_anything_starts(tmp_path: Path) -> None:
    agents = [
        {"name": "plain", "execute": "true"},
        {"name": "half", "execute": "echo $ROLLOUT_MCP_CONFIG"},
        {"name": "oracle"},
    ]
    done = rollout(tmp_path, "run", job(tmp_path, "local", agents), WEB_TOKEN="x")
    assert done.returncode == 2
    assert "the agent plain cannot be given the MCP server vault (stdio), the MCP server web (sse), skills" in done.stderr
    assert "the agent half cannot be given skills" in done.stderr
    assert "oracle" not in done.stderr
    assert "one" in done.stderr
    assert not (tmp_path / "jobs").exists()


def test_a_skills_dir_that_the_image_does_not_have_is_a_warning_of_the_trial(tmp_path: Path) -> None:
    require("local")
    toml = '[environment]\nskills_dir = "/no/such/folder"\n'
    agent = {"name": "mine", "execute": '#!/bin/sh\necho "skills: ${ROLLOUT_SKILLS_DIR-none}"\necho 42 > answer.txt\n'}
    assert rollout(tmp_path, "run", job(tmp_path, "local", [agent], toml=toml)).returncode == 0
    (result,) = trial_results(tmp_path / "jobs" / "job").values()
    assert result["warnings"] == [
        "the task's skills_dir /no/such/folder is not in the environment: the agent gets no skills of it"
    ]
    [said] = (tmp_path / "jobs").rglob("agent/stdout.txt")
    assert said.read_text() == "skills: none\n"


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ({"mcp_servers": [{"name": "a"}]}, "agents[0].mcp_servers[0]: MCP server a: give exactly one of `command` and `url`"),
        ({"mcp_servers": [{"name": "a", "command": "x"}] * 2}, "two `mcp_servers` have one name: a"),
        ({"mcp_servers": [{"name": "a", "url": "x", "transport": "stdio"}]}, "`transport: stdio` goes with `command`"),
        ({"mcp_servers": [{"name": "a", "url": "x", "headers": {"K": "${NOT_SET}"}}]}, "NOT_SET (agents[0].mcp_servers, a)"),
        ({"skills": ["nothing"]}, "nothing is no skill and holds none: there is no SKILL.md"),
    ],
)
def test_what_cannot_be_given_is_refused_in_one_line(tmp_path: Path, agent: dict[str, Any], said: str) -> None:
    done = rollout(tmp_path, "run", job(tmp_path, "local", [{"name": "nop", **agent}], toml=""))
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "jobs").exists()
