"""`rollout tasks` and `rollout datasets` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from git_server import Repository, plain_http, write_task
from rollout.cli import datasets, tasks
from rollout.core.errors import UsageError


def call(command: Any, *arguments: str) -> tuple[str, int]:
    """What the command prints and the exit code it hands to the main program."""
    runner = CliRunner()
    result = runner.invoke(command, list(arguments), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout, result.return_value if isinstance(result.return_value, int) else 0


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_a_new_task_passes_the_check() -> None:
    printed, code = call(tasks.command, "init", "mine", "--dir", "set")
    assert code == 0
    assert "rollout tasks check set/mine" in printed
    assert call(tasks.command, "check", "set/mine") == ("1 task, 0 errors, 0 warnings\n", 0)


def test_findings_are_lines_and_errors_exit_1() -> None:
    folder = write_task(Path("set/t"))
    (folder / "tests" / "test.sh").unlink()
    printed, code = call(tasks.command, "check", "set")
    lines = printed.splitlines()
    assert code == 1
    assert lines[0].startswith("set/t/tests/test.sh: error: missing")
    assert lines[-1] == "1 task, 1 error, 0 warnings"


def test_warnings_alone_exit_0() -> None:
    (write_task(Path("set/t")) / "task.toml").write_text("")
    printed, code = call(tasks.command, "check", "set")
    assert code == 0
    assert printed.startswith("set/t/task.toml: warning: ")


def test_findings_as_json() -> None:
    (write_task(Path("set/t")) / "instruction.md").write_bytes(b"\xff")
    write_task(Path("other/u"))
    printed, code = call(tasks.command, "check", "--json", "set", "other/u")
    report = json.loads(printed)
    assert code == 1
    assert (report["tasks"], report["errors"], report["warnings"]) == (2, 1, 0)
    assert report["findings"][0]["file"] == "set/t/instruction.md"


def test_a_path_without_tasks_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no such folder"):
        call(tasks.command, "check", "nothing")


def test_datasets_of_a_registry_file_an_address_a_repository_and_a_folder(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository.git")
    write_task(repository.path / "set" / "t")
    registry = [
        {"name": "bench", "version": "1.0", "description": "First\nbench.", "tasks": [{"name": "t", "path": "set/t"}]},
        {"name": "long-name", "tasks": []},
    ]
    (repository.path / "registry.json").write_text(json.dumps(registry))
    repository.commit()
    table = "NAME       VERSION  TASKS  DESCRIPTION\nbench      1.0          1  First bench.\nlong-name               0\n"
    with plain_http(repository.path) as server:
        for source in (f"{repository.path}/registry.json", f"{server.url}/registry.json", str(repository.path)):
            assert call(datasets.command, "list", source) == (table, 0)
        assert call(datasets.command, "list", str(repository.path), "--ref", "main") == (table, 0)
    assert call(datasets.command, "list", f"{server.url}/registry.json", "--offline") == (table, 0)
    printed, _ = call(datasets.command, "list", str(repository.path / "set"), "--json")
    assert [(info["name"], info["task_count"]) for info in json.loads(printed)] == [("set", 1)]


def test_datasets_of_a_job_are_listed_relative_to_it(tmp_path: Path) -> None:
    write_task(tmp_path / "job" / "set" / "t")
    (tmp_path / "job" / "registry.json").write_text(json.dumps([{"name": "bench", "version": "1", "tasks": []}]))
    (tmp_path / "job" / "job.yaml").write_text(
        """
agents: [{name: oracle}]
datasets:
  - path: set
  - {registry: {path: registry.json}, name: bench}
  - {registry: {path: registry.json}, name: bench, version: "1"}
"""
    )
    printed, _ = call(datasets.command, "list", "../job/job.yaml", "--json")
    assert [(info["name"], info["version"]) for info in json.loads(printed)] == [("set", None), ("bench", "1")]


@pytest.mark.parametrize("source", ["nothing.json", "https://127.0.0.1:1/registry.json", "ssh://-x/y.git"])
def test_a_source_that_cannot_be_read_is_a_usage_error(source: str) -> None:
    with pytest.raises(UsageError):
        call(datasets.command, "list", source)
