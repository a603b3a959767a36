"""Which verifier a task has: the four declarations, their order, and what is found when none is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollout.core.config.dataset import DatasetFile, EvaluationConfig
from rollout.core.config.task import TaskVerifierConfig
from rollout.core.errors import TaskError
from rollout.core.tasks.verifier_declaration import DeclaredVerifier, declared_verifier
from unit.tasks.datasets import write_files

ALL = {"script": "tests/test.sh", "module": "tests.evaluate", "name": "math", "import_path": "m:f", "rewards": ["f1", "math"]}
FILES = ("task/tests/test.sh", "task/tests/evaluate.py", "tests/evaluate.py", "tests/test.sh")


def declare(root: Path, files: tuple[str, ...] = FILES, **keys: Any) -> DeclaredVerifier | None:
    write_files(root, dict.fromkeys((*files, "task/task.toml"), ""))
    return declared_verifier(TaskVerifierConfig(**keys), root / "task", root, DatasetFile())


@pytest.mark.parametrize(
    ("left_out", "plugin", "options"),
    [
        ((), "script", {}),
        (("script",), "python", {"module": "tests.evaluate", "function": "evaluate"}),
        (("script", "module"), "rewards", {"rewards": ["math"]}),
        (("script", "module", "name"), "python", {"import_path": "m:f"}),
        (("script", "module", "name", "import_path"), "rewards", {"rewards": ["f1", "math"]}),
    ],
)
def test_of_several_declarations_the_first_counts(
    tmp_path: Path, left_out: tuple[str, ...], plugin: str, options: dict[str, Any]
) -> None:
    found = declare(tmp_path, **{key: value for key, value in ALL.items() if key not in left_out})
    assert found is not None
    assert (found.plugin, found.options) == (plugin, options)


@pytest.mark.parametrize(
    ("files", "plugin", "place"),
    [
        (FILES, "script", "task/tests"),
        (FILES[1:], "python", "task/tests"),
        (FILES[2:], "python", "tests"),
        (FILES[3:], "script", "tests"),
    ],
)
def test_without_a_declaration_the_tasks_files_come_before_the_data_sets(
    tmp_path: Path, files: tuple[str, ...], plugin: str, place: str
) -> None:
    found = declare(tmp_path, files)
    assert found is not None
    assert (found.plugin, found.files) == (plugin, tmp_path / place)


def test_without_any_there_is_none(tmp_path: Path) -> None:
    assert declare(tmp_path, ()) is None


def test_the_older_evaluation_table_names_a_module(tmp_path: Path) -> None:
    write_files(tmp_path, {"score.py": ""})
    dataset = DatasetFile(evaluation=EvaluationConfig(module="score", function="run"))
    found = declared_verifier(TaskVerifierConfig(), tmp_path, tmp_path, dataset)
    assert found is not None
    assert found.options == {"module": "score", "function": "run"}


def test_a_script_elsewhere_makes_its_folder_the_tests(tmp_path: Path) -> None:
    found = declare(tmp_path, ("task/check/deep/run.sh",), script="check/deep/run.sh", reward_file="/out/r.json")
    assert found == DeclaredVerifier(
        "script",
        {"script": "run.sh", "reward_file": "/out/r.json"},
        tmp_path / "task/check/deep",
        tmp_path / "task/check/deep",
    )


@pytest.mark.parametrize(
    ("environment", "sandbox"), [(("environment/Dockerfile",), True), (("task/environment/x",), True), ((), False)]
)
def test_a_python_verifier_of_a_task_with_an_environment_is_hybrid(
    tmp_path: Path, environment: tuple[str, ...], sandbox: bool
) -> None:
    found = declare(tmp_path, ("task/tests/evaluate.py", *environment))
    assert found is not None
    assert found.sandbox is sandbox


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"script": "tests/none.sh"}, "verifier.script: .*no such file"),
        ({"script": "task.toml"}, "must be in a folder"),
        ({"script": "../tests/x.sh"}, "must be in a folder"),
        ({"module": "none"}, r"verifier.module: .*none\.py: no such file"),
        ({"module": "tests.none"}, r"verifier.module: .*tests/none\.py: no such file"),
    ],
)
def test_what_is_declared_has_to_be_there(tmp_path: Path, keys: dict[str, str], message: str) -> None:
    write_files(tmp_path, {"tests/x.sh": ""})
    with pytest.raises(TaskError, match=message):
        declare(tmp_path, **keys)
