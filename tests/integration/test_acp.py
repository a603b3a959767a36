"""Jobs with agents that speak ACP, by the real command: on this machine, in Docker and Apptainer, on another machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import environment_of, rollout, trial_results, write_job, write_task
from rollout.testing import acp_agent

AGENT = Path(acp_agent.__file__)
DO = "python3 /opt/agent/acp_agent.py"


def job(folder: Path, environment: str, agents: list[dict[str, Any]], **more: Any) -> Path:
    task = write_task(folder / "tasks" / "one")
    (task / "environment" / "acp_agent.py").write_bytes(AGENT.read_bytes())
    (task / "environment" / "Dockerfile").write_text(
        "FROM debian:trixie-slim\nWORKDIR /app\nCOPY acp_agent.py /opt/agent/acp_agent.py\n"
    )
    return write_job(folder, {"environment": environment_of(environment, folder), "agents": agents, **more})


def none_alive(command: str) -> bool:
    """Whether no process of the machine, containers included, was started like this."""
    words = b"\0".join(word.encode() for word in command.split())
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue  # it ended meanwhile
    return not any(line.startswith(words) for line in found)


ENVIRONMENTS = [
    pytest.param("local", marks=pytest.mark.needs("local")),
    pytest.param("docker", marks=pytest.mark.needs("docker")),
]
ELSEWHERE = [
    pytest.param("apptainer", marks=pytest.mark.needs("apptainer")),
    pytest.param("ssh", marks=pytest.mark.needs("ssh")),
]


@pytest.mark.parametrize("environment", [*ENVIRONMENTS, *ELSEWHERE])
def test_an_agent_named_by_its_command_solves_a_task(environment: str, tmp_path: Path) -> None:
    command = f'{DO} --do "say I write" --do "write answer.txt 42" --do "usage 100 20 0.25" --do "noise hello" --do "say done"'
    job(tmp_path, environment, [{"name": f"acp:{command}"}])
    done = rollout(tmp_path, "job.json")
    assert done.returncode == 0, done.stderr
    (result,) = trial_results(tmp_path / "jobs" / "job").values()
    assert (result["reward"], result["cost"], result["error"]) == (1.0, 0.25, None)
    assert result["usage"] == {"input_tokens": 100, "output_tokens": 20, "cached_tokens": 0, "cost_usd": 0.25}
    folder = tmp_path / "jobs" / "job" / result["trial_id"]
    made = json.loads((folder / "trajectory.json").read_text())
    assert [step["message"] for step in made["steps"]] == ["Write 42 to /app/answer.txt.\n", "I write", "done"]
    assert made["steps"][1]["tool_calls"][0]["arguments"] == {"path": "answer.txt", "text": "42"}
    assert (folder / "agent" / "stdout.txt").read_text() == "hello\n"


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_at_the_deadline_it_is_cancelled_killed_and_verified(environment: str, tmp_path: Path) -> None:
    command = f'{DO} --do "write answer.txt 42" --do "run sleep 876 > /dev/null 2>&1 &" --do hang'
    job(tmp_path, environment, [{"name": "slow", "type": "acp", "options": {"command": command}, "override_timeout_sec": 2}])
    done = rollout(tmp_path, "job.json")
    assert done.returncode == 0, done.stderr
    (result,) = trial_results(tmp_path / "jobs" / "job").values()
    assert (result["reward"], result["error"]["type"]) == (1.0, "agent_execution_timeout")
    made = json.loads((tmp_path / "jobs" / "job" / result["trial_id"] / "trajectory.json").read_text())
    assert made["final_metrics"]["extra"] == {"stop_reasons": ["cancelled"]}
    assert made["steps"][1]["tool_calls"][0]["function_name"] == "edit"
    assert none_alive("sleep 876")


@pytest.mark.needs("local")
def test_an_agent_that_dies_is_recorded_and_verified(tmp_path: Path) -> None:
    command = f'{DO} --do "write answer.txt 42" --do "stderr no more" --do "die 9"'
    job(tmp_path, "local", [{"name": "dying", "type": "acp", "options": {"command": command}}])
    assert rollout(tmp_path, "job.json").returncode == 0
    (result,) = trial_results(tmp_path / "jobs" / "job").values()
    assert result["reward"] == 1.0
    assert result["error"]["message"] == "the agent ended before it answered (exit code 9): no more"


@pytest.mark.needs("local")
def test_an_agent_that_cannot_be_started_is_an_error_without_a_verdict(tmp_path: Path) -> None:
    job(tmp_path, "local", [{"name": "acp:no-such-agent --acp"}])
    assert rollout(tmp_path, "job.json").returncode == 1
    (result,) = trial_results(tmp_path / "jobs" / "job").values()
    assert (result["status"], result["error"]["phase"]) == ("errored", "connect")
    assert "(exit code 127)" in result["error"]["message"]


@pytest.mark.needs("local")
def test_secrets_of_an_agent_are_in_none_of_its_files(tmp_path: Path) -> None:
    command = f'{DO} --do "env DEMO_API_KEY" --do "run echo $DEMO_API_KEY" --do "noise $DEMO_API_KEY"'
    agent = {"name": "told", "type": "acp", "options": {"command": command}, "env": {"DEMO_API_KEY": "${HOST_KEY}"}}
    job(tmp_path, "local", [agent])
    secret = 'Aa1"zzzzzzzzzzzzzzzzzzzz'
    assert rollout(tmp_path, "job.json", HOST_KEY=secret).returncode == 0
    inner = secret.split('"')[1]
    leaks = [path for path in (tmp_path / "jobs").rglob("*") if path.is_file() and inner.encode() in path.read_bytes()]
    assert not leaks
    text = next((tmp_path / "jobs").rglob("acp.jsonl")).read_text()
    assert "[redacted:" in text
    halves = [secret[: len(secret) // 2], secret[len(secret) // 2 :]]
    assert not any(json.dumps(half)[1:-1] in text for half in halves), "the agent says it in two chunks"


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ({"name": "acp"}, "option 'command' is missing"),
        ({"name": "acp:x", "options": {"command": "y"}}, "says already what option 'command' is"),
        ({"name": "acp:x", "options": {"modell": "y"}}, "did you mean 'model'?"),
        ({"name": "acpx/oracle"}, "agent oracle does not speak ACP"),
        ({"name": "acpx/nobody"}, "no agent 'nobody' is installed"),
    ],
)
def test_what_cannot_work_is_said_in_one_line_before_anything_starts(agent: Any, said: str, tmp_path: Path) -> None:
    job(tmp_path, "local", [agent])
    done = rollout(tmp_path, "job.json")
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "jobs" / "job" / "trials.jsonl").exists()
