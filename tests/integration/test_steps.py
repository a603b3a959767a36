"""Tasks with steps: one environment, an instruction, tests and a reward for each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import rollout, write_job

pytestmark = pytest.mark.needs("local")

HELPER = 'check() { if [ "$(cat /app/$1 2>/dev/null)" = "$2" ]; then echo $3; else echo 0; fi > /logs/verifier/reward.txt; }\n'
TASK = """version = "1.0"
{top}
[agent]
timeout_sec = 60

[[steps]]
name = "first"
{first}
[steps.verifier]
env = {{ WHO = "${{USER_NAME:-nobody}}" }}

[[steps]]
name = "second"
artifacts = ["two"]
{second}
"""
FILES = {
    "environment/Dockerfile": "FROM debian:trixie-slim\nWORKDIR /app\n",
    "tests/helper.sh": HELPER,
    "tests/test.sh": "#!/bin/bash\n. /tests/helper.sh\necho shared $WHO\ncheck one 1 0.5\n",
    "steps/first/instruction.md": "Write 1 to one.\n",
    "steps/first/solution/solve.sh": "#!/bin/bash\necho 1 > one\n",
    "steps/second/instruction.md": "Write 2 to two.\n",
    "steps/second/tests/test.sh": "#!/bin/bash\n. /tests/helper.sh\necho own $WHO\ncheck two 2 1\n",
    "steps/second/solution/solve.sh": "#!/bin/bash\ncat given made one; echo 2 > two\n",
    "steps/second/workdir/given": "given\n",
    "steps/second/workdir/setup.sh": "#!/bin/bash\necho made > made\n",
}


def write(folder: Path, *, top: str = "", first: str = "", second: str = "", **files: str | None) -> None:
    text = {**FILES, "task.toml": TASK.format(top=top, first=first, second=second), **files}
    for name, content in text.items():
        if content is not None:
            path = folder / "tasks/one" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)


def set_verifier(folder: Path, text: str) -> None:
    """Add to `[steps.verifier]` of the first step."""
    toml = folder / "tasks/one/task.toml"
    toml.write_text(toml.read_text().replace("[steps.verifier]\n", f"[steps.verifier]\n{text}\n"))


def run(folder: Path, *, execute: str | None = None, status: int = 0, **job: Any) -> tuple[Path, Any]:
    """Run the oracle, or a script; the trial's folder and result."""
    agent = {"name": "it", "execute": execute} if execute is not None else {"name": "it", "type": "oracle"}
    done = rollout(folder, write_job(folder, {"name": "job", "agents": [agent], **job}), USER_NAME="somebody")
    assert done.returncode == status, done.stdout + done.stderr
    trial = folder / "jobs" / str(job.get("name", "job")) / "it/tasks/one__1"
    return trial, json.loads((trial / "result.json").read_text())


def test_each_step_has_its_files_its_verdict_and_its_folder(tmp_path: Path) -> None:
    write(tmp_path)
    trial, result = run(tmp_path)
    assert (result["status"], result["reward"], result["reward_source"]) == ("scored", 0.75, "mean of 2 of 2 steps")
    assert [(step["name"], step["reward"], step["stopped"]) for step in result["steps"]] == [
        ("first", 0.5, None),
        ("second", 1.0, None),
    ]
    assert result["durations"]["agent_execution_sec"] is not None
    assert (trial / "steps/first/verifier/stdout.txt").read_text() == "shared somebody\n"
    assert (trial / "steps/second/verifier/stdout.txt").read_text() == "own\n"
    assert (trial / "steps/second/agent/stdout.txt").read_text() == "given\nmade\n1\n"
    assert (trial / "steps/second/artifacts/app/two").read_text() == "2\n"
    assert not (trial / "steps/first/artifacts").exists()


def test_the_final_step_counts_where_the_task_says_so(tmp_path: Path) -> None:
    write(tmp_path, top='multi_step_reward_strategy = "final"')
    _, result = run(tmp_path)
    assert (result["reward"], result["reward_source"]) == (1.0, "final of 2 of 2 steps")


@pytest.mark.parametrize("gate", ["min_reward = 0.1", "min_reward = { reward = 0.1 }"])
def test_below_the_least_reward_no_further_step_is_taken(tmp_path: Path, gate: str) -> None:
    write(tmp_path, first=gate)
    trial, result = run(tmp_path, execute="true")
    [step] = result["steps"]
    assert (result["reward"], step["stopped"]) == (0.0, "`reward` is 0, and has to be at least 0.1")
    assert not (trial / "steps/second").exists()


def test_agents_see_the_steps_instruction_and_nothing_of_tests_and_earlier_verdicts(tmp_path: Path) -> None:
    write(tmp_path)
    look = 'echo "$ROLLOUT_TASK_INSTRUCTION"; cat "$ROLLOUT_TASK_INSTRUCTION_FILE"; ls -d /tests /oracle /logs/*/*; true'
    trial, _ = run(tmp_path, execute=f"{look}; echo 1 > one; echo left > /logs/agent/left")
    for name, text in (("first", "Write 1 to one.\n"), ("second", "Write 2 to two.\n")):
        assert (trial / f"steps/{name}/agent/stdout.txt").read_text() == f"{text}\n{text}"
        assert (trial / f"steps/{name}/logs/agent/left").read_text() == "left\n"


