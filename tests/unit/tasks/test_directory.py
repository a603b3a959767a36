"""A dataset on disk: which folders are tasks, how they are called, and that one bad task hides no other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from git_server import Repository, git, write_task
from rollout.core.errors import TaskNotFoundError
from rollout.core.tasks.commits import EnclosingCommits
from rollout.core.tasks.directory import load_dataset
from unit.tasks.datasets import folder_task, write_files


def names(path: Path) -> list[str]:
    return [task.name for task in load_dataset(path).tasks]


def test_tasks_are_sorted_by_name(tmp_path: Path) -> None:
    for name in ("b", "a", "c-10", "c-9"):
        write_task(tmp_path / name)
    assert names(tmp_path) == ["a", "b", "c-10", "c-9"]


def test_a_path_may_be_one_task(tmp_path: Path) -> None:
    write_task(tmp_path / "only" / "one")
    assert names(tmp_path / "only" / "one") == ["one"]


def test_one_task_belongs_to_the_data_set_around_it_unless_that_lists_others_or_holds_rows(tmp_path: Path) -> None:
    root = write_files(tmp_path / "bench", {"dataset.toml": "[verifier]\nmodule = 'check.py'\n", "check.py": "evaluate = bool\n"})
    task = folder_task(root, "group/one")
    [found] = load_dataset(task).tasks
    assert (found.name, found.verifier.plugin) == ("one", "python")
    assert load_dataset(task).name == "one"
    (root / "dataset.toml").write_text("tasks = ['group/two']\n[verifier]\nmodule = 'check.py'\n")
    assert [error for _, error in load_dataset(task).invalid]
    (root / "dataset.toml").write_text("[dataset\n")
    assert "dataset.toml:1" in str(load_dataset(task).invalid[0][1])


def test_a_folder_without_configuration_is_a_group_of_tasks(tmp_path: Path) -> None:
    for name in ("top", "easy/a", "easy/deeper/b", "hard/a"):
        write_task(tmp_path / name)
    assert names(tmp_path) == ["easy/a", "easy/deeper/b", "hard/a", "top"]


def test_hidden_folders_files_and_folders_without_tasks_are_passed_over(tmp_path: Path) -> None:
    write_task(tmp_path / "a")
    write_task(tmp_path / ".hidden" / "b")
    write_task(tmp_path / "a" / "inner" / "c")
    (tmp_path / ".git").mkdir()
    (tmp_path / "README_assets").mkdir()
    (tmp_path / "README_assets" / "logo.png").write_bytes(b"\x89PNG")
    (tmp_path / "README.md").write_text("about")
    (tmp_path / "dataset.toml").write_text('[dataset]\nname = "x"\n')
    loaded = load_dataset(tmp_path)
    assert [task.name for task in loaded.tasks] == ["a"]
    assert loaded.invalid == []


def test_every_invalid_task_is_reported_and_the_others_are_loaded(tmp_path: Path) -> None:
    for name in ("good", "no-config", "no-tests", "group/empty-instruction"):
        write_task(tmp_path / name)
    (tmp_path / "no-config" / "task.toml").unlink()
    (tmp_path / "no-tests" / "tests" / "test.sh").unlink()
    (tmp_path / "group" / "empty-instruction" / "instruction.md").write_text("")
    loaded = load_dataset(tmp_path)
    assert [task.name for task in loaded.tasks] == ["good"]
    assert [path for path, _ in loaded.invalid] == [
        tmp_path / "group" / "empty-instruction",
        tmp_path / "no-config",
        tmp_path / "no-tests",
    ]
    for path, error in loaded.invalid:
        assert str(path) in str(error)


def test_a_single_task_without_configuration_is_a_fault_and_not_an_empty_group(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "one")
    (folder / "task.toml").unlink()
    loaded = load_dataset(folder)
    assert [str(error) for _, error in loaded.invalid] == [f"{folder}/task.toml: missing; an empty file will do"]


def test_names_that_differ_only_in_case_are_an_error_that_names_both(tmp_path: Path) -> None:
    write_task(tmp_path / "Same")
    write_task(tmp_path / "same")
    loaded = load_dataset(tmp_path)
    assert [task.name for task in loaded.tasks] == ["Same"]
    assert [str(error) for _, error in loaded.invalid] == [
        f"{tmp_path}/same: its name differs from 'Same' only in case; rename one of them"
    ]


def test_a_task_behind_a_link_is_loaded_inside_the_dataset_and_refused_outside(tmp_path: Path) -> None:
    write_task(tmp_path / "set" / "a")
    write_task(tmp_path / "outside")
    (tmp_path / "set" / "again").symlink_to("a")
    (tmp_path / "set" / "stolen").symlink_to("../outside")
    (tmp_path / "set" / "loop").symlink_to(".")
    (tmp_path / "set" / "broken").symlink_to("nowhere")
    loaded = load_dataset(tmp_path / "set")
    assert [task.name for task in loaded.tasks] == ["a", "again"]
    assert [(path.name, "outside the dataset" in str(error)) for path, error in loaded.invalid] == [("stolen", True)]


def test_the_dataset_itself_may_be_a_link(tmp_path: Path) -> None:
    write_task(tmp_path / "real" / "a")
    (tmp_path / "link").symlink_to("real")
    assert names(tmp_path / "link") == ["a"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "no such folder"),
        (lambda path: path.write_text(""), "is not a folder"),
        (lambda path: path.mkdir(), "no task in it"),
        (lambda path: (path / "x" / "y").mkdir(parents=True), "no task in it"),
    ],
)
def test_a_path_without_tasks_is_not_found(make, said: str, tmp_path: Path) -> None:
    make(tmp_path / "set")
    with pytest.raises(TaskNotFoundError, match=said):
        load_dataset(tmp_path / "set")


def test_rows_without_a_dataset_file_say_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "test.jsonl").write_text("{}\n")
    with pytest.raises(TaskNotFoundError, match=r"rows need a dataset\.toml"):
        load_dataset(tmp_path)


def test_a_dataset_file_without_rows_and_tasks_says_where_rows_would_be(tmp_path: Path) -> None:
    (tmp_path / "dataset.toml").write_text('split = "dev"\n')
    with pytest.raises(TaskNotFoundError, match=r"task\.toml, and rows are in data/dev\.jsonl$"):
        load_dataset(tmp_path)


def test_tasks_of_a_repository_know_its_commit_and_git_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository(tmp_path / "repository")
    for number in range(5):
        write_task(repository.path / "tasks" / f"t{number}")
    commit = repository.commit()
    write_task(tmp_path / "outside")
    asked: list[object] = []
    run = subprocess.run

    def counting(command, *arguments, **keywords):
        asked.append(command)
        return run(command, *arguments, **keywords)

    monkeypatch.setattr(subprocess, "run", counting)
    assert {task.git_commit_id for task in load_dataset(repository.path / "tasks").tasks} == {commit}
    assert len(asked) == 1
    commits = EnclosingCommits()
    assert commits.of(tmp_path / "outside") is None
    assert len(asked) == 1


def test_a_repository_without_commit_or_git_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository(tmp_path / "repository")
    write_task(repository.path / "a")
    assert [task.git_commit_id for task in load_dataset(repository.path).tasks] == [None]
    repository.commit()
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    assert [task.git_commit_id for task in load_dataset(repository.path).tasks] == [
        repository.path.joinpath(".git/refs/heads/main").read_text().strip()
    ]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [task.git_commit_id for task in load_dataset(repository.path).tasks] == [None]


def test_a_work_tree_of_another_repository_counts(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    write_task(repository.path / "a")
    commit = repository.commit()
    git(repository.path, "worktree", "add", "--quiet", "--detach", str(tmp_path / "tree"))
    assert [task.git_commit_id for task in load_dataset(tmp_path / "tree").tasks] == [commit]
