"""Tasks as Python code sees them: the metadata of a folder, with what is lifted from its sections and its Dockerfile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollout.core.records import TaskSpec
from rollout.core.tasks.view import folder_metadata, task_of
from unit.tasks.datasets import folder_task, write_files

DOCKERFILE = "FROM base:9\nWORKDIR /df\n"
LIFTED: dict[str, Any] = {
    "environment": {"docker_image": "base:9"},
    "workdir": "/df",
    "env_vars": {},
    "agent_user": None,
    "verifier_user": None,
    "verifier_timeout": 600.0,
    "agent_timeout": 600.0,
    "setup_commands": [],
}


def test_an_empty_task_file_with_a_dockerfile(tmp_path: Path) -> None:
    folder_task(tmp_path, "a", "", {"environment/Dockerfile": DOCKERFILE})
    assert folder_metadata(tmp_path / "a") == LIFTED


def test_the_data_sets_dockerfile_is_looked_at_when_the_task_has_none(tmp_path: Path) -> None:
    folder_task(tmp_path, "a", "")
    write_files(tmp_path, {"environment/Dockerfile": DOCKERFILE})
    assert folder_metadata(tmp_path / "a", tmp_path) == LIFTED


@pytest.mark.parametrize(
    ("toml", "lifted"),
    [
        ('[environment]\nworkdir = "/w"\ndocker_image = "own"\n', {"workdir": "/w"}),
        ('[agent]\nuser = "agent"\ntimeout_sec = 5\n', {"agent_user": "agent", "agent_timeout": 5}),
        ('[verifier]\nuser = "root"\ntimeout = 7\n', {"verifier_user": "root", "verifier_timeout": 7}),
        ('[environment]\nenv = {A = "1"}\n', {"env_vars": {"A": "1"}}),
        (
            '[rllm]\nsetup_commands = ["x"]\nmax_turns = 3\n',
            {"setup_commands": ["x"], "rllm": {"setup_commands": ["x"], "max_turns": 3}},
        ),
        ('[environment]\nsetup_commands = ["y"]\n', {"setup_commands": ["y"]}),
        ('[metadata]\nground_truth = "4"\n', {"metadata": {"ground_truth": "4"}}),
    ],
)
def test_what_task_toml_says_wins_and_is_lifted(tmp_path: Path, toml: str, lifted: dict[str, Any]) -> None:
    folder_task(tmp_path, "a", toml, {"environment/Dockerfile": DOCKERFILE})
    metadata = folder_metadata(tmp_path / "a")
    assert {key: metadata[key] for key in lifted} == lifted
    assert metadata["environment"]["docker_image"] == ("own" if "own" in toml else "base:9")


def test_without_a_dockerfile_nothing_is_lifted_from_one(tmp_path: Path) -> None:
    folder_task(tmp_path, "a", "")
    assert {"environment", "workdir"}.isdisjoint(folder_metadata(tmp_path / "a"))


@pytest.mark.parametrize(
    ("toml", "dataset", "id_", "sub_dir"),
    [("", False, "a", None), ('[task]\nname = "org/x"\n', False, "org/x", None), ("", True, "a", Path("a"))],
)
def test_the_id_and_the_folders_of_a_task(tmp_path: Path, toml: str, dataset: bool, id_: str, sub_dir: Path | None) -> None:
    path = folder_task(tmp_path, "a", toml)
    spec = TaskSpec(name="n", dataset="d", path=str(path), digest="", dataset_dir=str(tmp_path) if dataset else None)
    task = task_of(spec)
    assert (task.id, task.sub_dir, task.task_dir, task.instruction) == (id_, sub_dir, path, "Do a.\n")
