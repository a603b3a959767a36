"""`rollout tasks check` on data sets: every fault and oddity with its file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollout.core.tasks.check import Checked, check_paths
from unit.tasks.datasets import folder_task, rows_dataset, write_files


def lines(checked: Checked, root: Path) -> list[str]:
    return [str(finding).removeprefix(f"{root}/") for finding in checked.findings]


def found(root: Path, rows: list[Any], toml: str = "[dataset]\n", files: dict[str, str] | None = None) -> list[str]:
    return lines(check_paths([rows_dataset(root, rows, toml, files)]), root)


def test_a_good_data_set_of_rows_has_no_findings(tmp_path: Path) -> None:
    checked = check_paths([rows_dataset(tmp_path, [{"id": "a", "question": "q", "answer": 1}])])
    assert (checked.tasks, checked.usable, checked.findings) == (1, 1, [])


ROW = {"question": "q", "answer": 1}
CASES: dict[str, tuple[list[Any], str, dict[str, str], list[str]]] = {
    "rows": ([ROW, "x", {"id": 1}], "", {}, ["data/test.jsonl:2: error: is not JSON", "data/test.jsonl:3: error: has no instr"]),
    "toml": (
        [ROW],
        "[dataset]\n\nnaem = 'x'\n",
        {},
        ["dataset.toml:3: warning: dataset.naem: unknown key; did you mean"],
    ),
    "flat toml": ([ROW], "\nnaem = 'x'\n", {}, ["dataset.toml:2: warning: naem: unknown key"]),
    "broken toml": ([ROW], "a = 1\nb = \n", {}, ["dataset.toml:2: error: "]),
    "wrong toml": ([ROW], "metadata_fields = 1\n", {}, ["dataset.toml: error: metadata_fields: expected a list"]),
    "template": (
        [ROW, {**ROW, "more": 1}],
        "",
        {"instruction.md.tpl": "{{question}}\n{{more}}{{ none }}\n{{a.b}}\n"},
        [
            "instruction.md.tpl:3: warning: {{a.b}} names no field",
            "instruction.md.tpl:2: warning: 1 of 2 rows lack the field 'more'",
            "instruction.md.tpl:2: warning: no row has the field 'none'",
        ],
    ),
    "metadata": ([ROW], "metadata_fields = ['x']\n", {}, ["dataset.toml:1: warning: no row has the field 'x'"]),
    "unused field": (
        [ROW],
        "[dataset]\ninstruction_field = 'question'\n",
        {"instruction.md.tpl": "{{question}}"},
        ["dataset.toml:2: warning: is not used: instruction.md.tpl wins"],
    ),
    "image": (
        [{**ROW, "i": ["images/1.png"]}],
        "category = 'vlm'\n",
        {},
        ["data/test.jsonl:1: warning: images/1.png is not there"],
    ),
    "verifier syntax": ([ROW], "", {"tests/evaluate.py": "def evaluate(:\n"}, ["tests/evaluate.py:1: error: is not Python: "]),
    "verifier function": (
        [ROW],
        "[verifier]\nmodule = 'tests.evaluate'\nfunction = 'score'\n",
        {},
        ["tests/evaluate.py: error: has no `score`"],
    ),
    "verifier parameters": (
        [ROW],
        "",
        {"tests/evaluate.py": "\ndef evaluate(answer, extra):\n    ...\n".replace("extra", "*, extra")},
        ["tests/evaluate.py:2: error: evaluate wants `answer`, `extra`; there are task, "],
    ),
    "reward": ([ROW], "[verifier]\nrewards = ['f1',\n'f2']\n", {}, ["dataset.toml:2: error: no reward 'f2'"]),
    "weights": (
        [ROW],
        "[verifier.rubric]\nfuncs = ['f1']\nweights = [1, 2]\n",
        {},
        ["dataset.toml: error: verifier.rubric: there are 1 `funcs` and 2 `weights`"],
    ),
    "import path": (
        [ROW],
        "[verifier]\nimport_path = 'no.such:f'\n",
        {},
        ["dataset.toml:2: error: there is no Python module `no`"],
    ),
    "nothing expected": (
        [ROW] * 3,
        "[[verifier.rewards]]\ntype = 'f1'\noptions = {field = 'anwser'}\n",
        {},
        ["dataset.toml:1: error: nothing says what is expected: give the option `expected`, or one of `anwser`"],
    ),
    "something expected": ([{"question": "q"}, ROW], "[verifier]\nname = 'f1'\n", {}, []),
    "judge": (
        [ROW],
        "[[verifier.rewards]]\ntype = 'llm_judge'\noptions = {model = 'm', rubric_path = 'gone.toml'}\n",
        {},
        ["dataset.toml:1: error: the judge's criteria "],
    ),
    "no such module": ([ROW], "[verifier]\nmodule = 'x.y'\n", {}, ["dataset.toml"]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_names_its_file_and_line(tmp_path: Path, case: str) -> None:
    rows, toml, files, expected = CASES[case]
    said = found(tmp_path, rows, toml, files)
    assert len(said) == len(expected), said
    if case == "no such module":
        assert "x/y.py" in said[0]
        return
    for line, start in zip(said, expected, strict=True):
        assert line.startswith(start)


def test_tasks_that_take_their_verifier_from_the_data_set_are_whole(tmp_path: Path) -> None:
    write_files(tmp_path, {"dataset.toml": "[verifier]\nmodule = 'tests.evaluate'\n", "tests/evaluate.py": "evaluate = 1\n"})
    folder_task(tmp_path, "a")
    folder_task(tmp_path, "b", "[verifier]\nmodule = 'check.py'\n", {"check.py": "x = 1\n"})
    folder_task(tmp_path, "c", "[verifier]\nscript = 'gone/run.sh'\n")
    errors = [line for line in lines(check_paths([tmp_path]), tmp_path) if ": error: " in line]
    assert [error.split(": error: ")[0] for error in errors] == ["b/check.py", "c/task.toml"]
    assert "has no `evaluate`" in errors[0]


def test_what_is_wrong_with_a_shared_verifier_is_said_once(tmp_path: Path) -> None:
    write_files(tmp_path, {"dataset.toml": "\n[verifier]\nname = 'exact'\n"})
    for name in ("a", "b"):
        folder_task(tmp_path, name)
    [error] = [line for line in lines(check_paths([tmp_path]), tmp_path) if ": error: " in line]
    assert error.startswith("dataset.toml:3: error: no reward 'exact'")
    assert "exact_match" in error
