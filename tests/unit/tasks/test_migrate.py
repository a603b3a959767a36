"""Terminal-Bench 1 tasks as task folders of today."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rollout.core.errors import TaskError, UsageError
from rollout.core.tasks.check import check_paths
from rollout.core.tasks.migrate import migrate
from rollout.core.tasks.task import load_task
from unit.tasks.datasets import write_files

TASK = """\
instruction: |-
  Write "hello" to hello.txt.
author_name: A
difficulty: easy
category: file-operations
tags: [a, 'b "c"']
parser_name: pytest
max_agent_timeout_sec: 180.0
max_test_timeout_sec: 30
"""
COMPOSE = """\
services:
  client:
    build: {dockerfile: Dockerfile}
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    command: [sh, -c, sleep infinity]
    environment: ["TEST_DIR=${T_BENCH_TEST_DIR}", "MODE=fast"]
    working_dir: /work
"""
FILES = {
    "task.yaml": TASK,
    "Dockerfile": "FROM ghcr.io/laude-institute/t-bench/python-3-13:20250620 AS x\nCOPY data /data\n",
    "docker-compose.yaml": COMPOSE,
    "run-tests.sh": "#!/bin/bash\ntest -f $TEST_DIR/test_outputs.py || exit 1\nexit 0\n",
    "solution.sh": "#!/bin/bash\necho hello > hello.txt\n",
    "tests/test_outputs.py": "def test_x(): pass\n",
    "data/x.txt": "x",
}


def test_a_task_becomes_a_folder_that_can_be_used(tmp_path: Path) -> None:
    write_files(tmp_path / "old/hello", FILES)
    (done,) = migrate(tmp_path / "old", tmp_path / "new")
    task = load_task(done.folder)
    assert (task.name, task.instruction(), done.notes) == ("hello", 'Write "hello" to hello.txt.\n', ())
    config = task.config
    assert (config.agent.timeout_sec, config.verifier.timeout_sec) == (180, 30)
    assert config.metadata == {"difficulty": "easy", "category": "file-operations", "tags": ["a", 'b "c"'], "author_name": "A"}
    assert (config.environment.env, config.environment.workdir) == ({"MODE": "fast"}, "/work")
    dockerfile = (done.folder / "environment/Dockerfile").read_text()
    assert dockerfile == "FROM python:3.13-slim-bookworm AS x\nWORKDIR /app\nCOPY data /data\n"
    assert (done.folder / "environment/data/x.txt").is_file()
    assert not (done.folder / "environment/docker-compose.yaml").exists()
    assert not (done.folder / "environment/task.yaml").exists()
    assert os.access(done.folder / "solution/solve.sh", os.X_OK)
    assert check_paths([done.folder]).errors == 0


@pytest.mark.parametrize(("code", "reward"), [(0, "1"), (1, "0"), (3, "0")])
def test_the_verdict_is_the_exit_code_even_when_the_script_exits(tmp_path: Path, code: int, reward: str) -> None:
    write_files(tmp_path / "old", {**FILES, "run-tests.sh": f"set -e\nexit {code}\n"})
    (done,) = migrate(tmp_path / "old", tmp_path / "new")
    script = (done.folder / "tests/test.sh").read_text()
    here = script.replace("/tests", str(done.folder / "tests")).replace("/logs/verifier", str(tmp_path))
    subprocess.run(["bash", "-c", here], check=True)
    assert (tmp_path / "reward.txt").read_text().strip() == reward


def test_several_services_are_kept_and_said(tmp_path: Path) -> None:
    compose = COMPOSE + "    depends_on: [db]\n  db:\n    image: postgres:16\nvolumes: {v: {}}\n"
    write_files(tmp_path / "old", {**FILES, "docker-compose.yaml": compose})
    (done,) = migrate(tmp_path / "old", tmp_path / "new")
    assert (done.folder / "environment/docker-compose.yaml").read_text() == (
        "services:\n  main:\n    depends_on:\n    - db\n  db:\n    image: postgres:16\nvolumes:\n  v: {}\n"
    )
    assert any("2 services" in note for note in done.notes)


def test_what_cannot_be_told_is_a_note(tmp_path: Path) -> None:
    files = {key: text for key, text in FILES.items() if key != "solution.sh"}
    files["solution.yaml"] = "- command: cd /app\n  block: true\n- command: make\n"
    files["task.yaml"] += "run_tests_in_same_shell: true\n"
    files["task.yaml"] = files["task.yaml"].replace("pytest", "junit")
    files["Dockerfile"] += "COPY tests/ /t\n"
    write_files(tmp_path / "old", files)
    (done,) = migrate(tmp_path / "old", tmp_path / "new")
    assert (done.folder / "solution/solve.sh").read_text() == "#!/bin/bash\ncd /app\nmake\n"
    assert [note.split(";")[0].split(",")[0] for note in done.notes] == [
        "its Dockerfile copies tests/ into the image",
        "its solution was typed into a terminal",
        "ran its tests in the agent's shell",
        "was scored by the parser 'junit'",
    ]


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    write_files(tmp_path / "old/a", FILES)
    write_files(tmp_path / "new/a", {"x": ""})
    with pytest.raises(UsageError, match="exists already"):
        migrate(tmp_path / "old", tmp_path / "new")


def test_tasks_that_need_no_migration_say_so(tmp_path: Path) -> None:
    write_files(tmp_path / "harbor/a", {"task.toml": ""})
    with pytest.raises(UsageError, match="read as it stands"):
        migrate(tmp_path / "harbor", tmp_path / "new")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"task.yaml": "a: 1\n"}, "no `instruction`"),
        ({"task.yaml": "instruction: [\n"}, "task.yaml"),
        ({"run-tests.sh": None}, "missing"),
    ],
)
def test_a_task_that_cannot_be_read_says_which(tmp_path: Path, files: dict[str, str | None], message: str) -> None:
    both = {**FILES, **files}
    write_files(tmp_path / "old", {name: text for name, text in both.items() if text is not None})
    with pytest.raises(TaskError, match=message):
        migrate(tmp_path / "old", tmp_path / "new")
