"""Names that are safe as folders and as container names: the golden rows of TestSanitizeEnvName, and any text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.core.trial.paths import FolderNames, environment_name, folder_name, reward_files


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MyDataset-Task", "mydataset-task"),
        ("my_task_name", "my-task-name"),
        ("v1.2.3", "v1-2-3"),
        ("a  b!!c", "a-b-c"),
        ("-edges-", "edges"),
        ("a" * 100, "a" * 64),
        ("a" * 63 + "-b", "a" * 63),
    ],
)
def test_environment_names(text: str, expected: str) -> None:
    assert environment_name(text) == expected


def test_the_unique_part_survives_the_cut() -> None:
    names = {environment_name("long" * 50, unique=f"{attempt}") for attempt in range(3)}
    assert len(names) == 3
    assert all(len(name) <= 64 for name in names)


@given(st.text(min_size=1, max_size=300))
def test_any_name_becomes_one_plain_folder(name: str) -> None:
    folder = folder_name(name)
    assert folder == folder_name(name)
    assert 0 < len(folder) <= 80
    assert "/" not in folder
    assert "\0" not in folder
    assert not folder.startswith(".")
    folder.encode("ascii")


@given(st.lists(st.text(min_size=1, max_size=12), unique=True, max_size=30))
def test_different_names_never_share_a_folder(names: list[str]) -> None:
    folders = FolderNames()
    made = [folders(name) for name in names]
    assert len({folder.casefold() for folder in made}) == len(names)
    assert [folders(name) for name in names] == made


def test_case_clashes_get_a_hash_and_the_first_stays_plain() -> None:
    folders = FolderNames()
    assert folders("Task") == "Task"
    assert folders("task").startswith("task-")


def test_reward_files_of_both_dialects() -> None:
    assert reward_files(rllm=False) == ("/logs/verifier/reward.txt", "/logs/verifier/reward.json")
    assert reward_files(rllm=True) == ("/tmp/rllm/reward.json", "/logs/verifier/reward.json", "/logs/verifier/reward.txt")
