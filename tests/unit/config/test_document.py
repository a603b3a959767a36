"""YAML, JSON and TOML files: what they are read as, and every way in which they are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import tomli
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout.core.config import document, yaml_reader
from rollout.core.config.document import open_document, parse_json, read_document
from rollout.core.config.json_places import scan
from rollout.core.errors import ConfigError


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(path: Path) -> str:
    """The message without the folder: one line, not too long, naming the file first."""
    with pytest.raises(ConfigError) as caught:
        read_document(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message.replace(f"{path.parent}/", "")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# only a comment\n", None),
        ("a: 1\nb: [x, {c: 2.5}]\n", {"a": 1, "b": ["x", {"c": 2.5}]}),
        ("{a: yes, b: No, c: off, d: true}", {"a": True, "b": False, "c": False, "d": True}),
        ("[~, null, NULL]", [None, None, None]),
        ("a:\nb: ", {"a": None, "b": None}),
        ("[1_000, 0x1F, 0o17, -3, +4, 0b11, 1e3, .5, 1.]", [1000, 31, 15, -3, 4, 3, 1000.0, 0.5, 1.0]),
        ("[1:30, 0123, 2024-01-01, 1.2.3, 1e, y, 08]", ["1:30", "0123", "2024-01-01", "1.2.3", "1e", "y", "08"]),
        ("['1', \"yes\", !!str 5, ! 6]", ["1", "yes", "5", "6"]),
        ("!!int '7'", 7),
        ("a: &x {p: 1, q: 2}\nb: {<<: *x, q: 3}\nc: *x", {"a": {"p": 1, "q": 2}, "b": {"p": 1, "q": 3}, "c": {"p": 1, "q": 2}}),
        ("<<: [{a: 1}, {a: 2, b: 3}]", {"a": 1, "b": 3}),
        ("'<<': 1", {"<<": 1}),
        ("&k key: 1\nother: *k", {"key": 1, "other": "key"}),
        ("a: |\n  #!/bin/bash\n  x: y\n", {"a": "#!/bin/bash\nx: y\n"}),
        ("--- \na: 1\n...\n", {"a": 1}),
        ("a:\t1", {"a": 1}),
    ],
)
def test_yaml_is_read_as_it_looks(tmp_path: Path, text: str, value: Any) -> None:
    assert read_document(written(tmp_path, "a.yaml", text)) == value


@pytest.mark.parametrize("name", ["a.yaml", "a.YML", "a.json"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_of_utf8_is_no_content(tmp_path: Path, name: str, mark: bytes) -> None:
    assert read_document(written(tmp_path, name, mark + '{"ä": "é"}'.encode())) == {"ä": "é"}


def test_toml_dates_are_text(tmp_path: Path) -> None:
    text = "a = 2024-01-02\nb = [2024-01-02T03:04:05Z, {c = 07:30:00}]\n"
    value = read_document(written(tmp_path, "a.toml", text))
    assert value == {"a": "2024-01-02", "b": ["2024-01-02T03:04:05+00:00", {"c": "07:30:00"}]}


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefghijk", "bcdefghijkl", strict=True)
)
LONG_BOMB = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 1000)}]\n"
MERGE_BOMB = "a: &a {" + ", ".join(f"k{n}: {n}" for n in range(2000)) + "}\n" + "b:\n" + "- {<<: *a}\n" * 1000

REFUSED = {
    "duplicate key": ("a.yaml", "a: 1\nb: 2\na: 3\n", "a.yaml:3: the key 'a' is given twice (first on line 1)"),
    "duplicate inner key": ("a.yaml", "x:\n  - b: 1\n    b: 1\n", "a.yaml:3: the key 'b' is given twice (first on line 2)"),
    "tab": ("a.yaml", "a:\n\tb: 1\n", "a.yaml:2: a tab"),
    "tab after spaces": ("a.yaml", "a:\n  b: 1\n  \tc: 1\n", "a tab"),
    "utf-16": ("a.yaml", "a: 1".encode("utf-16"), "UTF-16"),
    "utf-32": ("a.json", "{}".encode("utf-32"), "UTF-32"),
    "latin-1": ("a.yaml", "a: 1\nb: é".encode("latin-1"), "a.yaml:2: is not UTF-8 text: byte 0xe9"),
    "nul byte": ("a.yaml", b"a: 1\nb: \0", "a.yaml:2: holds NUL"),
    "nul escape": ("a.yaml", 'a:\n  b: "\\0"', "a.yaml:2: a.b: a NUL"),
    "nul in a key": ("a.json", '{"a\\u0000": 1}', "NUL"),
    "control character": ("a.yaml", "a: \x07", "a.yaml:1: a character that YAML does not allow: '\\x07'"),
    "elf": ("a.yaml", b"\x7fELF\x02\x01\x01" + bytes(9), "NUL"),
    "two documents": ("a.yaml", "a: 1\n---\nb: 1\n", "a.yaml:2: a second document"),
    "date as key": ("a.yaml", "2024-01-01: x", "is a date; quote it"),
    "number as key": ("a.yaml", "a:\n  1.50: x", "a.yaml:2: the key '1.50' is a number"),
    "boolean as key": ("a.yaml", "on: x", "the key 'on' is a boolean"),
    "null as key": ("a.yaml", "~: x", "is empty to YAML"),
    "mapping as key": ("a.yaml", "a: {{ b }}", "a key has to be text"),
    "python tag": ("a.yaml", "a: !!python/object/apply:os.system [id]", "`!!python/object/apply:os.system` is not supported"),
    "own tag": ("a.yaml", "a: !include b.yaml", "`!include` is not supported"),
    "tag on a list": ("a.yaml", "a: !x []", "`!x` is not supported"),
    "false tag": ("a.yaml", "a: !!int x", "not a number"),
    "two colons": ("a.yaml", "a: b: c", "quote text"),
    "at sign": ("a.yaml", "a: @b", "quote text"),
    "open quote": ("a.yaml", 'a: "b\n', "is not YAML"),
    "open list": ("a.yaml", "a: [1,\nb: 2", "is not YAML"),
    "deep flow": ("a.yaml", "[" * 100_000, "nested too deeply"),
    "deep blocks": ("a.yaml", "- " * 50_000, "nested too deeply"),
    "deep aliases": (
        "a.yaml",
        "a: &a0 [x]\n" + "".join(f"b{n}: &a{n + 1} [*a{n}]\n" for n in range(80)),
        "nested too deeply",
    ),
    "alias bomb": ("a.yaml", BOMB, "aliases expand"),
    "long alias bomb": ("a.yaml", LONG_BOMB, "aliases expand"),
    "merge bomb": ("a.yaml", MERGE_BOMB, "aliases expand"),
    "alias of itself": ("a.yaml", "a: &a [*a]", "inside what it stands for"),
    "alias without anchor": ("a.yaml", "a: *b", "has no anchor"),
    "merge of text": ("a.yaml", "<<: x", "`<<` takes a mapping"),
    "infinity": ("a.yaml", "a: -.inf", "a.yaml:1: a: not a finite number"),
    "nan": ("a.yaml", "a: [.nan]", "a[0]: not a finite number"),
    "number of 24 digits": ("a.yaml", "a: 999999999999999999999999", "beyond 64 bits"),
    "number of 5000 digits": ("a.yaml", f"a: {'9' * 5000}", "not a number that can be used"),
    "too many values": ("a.yaml", f"[{'1,' * 200_001}]", "more than 200000 values"),
    "json syntax": ("a.json", '{"a": 1,\n"b" 2}', "a.json:2: is not JSON: expecting ':'"),
    "json comma": ("a.json", '{"a": [1,]}', "a.json:1: is not JSON"),
    "json more": ("a.json", "{} {}", "extra data"),
    "json empty": ("a.json", "  \n", "is empty"),
    "json nan": ("a.json", '{"a": NaN}', "NaN is not JSON"),
    "json infinity": ("a.json", '{"a":\n1e999}', "a.json:2: a: not a finite number"),
    "json duplicate": (
        "a.json",
        '{"a": {"b": 1,\n"c": [{"b": 2}],\n"b": 3}}',
        "a.json:3: the key 'b' is given twice (first on line 1)",
    ),
    "json duplicate before a fault": ("a.json", '{"a": {"b": 1, "b": 2}, }', "given twice"),
    "json deep": ("a.json", "[" * 200_000, "nested too deeply"),
    "json deep and closed": ("a.json", "[" * 100 + "]" * 100, "nested too deeply"),
    "json surrogate": ("a.json", '["\\ud800"]', "surrogate"),
    "json large number": ("a.json", "9" * 5000, "is not JSON that can be used"),
    "toml syntax": ("a.toml", "a = 1\nb = \n", "a.toml:2: is not TOML"),
    "toml duplicate": ("a.toml", "a = 1\na = 2\n", "is not TOML"),
    "toml deep": ("a.toml", "a = " + "[" * 100_000, "nested too deeply"),
    "toml dotted": ("a.toml", ".".join("a" * 500) + " = 1", "nested too deeply"),
    "toml infinity": ("a.toml", "[a]\nb = inf", "a.b: not a finite number"),
    "toml date": ("a.toml", "a = 2024-02-30", "a.toml:1: is not TOML"),
    "toml large number": ("a.toml", f"a = {'9' * 30}", "beyond 64 bits"),
    "other suffix": ("a.txt", "a: 1", "name it .yaml, .yml, .json or .toml"),
}


@pytest.mark.parametrize(("name", "content", "what"), REFUSED.values(), ids=REFUSED)
def test_a_faulty_file_is_refused_in_one_line(tmp_path: Path, name: str, content: str | bytes, what: str) -> None:
    assert what in refusal(written(tmp_path, name, content))


def test_a_missing_file_a_folder_a_pipe_and_a_broken_link_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.yaml") == "none.yaml: no such file"
    assert "is a folder" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "not a regular file" in refusal(tmp_path / "pipe.yaml")
    (tmp_path / "link.yaml").symlink_to("nowhere")
    assert "link to nothing" in refusal(tmp_path / "link.yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    assert "cannot be read" in refusal(tmp_path / "loop.yaml")
    assert "name too long" in refusal(tmp_path / ("a" * 300 + ".yaml"))
    with pytest.raises(ConfigError, match="null byte"):
        read_document(tmp_path / "a\0.yaml")


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(document.MAX_BYTES, "yaml", 1000)
    path = written(tmp_path, "a.yaml", f"a: {'x' * 2000}")
    assert "at most" in refusal(path)
    path.write_text(f"a: {'x' * 900}")
    assert len(read_document(path)["a"]) == 900


def test_json_from_elsewhere_has_the_same_guards() -> None:
    assert parse_json(b'{"reward": 1.5}', "reward.json") == {"reward": 1.5}
    for data in (b"", b"\0", b"\xff\xfe1\0", b"[NaN]", b"[1e999]", b'{"a":1,"a":1}', b"[" * 10_000):
        with pytest.raises(ConfigError, match=r"^reward\.json"):
            parse_json(data, "reward.json")


def test_places_are_the_lines_of_the_values(tmp_path: Path) -> None:
    yaml_text = "a: 1.50\nb:\n  - x\n  -\n    c: |\n      text\n"
    places = open_document(written(tmp_path, "a.yaml", yaml_text)).find_places()
    assert {path: place.line for path, place in places.items() if path} == {
        ("a",): 1, ("b",): 3, ("b", 0): 3, ("b", 1): 5, ("b", 1, "c"): 5,
    }  # fmt: skip
    assert places["a",].written == "1.50"
    json_text = '{"a": 1.50,\n "b": ["x",\n {"c": "te]xt"}], "d": []}'
    places = open_document(written(tmp_path, "a.json", json_text)).find_places()
    assert {path: place.line for path, place in places.items()} == {
        (): 1, ("a",): 1, ("b",): 2, ("b", 0): 2, ("b", 1): 3, ("b", 1, "c"): 3, ("d",): 3,
    }  # fmt: skip
    assert places["a",].written == "1.50"


# What is left out: surrogates and NUL, which are refused, and the line breaks of other systems, which YAML folds.
texts = st.text(st.characters(exclude_categories=["Cs", "Zl", "Zp"], exclude_characters="\0\r\x85"), max_size=12)
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(plain_values)
def test_json_comes_back_with_a_place_for_every_value(value: Any) -> None:
    text = json.dumps(value, indent=1)
    assert parse_json(text.encode(), "x") == value
    paths = [path for path, _ in scan(text)]
    for path in paths:
        part = value
        for key in path:
            part = part[key]
    assert len(set(paths)) == len(paths) == _count(value)


def _count(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_count, parts))


@given(plain_values.filter(lambda value: isinstance(value, dict | list)))
def test_yaml_comes_back(value: Any) -> None:
    text = yaml.safe_dump(value, allow_unicode=True)
    try:
        read = yaml_reader.read(text, 64)
    except yaml_reader.Syntax as error:
        assert "quote it" in str(error)  # keys that PyYAML leaves bare and that look like dates
        return
    assert read.plain((), {}) == value


@pytest.mark.parametrize("suffix", ["yaml", "json", "toml"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | st.text("ab:- \n\t[]{}\"'&*!|>#=.,019$~<\\", max_size=80).map(str.encode))
def test_any_bytes_are_a_document_or_a_refusal(tmp_path: Path, suffix: str, data: bytes) -> None:
    path = written(tmp_path, f"a.{suffix}", data)
    try:
        value = read_document(path)
    except ConfigError as error:
        assert str(error).startswith(str(path))
        assert "\n" not in str(error)
        assert len(str(error)) < 500 + len(str(path))
    else:
        json.dumps(value, allow_nan=False).encode()


def test_the_compiled_parser_is_used() -> None:
    assert yaml.__with_libyaml__
    assert tomli.loads("a = 1") == {"a": 1}
