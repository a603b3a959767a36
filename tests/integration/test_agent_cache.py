"""Agents that are installed once per image: who shares the installed state, who does not, and what is in it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import rollout, write_job, write_task
from require import DOCKER_IMAGE, require

INSTALL = "#!/bin/sh\nset -e\nmkdir -p /opt/agent\ncat /proc/sys/kernel/random/uuid > /opt/agent/id\nenv > /opt/agent/env\n"
EXECUTE = "#!/bin/sh\ncp -r /opt/agent /logs/agent/seen\necho 42 > /app/answer.txt\n"
SECRET = "sk-Zq81-not-a-real-key-7Hd2"


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.needs("docker"))])
def kind(request: pytest.FixtureRequest) -> str:
    require(request.param)
    return str(request.param)


def run(folder: Path, kind: str, *arguments: str, expect: int = 0, **job: Any) -> list[dict[str, Any]]:
    """The results of the job's trials, in order of their names."""
    environment = {"type": kind, **job.pop("environment", {})}
    agent = {"name": "mine", "install": INSTALL, "execute": EXECUTE, **job.pop("agent", {})}
    file = write_job(folder, {"environment": environment, "agents": [agent], **job})
    done = rollout(folder, "run", file, *arguments, KEY=SECRET, timeout=300)
    assert done.returncode == expect, done.stdout + done.stderr
    return [json.loads(path.read_text()) for path in sorted((folder / "jobs").rglob("*__*/result.json"))]


def installs(folder: Path) -> list[str]:
    """What each trial's agent saw as the mark of its installation."""
    return [path.read_text() for path in sorted((folder / "jobs").rglob("logs/agent/seen/id"))]


def test_trials_of_an_image_start_from_one_installed_state(tmp_path: Path, kind: str) -> None:
    write_task(tmp_path / "tasks" / "a")
    results = run(tmp_path, kind, n_attempts=4, n_concurrent_trials=4)
    assert [result["reward"] for result in results] == [1.0] * 4
    assert len(installs(tmp_path)) == 4
    assert len(set(installs(tmp_path))) == 1


def test_off_installs_in_every_trial(tmp_path: Path, kind: str) -> None:
    write_task(tmp_path / "tasks" / "a")
    run(tmp_path, kind, n_attempts=2, environment={"agent_cache": False})
    assert len(set(installs(tmp_path))) == 2


def test_other_images_and_other_installers_share_nothing(tmp_path: Path, kind: str) -> None:
    write_task(tmp_path / "tasks" / "a")
    other = write_task(tmp_path / "tasks" / "b")
    (other / "environment" / "Dockerfile").write_text(f"FROM {DOCKER_IMAGE}\nRUN touch /other\nWORKDIR /app\n")
    job = write_job(
        tmp_path,
        {
            "environment": {"type": kind},
            "agents": [
                {"name": "one", "install": INSTALL, "execute": EXECUTE},
                {"name": "two", "install": INSTALL + "# another\n", "execute": EXECUTE},
            ],
        },
    )
    assert rollout(tmp_path, "run", job, timeout=300).returncode == 0
    assert len(installs(tmp_path)) == len(set(installs(tmp_path))) == 4


def test_secrets_and_the_instruction_are_not_in_the_shared_state(tmp_path: Path, kind: str) -> None:
    write_task(tmp_path / "tasks" / "a", instruction="Do the peculiar thing.\n")
    environment = {"delete": False, "env": {"OUTER_TOKEN": "${KEY}", "PLAIN": "outer"}}
    agent = {"env": {"MY_KEY": "${KEY}", "MODEL": "small"}}
    run(tmp_path, kind, n_attempts=2, agent=agent, environment=environment)
    assert len(set(installs(tmp_path))) == 1
    seen = next((tmp_path / "jobs").rglob("logs/agent/seen/env")).read_text()
    assert "MODEL=small" in seen
    assert "PLAIN=outer" in seen
    for hidden in ("MY_KEY", "OUTER_TOKEN", SECRET, "peculiar"):
        assert hidden not in seen
    if kind == "local":
        kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and not path.is_symlink()]
        assert not [path for path in kept if SECRET.encode() in path.read_bytes()]
        assert not [path for path in kept if path.name == "instruction.md"]
    else:
        for image in _images_of(tmp_path):
            for look in (["image", "inspect"], ["history", "--no-trunc"]):
                said = subprocess.run(["docker", *look, image], check=True, capture_output=True, text=True).stdout
                assert SECRET not in said
            subprocess.run(["docker", "image", "rm", "-f", image], check=True, capture_output=True)


def test_an_installer_that_names_a_secret_runs_in_every_trial_and_sees_it(tmp_path: Path, kind: str) -> None:
    write_task(tmp_path / "tasks" / "a")
    script = INSTALL + 'test -n "$MY_KEY"\n'
    results = run(tmp_path, kind, n_attempts=2, agent={"install": script, "env": {"MY_KEY": "${KEY}"}})
    assert [result["status"] for result in results] == ["scored"] * 2
    assert len(set(installs(tmp_path))) == 2


def test_an_installer_that_needs_a_secret_without_naming_it_runs_in_every_trial(tmp_path: Path, kind: str) -> None:
    write_task(tmp_path / "tasks" / "a")
    script = INSTALL + "env | grep -q ^MY_\n"
    results = run(tmp_path, kind, n_attempts=2, agent={"install": script, "env": {"MY_KEY": "${KEY}"}})
    assert [result["status"] for result in results] == ["scored"] * 2
    assert len(set(installs(tmp_path))) == 2


def test_a_failed_install_is_an_error_of_each_trial_and_nothing_is_kept(tmp_path: Path, kind: str) -> None:
    write_task(tmp_path / "tasks" / "a")
    environment = {"delete": False}
    results = run(
        tmp_path, kind, n_attempts=2, expect=1, agent={"install": "echo no such luck >&2; exit 7\n"}, environment=environment
    )
    for result in results:
        assert result["error"]["type"] == "agent_install_failed"
        assert result["error"]["phase"] == "install_agent"
        assert "7" in result["error"]["message"]
        assert "no such luck" in result["error"]["message"]
    assert _images_of(tmp_path) == [] if kind == "docker" else not list((tmp_path / "cache").rglob("layers/*/files/opt/agent"))


def test_nothing_is_left_after_a_job_that_deletes_and_it_is_used_again_after_one_that_does_not(tmp_path: Path, kind: str) -> None:
    write_task(tmp_path / "tasks" / "a")
    run(tmp_path, kind, environment={"delete": False})
    run(tmp_path, kind, "--fresh", environment={"delete": False})
    assert len(installs(tmp_path)) == 2
    assert len(set(installs(tmp_path))) == 1, "the second job started from what the first one kept"
    for image in _images_of(tmp_path) if kind == "docker" else []:
        subprocess.run(["docker", "image", "rm", "-f", image], check=True, capture_output=True)
    other = tmp_path / "other"
    write_task(other / "tasks" / "a")
    run(other, kind, agent={"install": INSTALL + "# deleted afterwards\n"})
    assert _images_of(other) == [] if kind == "docker" else not list((other / "cache").rglob("layers/*/config.json"))


def _images_of(folder: Path) -> list[str]:
    """The images that the jobs of a folder left in the engine."""
    found = []
    for path in (folder / "jobs").glob("*/config.json"):
        label = f"label=rollout.job={json.loads(path.read_text())['job_id']}"
        argv = ["docker", "images", "--quiet", "--filter", label]
        found += subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()
    return list(dict.fromkeys(found))  # an image comes before the one it was made of
