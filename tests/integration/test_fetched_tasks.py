"""The real command on tasks that come from registries, git and the network, and on a task made by `tasks init`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from git_server import Repository, Server, plain_http, smart_http
from integration.jobs import rollout, trial_results, write_job, write_task


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    repository = Repository(tmp_path / "origin" / "tasks")
    for name in ("one", "two", "three"):
        write_task(repository.path / "suite" / name)
    repository.commit()
    return repository


@pytest.fixture
def server(tmp_path: Path, repository: Repository) -> Iterator[Server]:
    with smart_http(tmp_path / "origin") as server:
        yield server


def registry(url: str, **task: str) -> list[dict[str, object]]:
    tasks = [{"name": f"my-{name}", "git_url": url, "path": f"suite/{name}", **task} for name in ("one", "two")]
    return [{"name": "bench", "version": "1.0", "tasks": []}, {"name": "bench", "version": "2.0", "tasks": tasks}]


def bench(registry: dict[str, str], version: str = "2.0") -> dict[str, object]:
    return {"datasets": [{"registry": registry, "name": "bench", "version": version}]}


@pytest.mark.needs("local")
def test_a_job_on_a_registry_behind_a_url_runs_and_runs_again_offline(
    tmp_path: Path, repository: Repository, server: Server
) -> None:
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "registry.json").write_text(json.dumps(registry(f"{server.url}/tasks/.git")))
    with plain_http(tmp_path / "www") as files:
        job = write_job(tmp_path / "work", bench({"url": f"{files.url}/registry.json"}))
        done = rollout(tmp_path / "work", job, "--display", "plain")
        assert done.returncode == 0, done.stderr
    results = trial_results(tmp_path / "work" / "jobs" / "job")
    assert {name: result["reward"] for name, result in results.items()} == {
        "oracle/bench/my-one__1": 1.0,
        "oracle/bench/my-two__1": 1.0,
    }
    head = (repository.path / ".git/refs/heads/main").read_text().strip()
    assert {result["task_git_commit_id"] for result in results.values()} == {head}

    server.requests.clear()
    again = rollout(tmp_path / "work", job, "--offline", "--fresh", "--display", "plain")
    assert again.returncode == 0, again.stderr
    assert server.requests == []


def test_without_network_and_cache_the_job_does_not_start_and_says_why_in_one_line(tmp_path: Path) -> None:
    job = write_job(tmp_path / "work", bench({"url": "http://127.0.0.1:1/registry.json"}))
    for options, said in (((), "Connection refused"), (("--offline",), "run once without --offline")):
        done = rollout(tmp_path / "work", job, *options)
        assert done.returncode == 2
        (line,) = done.stderr.strip().splitlines()
        assert "http://127.0.0.1:1/registry.json" in line
        assert said in line
    assert not (tmp_path / "work" / "jobs").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": "3.0"}, "did you mean"),
        ({"name": "benhc"}, "did you mean 'bench'"),
        ({"version": "1.0"}, "has no tasks"),
    ],
)
def test_a_dataset_that_is_not_there_is_one_line_that_lists_what_is(
    change: dict[str, str], said: str, tmp_path: Path, repository: Repository
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "registry.json").write_text(json.dumps(registry(str(repository.path))))
    dataset = {"registry": {"path": "registry.json"}, "name": "bench", "version": "2.0", **change}
    done = rollout(work, write_job(work, {"datasets": [dataset]}))
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert said in line


def test_only_the_tasks_that_are_asked_for_are_fetched(tmp_path: Path, repository: Repository) -> None:
    work = tmp_path / "work"
    work.mkdir()
    listed = registry(str(repository.path))
    listed[1]["tasks"].append({"name": "broken", "git_url": str(tmp_path / "nowhere"), "path": "x"})  # type: ignore[attr-defined]
    (work / "registry.json").write_text(json.dumps(listed))
    dataset = {
        "registry": {"path": "registry.json"},
        "name": "bench",
        "version": "2.0",
        "exclude_task_names": ["my-t*", "broken"],
    }
    done = rollout(work, write_job(work, {"datasets": [dataset]}), "--dry-run")
    assert done.returncode == 0, done.stderr
    fetched = [path.name.rpartition("-")[0] for path in (work / "cache" / "git").glob("*/trees/*/*") if path.is_dir()]
    assert fetched == ["one"]


def test_a_link_in_a_fetched_task_that_leads_out_of_it_stops_the_job(tmp_path: Path, repository: Repository) -> None:
    (repository.path / "suite" / "one" / "tests" / "keys").symlink_to("/etc/passwd")
    repository.commit()
    work = tmp_path / "work"
    work.mkdir()
    (work / "registry.json").write_text(json.dumps(registry(str(repository.path))))
    done = rollout(work, write_job(work, bench({"path": "registry.json"})))
    assert done.returncode == 2
    assert "'/etc/passwd', which is outside the task" in done.stderr


@pytest.mark.needs("local")
def test_a_new_task_is_solved_by_the_oracle_and_not_by_doing_nothing(tmp_path: Path) -> None:
    assert rollout(tmp_path, "tasks", "init", "mine", "--dir", "tasks").returncode == 0
    assert rollout(tmp_path, "tasks", "check", "tasks").returncode == 0
    job = write_job(tmp_path, {"agents": [{"name": "oracle"}, {"name": "nop"}]})
    done = rollout(tmp_path, job, "--display", "plain")
    assert done.returncode == 0, done.stderr
    results = trial_results(tmp_path / "jobs" / "job")
    assert {name: result["reward"] for name, result in results.items()} == {"oracle/tasks/mine__1": 1.0, "nop/tasks/mine__1": 0.0}
