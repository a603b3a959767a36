"""dataset.toml: flat and under `[dataset]`, and what tasks take from it key by key."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.core.config.load import load_dataset_file, load_task_config
from rollout.core.errors import ConfigError

TABLE = """
[dataset]
name = "my-math"
type = "simple"
version = "1.0"
description = ""
category = "math"
split = "test"
data = "data/test.jsonl"
instruction_field = "question"
metadata_fields = ["answer"]
default_agent = "mini-swe-agent"
default_sandbox = "modal"
tasks = ["a", {path = "b"}]
[verifier]
script = "tests/test.sh"
[dataset.evaluation]
module = "tests.evaluate"
"""
FLAT = """
name = "my-swe-bench"
category = "agentic"
default_agent = "mini-swe-agent"
default_sandbox = "modal"
[verifier]
script = "tests/test.sh"
[[tasks]]
path = "b"
"""


def write(folder: Path, text: str, name: str = "dataset.toml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_keys_under_dataset(tmp_path: Path) -> None:
    config, warnings = load_dataset_file(write(tmp_path, TABLE))
    assert not warnings
    assert (config.name, config.type, config.category, config.data) == ("my-math", "simple", "math", "data/test.jsonl")
    assert (config.instruction_field, config.metadata_fields) == ("question", ["answer"])
    assert (config.default_agent, config.default_sandbox) == ("mini-swe-agent", "modal")
    assert config.task_paths == ["a", "b"]
    assert config.verifier.script == "tests/test.sh"
    assert config.evaluation is not None
    assert (config.evaluation.module, config.evaluation.function) == ("tests.evaluate", "evaluate")


def test_keys_at_the_top(tmp_path: Path) -> None:
    config, warnings = load_dataset_file(write(tmp_path, FLAT))
    assert not warnings
    assert (config.name, config.category, config.default_agent, config.task_paths) == (
        "my-swe-bench",
        "agentic",
        "mini-swe-agent",
        ["b"],
    )


def test_the_table_wins_and_leaves_the_rest(tmp_path: Path) -> None:
    config, _ = load_dataset_file(write(tmp_path, 'name = "flat"\ncategory = "qa"\n[dataset]\nname = "table"\n'))
    assert (config.name, config.category) == ("table", "qa")


def test_an_unknown_key_is_a_warning_with_advice(tmp_path: Path) -> None:
    _, warnings = load_dataset_file(write(tmp_path, "[dataset]\ncatgory = 1\n[verifer]\nscript = 1\n"))
    assert warnings == (
        "dataset.catgory: unknown key; did you mean `category`?",
        "verifer: unknown key; did you mean `verifier`?",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[dataset]\ntype = 'other'\n", "type"),
        ("tasks = [1]\n", r"tasks\[0\]: write a path"),
        ("[[tasks]]\nname = 'x'\n", r"tasks\[0\]: write a path"),
        ("[dataset]\nmetadata_fields = 'a'\n", "expected a list"),
        ("[dataset\n", "dataset.toml:"),
        ("[verifier]\ntimeout_sec = 0\n", "timeout_sec"),
    ],
)
def test_wrong_values_name_the_file_and_the_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_dataset_file(write(tmp_path, text))
    assert "dataset.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


DATASET = """
[verifier]
name = "math"
timeout_sec = 50
env = { A = "dataset", B = "dataset" }
[agent]
timeout_sec = 70
[environment]
docker_image = "base"
cpus = 2
"""


def test_a_task_takes_from_its_data_set_what_it_does_not_say(tmp_path: Path) -> None:
    dataset, _ = load_dataset_file(write(tmp_path, DATASET))
    config, _ = load_task_config(write(tmp_path, '[verifier]\nuser = "root"\nenv = {B = "task"}\n', "task.toml"), dataset)
    assert (config.verifier.name, config.verifier.timeout_sec, config.verifier.user) == ("math", 50, "root")
    assert config.verifier.env == {"A": "dataset", "B": "task"}
    assert (config.agent.timeout_sec, config.environment.docker_image, config.environment.cpus) == (70, "base", 2)


def test_what_a_task_says_wins_even_when_it_is_the_default(tmp_path: Path) -> None:
    dataset, _ = load_dataset_file(write(tmp_path, DATASET))
    text = "[verifier]\ntimeout = 600\n[agent]\ntimeout_sec = 600\n[environment]\ncpu = 1\n"
    config, warnings = load_task_config(write(tmp_path, text, "task.toml"), dataset)
    assert (config.verifier.timeout_sec, config.agent.timeout_sec, config.environment.cpus) == (600, 600, 1)
    assert config.verifier.name == "math"
    assert warnings == ('`version` is missing; write version = "1.0"',)


def test_a_verifier_of_its_own_replaces_the_data_sets(tmp_path: Path) -> None:
    dataset, _ = load_dataset_file(write(tmp_path, DATASET))
    config, _ = load_task_config(write(tmp_path, '[verifier]\nimport_path = "m:f"\n', "task.toml"), dataset)
    assert (config.verifier.name, config.verifier.import_path, config.verifier.timeout_sec) == (None, "m:f", 50)


_values = st.one_of(st.text(max_size=6), st.integers(), st.booleans(), st.lists(st.text(max_size=3), max_size=2))
_keys = st.sampled_from(["name", "type", "category", "split", "data", "tasks", "metadata_fields", "default_agent", "x"])


def toml_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, int):
        return str(value)
    return '"' + "".join(f"\\U{ord(character):08X}" for character in str(value) if not 0xD800 <= ord(character) < 0xE000) + '"'


@given(top=st.dictionaries(_keys, _values, max_size=3), table=st.dictionaries(_keys, _values, max_size=3))
def test_any_dataset_file_is_read_or_refused_in_one_line(
    top: dict[str, object], table: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = [f"{key} = {toml_value(value)}" for key, value in top.items()]
    lines += ["[dataset]", *(f"{key} = {toml_value(value)}" for key, value in table.items())]
    path = write(tmp_path_factory.mktemp("toml"), "\n".join(lines))
    try:
        config, _ = load_dataset_file(path)
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        for key in ("name", "split", "data"):
            if key in table:
                assert getattr(config, key) == str(table[key])
