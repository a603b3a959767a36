"""`--env-file`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.cli.dotenv import read_env_file
from rollout.core.errors import ConfigError


def parsed(folder: Path, data: str | bytes) -> dict[str, str]:
    path = folder / "vars.env"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_env_file(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("# only a comment\n\n", {}),
        ("A=1\nB=two words\n", {"A": "1", "B": "two words"}),
        ("export A=1", {"A": "1"}),
        ("A = 1", {"A": "1"}),
        ("A=", {"A": ""}),
        ("A= # nothing", {"A": ""}),
        ("A=1 # one", {"A": "1"}),
        ("A=1#2", {"A": "1#2"}),
        ("A=x=y", {"A": "x=y"}),
        ("A='1 # $B \\n'", {"A": "1 # $B \\n"}),
        ('A="a\\nb\\t\\"c\\" \\$d \\z"', {"A": 'a\nb\t"c" $d \\z'}),
        ('A="first\nsecond = #3\n"  # note\nB=2', {"A": "first\nsecond = #3\n", "B": "2"}),
        ("A='one\n  two'\nB=2", {"A": "one\n  two", "B": "2"}),
        ('A=""', {"A": ""}),
        ("A=1\nA=2", {"A": "2"}),
        ("A=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
        ("\ufeffA=1", {"A": "1"}),
        ("A=$HOME ${X}", {"A": "$HOME ${X}"}),
        ("A=ü", {"A": "ü"}),
    ],
)
def test_what_a_file_says(tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    assert parsed(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("A", "line 1: write NAME=value"),
        ("A=1\n1B=2", "line 2: write NAME=value"),
        ("=1", "line 1: write NAME=value"),
        ("A-B=1", "line 1: write NAME=value"),
        ('OK=1\nA="open\nB=2', 'line 2: the quote " is not closed'),
        ("A='x' y", "line 1: there is text after the closing quote"),
        ("A=1\nB=\0", "line 2: a NUL"),
        (b"A=\xff", "not UTF-8 at byte 2"),
        (b"A=" + b"x" * 1024 * 1024, "at most"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(tmp_path: Path, data: str | bytes, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(tmp_path, data)
    assert message in str(caught.value)
    assert "vars.env" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["missing.env", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match=r"No such file|Is a directory"):
        read_env_file(tmp_path / path)


@given(st.text())
def test_any_text_is_variables_or_one_clear_line(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            variables = parsed(Path(folder), text.encode("utf-8", "surrogatepass"))
        except ConfigError as error:
            assert "\n" not in str(error)
        else:
            assert all("\0" not in name + value and "=" not in name for name, value in variables.items())


@given(st.text(alphabet=st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\r")))
def test_a_double_quoted_value_comes_back_as_it_was(value: str) -> None:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    with tempfile.TemporaryDirectory() as folder:
        assert parsed(Path(folder), f'A="{escaped}"\nB=2\n') == {"A": value, "B": "2"}
