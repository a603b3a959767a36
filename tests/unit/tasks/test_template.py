"""Templates: the first engine to the letter, and the strict one."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.core.tasks.template import fields, render

V1 = [
    ("{{question}}", {"question": "{{n}}"}, "{{n}}"),
    ("{{ missing }}", {}, ""),
    ("{{a.b}} {{a-b}}", {"a": 1}, "{{a.b}} {{a-b}}"),
    ("{{c}}", {"c": ["x", "y"]}, "(A) x\n(B) y"),
    ("{{c}}", {"c": []}, ""),
    ("{{d}}", {"d": {"k": 1}}, "{'k': 1}"),
    ("{{f}}", {"f": None}, "None"),
    ("{{question}}\n", {"question": "q"}, "q\n"),
    ("{{question}}\n\n{{choices}}\n", {"question": "q", "choices": ["1", "2"]}, "q\n\n(A) 1\n(B) 2\n"),
    ("{{{{a}}}}", {"a": 1}, "{{1}}"),
    ("{{\n a\t}}", {"a": True}, "True"),
    ("{{a}}{{b}}", {"a": "{{b}}", "b": 2.50}, "{{b}}2.5"),
]


@pytest.mark.parametrize(("template", "row", "text"), V1)
def test_v1_golden_vectors(template: str, row: dict[str, Any], text: str) -> None:
    assert render(template, row) == text


def test_v1_letters_run_past_z() -> None:
    assert render("{{c}}", {"c": list(range(27))}).endswith("(Z) 25\n([) 26")


@pytest.mark.parametrize(
    ("template", "row", "text"),
    [
        ("{{a}}", {"a": {"k": [1, None]}}, '{"k":[1,null]}'),
        ("{{c}}", {"c": ["x", {"k": 1}]}, '(A) x\n(B) {"k":1}'),
        ("{{{{a}}}} {{a}}", {"a": 1}, "{{a}} 1"),
        ("{{a}}", {"a": "{{b}}"}, "{{b}}"),
        ("{{t}}", {"t": True}, "true"),
        ("{{ü}}", {"ü": "x"}, "x"),
    ],
)
def test_strict_mode(template: str, row: dict[str, Any], text: str) -> None:
    assert render(template, row, "strict") == text


def test_strict_letters_go_on_with_two() -> None:
    lines = render("{{c}}", {"c": list(range(53))}, "strict").splitlines()
    assert [lines[at].split()[0] for at in (0, 25, 26, 51, 52)] == ["(A)", "(Z)", "(AA)", "(AZ)", "(BA)"]


@pytest.mark.parametrize(
    ("template", "row", "message"),
    [("{{a}}", {}, "no field 'a'"), ("{{a}}", {"a": None}, "'a' is null"), ("{{a.b}}", {"a": 1}, "names no field")],
)
def test_strict_mode_refuses(template: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        render(template, row, "strict")


def test_fields_of_a_template() -> None:
    assert fields("{{a}} {{ b }} {{a}} {{c.d}}") == ["a", "b"]


_rows = st.dictionaries(st.text(st.characters(categories=("L", "N")), min_size=1, max_size=5), st.text(max_size=20), max_size=4)


@given(template=st.text(st.sampled_from("{} ab_.\n"), max_size=40), row=_rows)
def test_v1_is_one_substitution(template: str, row: dict[str, Any]) -> None:
    assert render(template, row) == re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: str(row.get(match[1], "")), template)


@given(template=st.text(st.sampled_from("{} ab_.\n"), max_size=40), row=_rows)
def test_strict_mode_renders_or_refuses(template: str, row: dict[str, Any]) -> None:
    try:
        assert isinstance(render(template, row, "strict"), str)
    except ValueError as error:
        assert str(error)


@given(text=st.text(max_size=30))
def test_doubled_braces_are_literal_in_strict_mode(text: str) -> None:
    plain = text.replace("{", "").replace("}", "")
    assert render(f"{{{{{{{{{plain}}}}}}}}}", {}, "strict") == f"{{{{{plain}}}}}"