def test_a_step_without_a_verdict_leaves_the_trial_without_one(tmp_path: Path) -> None:
    write(tmp_path, **{"steps/second/tests/test.sh": "#!/bin/bash\nexit 0\n"})
    _, result = run(tmp_path, status=1)
    assert (result["status"], result["reward"], result["error"]["type"]) == ("errored", None, "verifier_reward_missing")
    assert [step["status"] for step in result["steps"]] == ["scored", "errored"]


def test_a_setup_script_that_fails_ends_the_trial(tmp_path: Path) -> None:
    write(tmp_path, **{"steps/second/workdir/setup.sh": "#!/bin/bash\necho broken >&2\nexit 3\n"})
    trial, result = run(tmp_path, status=1)
    assert result["error"]["message"] == "setup.sh of step second exited with code 3: broken"
    assert not (trial / "steps/second/verifier").exists()


def test_an_agent_out_of_time_in_one_step_is_verified_and_goes_on(tmp_path: Path) -> None:
    write(tmp_path, first="agent = { timeout_sec = 0.5 }")
    _, result = run(tmp_path, execute="echo 1 > one; echo 2 > two; case $ROLLOUT_TASK_INSTRUCTION in *one*) sleep 100 ;; esac")
    assert result["error"]["type"] == "agent_execution_timeout"
    assert result["reward"] == 0.75


def test_a_step_may_have_a_healthcheck(tmp_path: Path) -> None:
    check = 'healthcheck = { command = "test -e one", retries = 1, interval_sec = 0 }'
    write(tmp_path, second=check)
    assert run(tmp_path)[1]["reward"] == 0.75
    _, result = run(tmp_path, execute="true", status=1, name="again")
    assert result["error"]["message"].startswith("the healthcheck failed 1 times")


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"steps/second/instruction.md": ""}, "steps/second/instruction.md: is empty"),
        ({"tests/test.sh": None}, "steps/first/tests/test.sh: missing, and the task has none for all its steps either"),
    ],
)
def test_what_a_step_lacks_is_a_fault_of_the_task(tmp_path: Path, files: dict[str, str | None], fault: str) -> None:
    write(tmp_path, **files)
    done = rollout(tmp_path, write_job(tmp_path, {}))
    assert done.returncode == 2
    assert fault in done.stderr


def test_a_step_is_verified_apart_while_the_agents_environment_goes_on(tmp_path: Path) -> None:
    """The first step is verified in a fresh environment that sees its artifacts alone, the second where the agent worked."""
    look = "#!/bin/bash\n. /tests/helper.sh\nls -A /app; cat /tmp/agents 2>&1\n"
    files = {"tests/test.sh": look + "check one 1 1\n", "steps/second/tests/test.sh": look + "check two 2 1\n"}
    write(tmp_path, first='artifacts = ["one"]\n', **files)
    set_verifier(tmp_path, 'environment_mode = "separate"')
    trial, result = run(tmp_path, execute="echo 1 > one; echo 2 > two; echo here >> /tmp/agents")
    assert [step["reward"] for step in result["steps"]] == [1.0, 1.0]
    first = (trial / "steps/first/verifier/stdout.txt").read_text()
    assert first == "one\ncat: /tmp/agents: No such file or directory\n"
    assert (trial / "steps/second/verifier/stdout.txt").read_text().endswith("here\nhere\n")
    assert (trial / "steps/first/logs/verifier/reward.txt").read_text() == "1\n"


def test_a_job_may_have_all_steps_verified_apart(tmp_path: Path) -> None:
    write(tmp_path, top='artifacts = ["/app"]')
    _, result = run(tmp_path, isolation="separate")
    assert (result["status"], result["reward"]) == ("scored", 0.75)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose users")
def test_a_step_has_users_and_a_network_of_its_own(tmp_path: Path) -> None:
    first = '[steps.agent]\nuser = "nobody"\nnetwork_mode = "no-network"\n'
    write(tmp_path, first=first, **{"tests/test.sh": "#!/bin/bash\nid -un\necho 1 > /logs/verifier/reward.txt\n"})
    set_verifier(tmp_path, 'user = "daemon"')
    ask = "import urllib.request as r\ntry: r.urlopen('http://x.invalid:1/')\nexcept OSError as error: print(error.code)"
    trial, _ = run(tmp_path, execute=f'id -un; python3 -c "{ask}"')
    assert (trial / "steps/first/agent/stdout.txt").read_text() == "nobody\n403\n"
    assert (trial / "steps/second/agent/stdout.txt").read_text() == "root\n502\n"
    assert (trial / "steps/first/verifier/stdout.txt").read_text() == "daemon\n"


def test_a_set_of_tasks_with_steps_is_proven_by_oracle_and_nop(tmp_path: Path) -> None:
    write(tmp_path, **{"tests/test.sh": "#!/bin/bash\n. /tests/helper.sh\ncheck one 1 1\n"})
    done = rollout(tmp_path, "tasks", "check", "--oracle", "--nop", "--environment", "local", "tasks")
    assert done.returncode == 0, done.stdout + done.stderr
