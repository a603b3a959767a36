"""What task.toml may ask for besides a place to work: healthchecks, artifacts, a separate verifier; levels of isolation."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import rollout, trial_results, write_job, write_task

pytestmark = pytest.mark.needs("local")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose users")

LOOK = """#!/bin/bash
{ id -un; pwd; git config --get core.hooksPath; stat -c '%n %U %a' /app /app/* /logs/* /tests; cat /app/* /logs/agent/*; } 2>&1
if [ "$(cat /app/answer.txt 2>/dev/null)" = "42" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def run(folder: Path, execute: str = "echo 42 > answer.txt", *, level: str = "default", status: int = 0, **job: Any) -> Path:
    """Run a job of one script agent over `tasks/`; the folder of its only trial on `tasks/one`."""
    agent = {"name": "it", "execute": execute}
    done = rollout(folder, write_job(folder, {"name": "job", "isolation": level, "agents": [agent], **job}))
    assert done.returncode == status, done.stdout + done.stderr
    return folder / "jobs/job/it/tasks/one__1"


def result(trial: Path) -> Any:
    return json.loads((trial / "result.json").read_text())


def said(trial: Path) -> str:
    return (trial / "verifier/stdout.txt").read_text()


# Levels


@needs_root
@pytest.mark.parametrize("level", ["users", "strict"])
def test_the_agent_is_a_user_of_its_own_who_owns_its_work_and_nothing_of_the_verifier(tmp_path: Path, level: str) -> None:
    write_task(tmp_path / "tasks/one", tests=LOOK)
    tries = "id -un; pwd; echo $HOME; touch /home/agent/x; ls /logs/verifier /tmp/rllm; echo 1 > /logs/verifier/reward.txt"
    trial = run(tmp_path, f"{tries}; echo 42 > answer.txt", level=level)
    assert result(trial)["reward"] == 1.0
    assert (trial / "agent/stdout.txt").read_text() == "agent\n/app\n/home/agent\n"
    assert (trial / "agent/stderr.txt").read_text().count("Permission denied") == 3
    lines = said(trial).splitlines()
    assert lines[:2] == ["root", "/app"]
    for line in ("/app agent 755", "/app/answer.txt agent 644", "/logs/verifier root 700", "/tests root 700"):
        assert line in lines
    assert ("/dev/null" in lines) == (level == "strict")


@needs_root
@pytest.mark.parametrize(("level", "alive"), [("users", True), ("strict", False)])
def test_only_strict_ends_what_the_agent_left_running(tmp_path: Path, level: str, alive: bool) -> None:
    write_task(tmp_path / "tasks/one", tests="#!/bin/bash\npgrep -u agent -x sleep\n" + LOOK)
    trial = run(tmp_path, "setsid sleep 98765 > /dev/null 2>&1 &", level=level)
    assert (said(trial).splitlines()[0] != "root") == alive


@needs_root
def test_a_working_directory_of_the_system_stays_roots_and_the_trial_says_so(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/one", toml='[environment]\nworkdir = "/opt"\n')
    trial = run(tmp_path, "touch /opt/x || true", level="users")
    [warning] = result(trial)["warnings"]
    assert "the working directory is the system's, and stays root's" in warning
    assert "Permission denied" in (trial / "agent/stderr.txt").read_text()


@needs_root
def test_a_user_who_may_become_root_is_refused(tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks/one")
    (task / "environment/Dockerfile").write_text("FROM debian:trixie-slim\nWORKDIR /app\nRUN chmod 777 /etc\n")
    trial = run(tmp_path, level="users", status=1)
    error = result(trial)["error"]
    assert error["type"] == "environment_start_failed"
    assert error["message"] == "the user agent: can write to /etc"


@needs_root
@pytest.mark.parametrize(
    ("toml", "why"),
    [
        ('[agent]\nuser = "root"\n', "`isolation: users` needs a user of its own for the agent, and root is root"),
        ('[agent]\nuser = "dev"\n[verifier]\nuser = "dev"\n', "for the agent, and dev is the verifier's too"),
    ],
)
def test_users_that_are_not_apart_are_refused_before_anything_starts(tmp_path: Path, toml: str, why: str) -> None:
    write_task(tmp_path / "tasks/one", toml=toml)
    done = rollout(tmp_path, write_job(tmp_path, {"isolation": "users"}))
    assert done.returncode == 2
    assert why in done.stderr
    assert not (tmp_path / "jobs").exists()


# A separate verifier


def test_a_separate_verifier_sees_the_work_and_the_logs_and_nothing_else_of_the_agent(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/one", tests=LOOK + "ls /usr/bin/planted /logs/verifier /tmp/rollout\n")
    task = tmp_path / "tasks/one/environment"
    (task / "Dockerfile").write_text("FROM debian:trixie-slim\nWORKDIR /app\nRUN echo old > /app/gone; echo old > /app/changed\n")
    plants = "touch /usr/bin/planted || true; echo 1 > /logs/verifier/reward.json; echo log > /logs/agent/log"
    trial = run(tmp_path, f"{plants}; rm gone; echo new > changed; echo 42 > answer.txt", level="separate")
    assert result(trial)["rewards"] == {"reward": 1.0}
    lines = said(trial).splitlines()
    assert "/dev/null" in lines
    assert "42" in lines
    assert "new" in lines
    assert "log" in lines
    assert not [line for line in lines if "gone" in line or "planted" in line or "reward.json" in line]
    assert sorted(path.name for path in (trial / "logs/verifier").iterdir()) == ["reward.txt"]
    assert sorted(path.name for path in (trial / "artifacts/app").iterdir()) == ["answer.txt", "changed"]


def test_a_reward_that_only_the_agent_wrote_is_none(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/one", tests="#!/bin/bash\nexit 0\n")
    trial = run(tmp_path, "echo 1 > /logs/verifier/reward.txt", level="separate", status=1)
    assert result(trial)["error"]["type"] == "verifier_reward_missing"


@pytest.mark.parametrize("toml", ['[verifier]\nenvironment_mode = "separate"\n', "[verifier.environment]\n"])
def test_a_task_asks_for_a_separate_verifier_itself(tmp_path: Path, toml: str) -> None:
    write_task(tmp_path / "tasks/one", toml=f'artifacts = ["answer.txt"]\n{toml}', tests=LOOK)
    trial = run(tmp_path, "echo 42 > answer.txt; echo more > other")
    assert result(trial)["reward"] == 1.0
    assert "more" not in said(trial)
    assert json.loads((trial / "config.json").read_text())["isolation"] == "separate"


def test_a_separate_verifier_may_have_an_image_of_its_own_with_the_tests_built_in(tmp_path: Path) -> None:
    task = write_task(
        tmp_path / "tasks/one", toml='[verifier]\nenvironment_mode = "separate"\n', tests=LOOK + "cat /tests/made\n"
    )
    (task / "tests/Dockerfile").write_text("FROM debian:trixie-slim\nWORKDIR /app\nCOPY . /tests\nRUN echo made > /tests/made\n")
    trial = run(tmp_path)
    assert result(trial)["reward"] == 1.0
    assert said(trial).splitlines()[-1] == "made"


def test_collect_hooks_put_down_what_the_verifier_is_to_see(tmp_path: Path) -> None:
    hooks = '[[verifier.collect]]\ncommand = "cat hidden > /logs/artifacts/dump"\n[[verifier.collect]]\ncommand = "exit 3"\n'
    toml = f'artifacts = ["answer.txt"]\n[verifier]\nenvironment_mode = "separate"\n{hooks}'
    write_task(tmp_path / "tasks/one", toml=toml, tests=LOOK + "cat /logs/artifacts/dump\n")
    trial = run(tmp_path, "echo 42 > answer.txt; echo secret > hidden")
    assert said(trial).splitlines()[-1] == "secret"
    assert result(trial)["warnings"] == ["collecting with `exit 3`: exit code 3"]


def test_the_network_of_a_separate_verifier_is_its_own(tmp_path: Path) -> None:
    toml = '[verifier]\nenvironment_mode = "separate"\nnetwork_mode = "no-network"\n'
    write_task(tmp_path / "tasks/one", toml=toml, tests=LOOK + "grep -c : /proc/net/dev\n")
    trial = run(tmp_path, "grep -c : /proc/net/dev; echo 42 > answer.txt")
    assert result(trial)["reward"] == 1.0
    assert int((trial / "agent/stdout.txt").read_text()) > 1
    assert said(trial).splitlines()[-1] == "1"


@pytest.mark.parametrize("workdir", ["/root", "/", "/etc/x"])
def test_a_folder_of_the_system_is_not_taken_for_the_agents_work(tmp_path: Path, workdir: str) -> None:
    write_task(tmp_path / "tasks/one", toml=f'[environment]\nworkdir = "{workdir}"\n')
    trial = run(tmp_path, level="separate", status=1)
    error = result(trial)["error"]
    assert (error["type"], error["phase"]) == ("task_invalid", "start")
    assert f"a separate verifier would get the whole of {workdir}; name the task's `artifacts`" in error["message"]


def test_programs_that_came_from_the_agent_are_a_warning(tmp_path: Path) -> None:
    toml = '[environment.env]\nPATH = "/app/bin:/usr/local/bin:/usr/bin:/bin"\n'
    write_task(tmp_path / "tasks/one", toml=toml)
    trial = run(tmp_path, level="separate")
    assert result(trial)["warnings"] == ["/app/bin, where the verifier looks for programs, came from the agent"]


# Artifacts


def test_artifacts_are_kept_and_the_manifest_says_which_are_not(tmp_path: Path) -> None:
    kept = 'artifacts = ["/app/made", "missing", {source = "other", destination = "b/other", exclude = ["*.log", "deep/no"]}]\n'
    write_task(tmp_path / "tasks/one", toml=kept)
    make = "echo 42 > answer.txt; echo 1 > made; mkdir -p other/deep/no; touch other/x.log other/deep/yes other/deep/no/x"
    trial = run(tmp_path, f"{make}; ln -s /etc/passwd other/link")
    manifest = json.loads((trial / "artifacts/manifest.json").read_text())["artifacts"]
    assert [(item["source"], item["destination"], item["status"], item["kind"]) for item in manifest] == [
        ("/app/made", "app/made", "kept", "file"),
        ("/app/missing", "app/missing", "missing", None),
        ("/app/other", "b/other", "kept", "folder"),
    ]
    found = sorted(str(path.relative_to(trial)) for path in (trial / "artifacts").rglob("*") if not path.is_dir())
    assert found == ["artifacts/app/made", "artifacts/b/other/deep/yes", "artifacts/manifest.json"]
    assert manifest[2]["skipped_count"] == 1
    assert "artifact /app/other: link left out: a link out of the folder" in "\n".join(result(trial)["warnings"])
    assert result(trial)["reward"] == 1.0


def test_secrets_are_taken_out_of_artifacts(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/one", toml='artifacts = ["kept"]\n')
    agents = [{"name": "it", "execute": "echo $API_KEY > kept; echo 42 > answer.txt", "env": {"API_KEY": "${API_KEY}"}}]
    done = rollout(tmp_path, write_job(tmp_path, {"name": "job", "agents": agents}), API_KEY="sk-very-secret-value")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "jobs/job/it/tasks/one__1/artifacts/app/kept").read_text() == "[redacted:API_KEY]\n"


def test_an_artifact_in_the_way_of_another_costs_that_one_alone(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/one", toml='artifacts = ["/app", "/app/out/x"]\n')
    trial = run(tmp_path, "echo 42 > answer.txt; echo a file > out")
    manifest = json.loads((trial / "artifacts/manifest.json").read_text())["artifacts"]
    assert [item["status"] for item in manifest] == ["kept", "failed"]
    assert manifest[1]["error"] == "what another artifact brought is in the way of app/out/x"
    assert result(trial)["reward"] == 1.0


@pytest.mark.parametrize("source", ["../x", "/", "/manifest.json", ""])
def test_an_artifact_that_cannot_be_kept_is_a_fault_of_the_task(tmp_path: Path, source: str) -> None:
    write_task(tmp_path / "tasks/one", toml=f'artifacts = ["{source}"]\n')
    done = rollout(tmp_path, write_job(tmp_path, {}))
    assert done.returncode == 2
    assert "task.toml" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# Healthchecks


def test_the_agent_waits_until_the_environment_is_healthy(tmp_path: Path) -> None:
    check = 'command = "echo x >> /tmp/checks; [ $(wc -l < /tmp/checks) = 3 ]"\ninterval_sec = 0.01\n'
    write_task(tmp_path / "tasks/one", toml=f"[environment.healthcheck]\n{check}")
    trial = run(tmp_path, "wc -l < /tmp/checks; echo 42 > answer.txt")
    assert (trial / "agent/stdout.txt").read_text() == "3\n"


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ('command = "echo no; echo because >&2; exit 7"', "failed 2 times, the last time with exit code 7: because"),
        ('command = "sleep 60"\ntimeout_sec = 0.05', "failed 2 times, the last time because it took longer than 0.05 s"),
    ],
)
def test_an_environment_that_stays_unhealthy_does_not_start(tmp_path: Path, check: str, message: str) -> None:
    write_task(tmp_path / "tasks/one", toml=f"[environment.healthcheck]\n{check}\nretries = 2\ninterval_sec = 0.01\n")
    trial = run(tmp_path, status=1)
    assert result(trial)["error"]["type"] == "environment_start_failed"
    assert result(trial)["error"]["message"] == f"the healthcheck {message}"
    assert not (trial / "agent").exists()


def test_failures_of_the_start_period_do_not_count(tmp_path: Path) -> None:
    check = 'command = "echo x >> /tmp/checks; [ $(wc -l < /tmp/checks) = 5 ]"\nretries = 1\n'
    more = "start_period_sec = 60\nstart_interval_sec = 0.01\n"
    write_task(tmp_path / "tasks/one", toml=f"[environment.healthcheck]\n{check}{more}")
    assert result(run(tmp_path))["reward"] == 1.0


@pytest.mark.parametrize("toml", ['artifacts = [{source = "/x", service = "db"}]\n'])
def test_a_service_that_no_environment_has_is_refused(tmp_path: Path, toml: str) -> None:
    write_task(tmp_path / "tasks/one", toml=toml)
    done = rollout(tmp_path, write_job(tmp_path, {}))
    assert done.returncode == 2
    assert "cannot start the service db" in done.stderr


def test_results_are_in_the_index_of_the_job_too(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/one")
    run(tmp_path, level="separate")
    assert trial_results(tmp_path / "jobs/job")["it/tasks/one__1"]["reward"] == 1.0
