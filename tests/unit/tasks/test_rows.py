"""Data sets of rows: which file, ids, instructions, metadata, images, digests, and every fault with its line."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.core.errors import TaskError
from rollout.core.tasks.dataset_folder import read_dataset_folder
from rollout.core.tasks.directory import LoadedDataset, load_dataset
from rollout.core.tasks.rows import RowDataset, index_rows
from unit.tasks.datasets import rows_dataset


def rows_of(loaded: LoadedDataset) -> RowDataset:
    assert loaded.rows is not None
    return loaded.rows


def load(root: Path, rows: list[Any], toml: str = "[dataset]\n", **files: str | bytes) -> RowDataset:
    named = {name.replace("__", "/").replace("_md", ".md").replace("_tpl", ".tpl"): text for name, text in files.items()}
    loaded = load_dataset(rows_dataset(root, rows, toml, named))
    assert not loaded.invalid
    return rows_of(loaded)


def faults(root: Path, rows: list[Any], toml: str = "[dataset]\n", **files: str) -> list[str]:
    named = {name.replace("_md", ".md").replace("_tpl", ".tpl"): text for name, text in files.items()}
    loaded = load_dataset(rows_dataset(root, rows, toml, named))
    return [str(error).removeprefix(f"{root}/") for _, error in loaded.invalid]


def test_each_line_is_a_task_with_its_id_or_number(tmp_path: Path) -> None:
    rows = load(tmp_path, [{"id": "a", "question": "1"}, {"question": "2"}, "", {"id": 7, "question": "3"}])
    assert [(row.id, row.instruction) for row in rows] == [("a", "1"), ("1", "2"), ("7", "3")]
    assert list(rows.ids()) == ["a", "1", "7"]
    assert rows[2].id == "7"


@pytest.mark.parametrize(
    ("toml", "files", "instruction"),
    [
        ('[dataset]\ninstruction_field = "p"\n', {"instruction_md_tpl": "T {{p}}\n", "instruction_md": "L\n"}, "T prompt\n"),
        ('[dataset]\ninstruction_field = "p"\n', {"instruction_md": "L\n"}, "prompt"),
        ('instruction_field = "p"\n', {}, "prompt"),
        ("[dataset]\n", {"instruction_md": "L\n"}, "L\n"),
        ("[dataset]\n", {}, "q"),
    ],
)
def test_the_instruction_comes_from_template_then_field_then_file(
    tmp_path: Path, toml: str, files: dict[str, str], instruction: str
) -> None:
    (row,) = load(tmp_path, [{"p": "prompt", "question": "q", "instruction": "i"}], toml, **files)
    assert row.instruction == instruction


def test_metadata_is_the_row_or_the_fields_that_are_named(tmp_path: Path) -> None:
    row = {"id": "a", "question": "q", "answer": 4, "ground_truth": [1]}
    assert load(tmp_path / "all", [row])[0].metadata == row
    toml = '[dataset]\nmetadata_fields = ["answer", "missing"]\n'
    assert load(tmp_path / "some", [row], toml)[0].metadata == {"answer": 4, "missing": None}


def test_a_task_of_a_row_has_the_data_sets_folder(tmp_path: Path) -> None:
    rows = load(tmp_path, [{"question": "q", "ground_truth": "4"}])
    task = rows.task(rows[0])
    assert (task.id, task.task_dir, task.sub_dir) == ("0", tmp_path, None)
    assert task.metadata["ground_truth"] == "4"


def test_images_of_a_row_are_content_blocks_in_its_order_each_once(tmp_path: Path) -> None:
    row = {"question": "q", "b": "images/b.png", "more": ["images/a.jpg", "images/b.png", "images/none.png", "images/../x.png"]}
    files = {"images/a.jpg": b"A", "images/b.png": b"B", "x.png": b"X"}
    rows = rows_of(load_dataset(rows_dataset(tmp_path, [row], '[dataset]\ncategory = "vlm"\n', files)))
    assert rows[0].images == ("images/b.png", "images/a.jpg")
    task = rows.task(rows[0])
    assert task.text == "q"
    assert isinstance(task.instruction, list)
    urls = [block["image_url"]["url"] for block in task.instruction[1:]]
    png, jpeg = (base64.b64encode(data).decode() for data in (b"B", b"A"))
    assert urls == [f"data:image/png;base64,{png}", f"data:image/jpeg;base64,{jpeg}"]
    assert json.loads(json.dumps(task.instruction)) == task.instruction


def test_images_elsewhere_are_only_text(tmp_path: Path) -> None:
    rows = load(tmp_path, [{"question": "q", "b": "images/b.png"}], images__b=b"B")
    assert rows[0].images == ()


@pytest.mark.parametrize(
    ("split", "toml", "wanted"),
    [
        (None, "[dataset]\n", "test"),
        (None, '[dataset]\nsplit = "dev"\n', "dev"),
        ("dev", "[dataset]\n", "dev"),
        (None, '[dataset]\ndata = "more/own.jsonl"\n', "own"),
        ("dev", '[dataset]\ndata = "more/own.jsonl"\n', "dev"),
    ],
)
def test_which_file_is_read(tmp_path: Path, split: str | None, toml: str, wanted: str) -> None:
    files = {name: json.dumps({"question": stem}) for name, stem in (("data/dev.jsonl", "dev"), ("more/own.jsonl", "own"))}
    loaded = load_dataset(rows_dataset(tmp_path, [{"question": "test"}], toml, files), split=split)
    assert [row.instruction for row in rows_of(loaded)] == [wanted]


def test_a_split_that_is_not_there_lists_those_that_are(tmp_path: Path) -> None:
    rows_dataset(tmp_path, [{"question": "q"}], split="train")
    assert len(rows_of(load_dataset(tmp_path))) == 1
    with pytest.raises(TaskError, match=r"test\.jsonl: no such file; there are train"):
        load_dataset(tmp_path, split="test")


def test_a_data_folder_without_rows_does_not_hide_task_folders(tmp_path: Path) -> None:
    files = {"dataset.toml": "", "data/readme.txt": "x", "a/task.toml": "", "a/instruction.md": "x", "a/tests/test.sh": ""}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [task.name for task in load_dataset(tmp_path).tasks] == ["a"]


def test_every_fault_names_its_line(tmp_path: Path) -> None:
    long = "x" * 301
    rows = [{"id": "a", "question": "q"}, "[1]", "{", {"id": [1], "question": "q"}, {"id": "a", "question": "r"}, {"id": "e"}]
    found = faults(tmp_path, [*rows, {"id": "f", "question": " "}, {"id": long, "question": "q"}])
    assert [fault.split(": ")[0] for fault in found] == [f"data/test.jsonl:{line}" for line in range(2, 9)]
    assert [fault.split(": ", 1)[1][:26].rstrip() for fault in found] == [
        "is not a JSON object",
        "is not JSON: Input data wa",
        "its id is neither text nor",
        "its id is that of line 1",
        "has no instruction: write",
        "its instruction is empty",
        f"the name '{'x' * 16}",
    ]


def test_strict_templates_name_the_rows_that_lack_a_field(tmp_path: Path) -> None:
    toml = '[dataset]\ntemplate = "strict"\n'
    found = faults(tmp_path, [{"a": 1}, {"b": 1}], toml, instruction_md_tpl="{{a}}")
    assert found == ["data/test.jsonl:2: the row has no field 'a'"]


def test_many_faults_are_counted(tmp_path: Path) -> None:
    found = faults(tmp_path, ["x"] * 30)
    assert len(found) == 21
    assert found[-1].endswith("and 10 more rows")


def test_rows_without_a_verifier_say_how_to_declare_one(tmp_path: Path) -> None:
    rows_dataset(tmp_path, [{"question": "q"}])
    (tmp_path / "tests/evaluate.py").unlink()
    with pytest.raises(TaskError, match=r"dataset\.toml: no verifier: declare one under \[verifier\]"):
        load_dataset(tmp_path)


def test_only_selected_rows_are_kept_under_their_own_numbers(tmp_path: Path) -> None:
    rows_dataset(tmp_path, [{"question": str(number)} for number in range(10)])
    rows = rows_of(load_dataset(tmp_path, select=lambda id_: int(id_) % 2 == 1, limit=3))
    assert [(row.id, row.instruction) for row in rows] == [("1", "1"), ("3", "3"), ("5", "5")]


def test_rows_that_share_a_key_are_told_apart(tmp_path: Path) -> None:
    rows = load(tmp_path, [{"id": id_, "question": "q"} for id_ in ("a", "A", "b", "B", "c")])
    assert rows.unlike == {1, 3}


def test_a_digest_is_of_the_row_and_of_how_it_is_rendered(tmp_path: Path) -> None:
    rows = [{"id": "a", "question": "q"}, {"id": "b", "question": "q"}]
    first = [row.digest for row in load(tmp_path / "1", rows)]
    assert first == [row.digest for row in load(tmp_path / "2", rows)]
    changed = [row.digest for row in load(tmp_path / "3", [rows[0], {"id": "b", "question": "r"}])]
    assert (changed[0] == first[0], changed[1] == first[1]) == (True, False)
    other_template = [row.digest for row in load(tmp_path / "4", rows, instruction_md_tpl="{{question}}!")]
    assert not set(other_template) & set(first)


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    rows = load(tmp_path, [{"question": "q"}])
    with (tmp_path / "data/test.jsonl").open("a") as file:
        file.write('{"question": "r"}\n')
    with pytest.raises(TaskError, match="has changed since the job was planned"):
        list(rows)


_json = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda inner: st.lists(inner, max_size=2))
_lines = st.lists(
    st.one_of(
        st.dictionaries(st.sampled_from(["id", "question", "x"]), _json, max_size=3).map(json.dumps),
        st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\n\r"), max_size=12),
    ),
    max_size=8,
)


@given(lines=_lines)
@settings(max_examples=60)
def test_any_lines_are_rows_or_faults_and_none_is_lost(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    root = rows_dataset(tmp_path_factory.mktemp("rows"), lines)
    folder = read_dataset_folder(root)
    assert folder is not None
    given_rows = [line for line in lines if line.encode().strip()]
    try:
        rows, found = index_rows(folder, root / "data/test.jsonl")
    except TaskError as error:
        assert not given_rows, error
        return
    assert len(rows) + len(found) == len(given_rows)
    assert len({row.id for row in rows}) == len(rows)
    assert list(rows.ids()) == [row.id for row in rows]
