"""Secrets never reach the disk, wherever a chunk happens to end."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.core.trial.redact import Redactor, secrets_of, without_literal_secrets

SECRET = "sk-abcdefghijkl"


def test_a_host_variable_in_env_is_a_secret() -> None:
    found = secrets_of([{"API_KEY": "${MY_KEY}"}], {"MY_KEY": SECRET})
    assert Redactor(found).text(f"key={SECRET}") in ("key=[redacted:MY_KEY]", "key=[redacted:API_KEY]")


@pytest.mark.parametrize(
    "value",
    ["/home/somebody", "4", "claude-sonnet-4-5-20250929", "verifier", "https://models.example/v1", "some Text, 1"],
)
def test_what_logs_are_read_for_is_none(value: str) -> None:
    assert secrets_of([{"MODEL": "${MODEL}"}], {"MODEL": value}) == {}


@pytest.mark.parametrize("value", ["sk-ant-api03-AbCdEf0123456789", "0123456789abcdef" * 2, "postgres://me:hunter2@db/x"])
def test_a_value_that_looks_like_one_is(value: str) -> None:
    assert value in secrets_of([{"X": "${X}"}], {"X": value})


def test_a_literal_secret_is_redacted_and_not_written() -> None:
    block = {"API_TOKEN": SECRET, "MODE": "fast-and-loose", "OTHER_KEY": "${X}"}
    assert SECRET in secrets_of([block], {"X": "x"})
    assert without_literal_secrets(block) == {"API_TOKEN": "[redacted]", "MODE": "fast-and-loose", "OTHER_KEY": "${X}"}


@given(
    st.lists(st.sampled_from([SECRET, "sk-abc", "defghijkl", "x", "\n", "sk-", "other-secret-1", "other"]), max_size=20),
    st.data(),
)
def test_a_stream_is_redacted_like_the_whole_however_it_is_cut(parts: list[str], data: st.DataObject) -> None:
    redactor = Redactor({SECRET: "A", "other-secret-1": "B"})
    text = "".join(parts).encode()
    written: list[bytes] = []
    stream = redactor.stream(written.append)
    position = 0
    while position < len(text):
        step = data.draw(st.integers(1, 7))
        stream.feed(text[position : position + step])
        position += step
    stream.close()
    assert b"".join(written) == redactor.redact(text)
    assert SECRET.encode() not in b"".join(written)


def test_files_are_rewritten_and_links_left_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text(SECRET)
    tree = tmp_path / "tree" / "sub"
    tree.mkdir(parents=True)
    (tree / "log").write_bytes(b"x" * (1 << 20) + SECRET.encode() + b"y")
    (tree / "link").symlink_to(outside)
    Redactor({SECRET: "KEY"}).tree(tmp_path / "tree")
    assert (tree / "log").read_bytes().endswith(b"x[redacted:KEY]y")
    assert outside.read_text() == SECRET
    assert (tree / "link").is_symlink()
