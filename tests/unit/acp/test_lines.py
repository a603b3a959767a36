"""Between an agent's standard output and the protocol: every message comes through, nothing else does, nothing is lost."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_acp.lines import LineFilter, parse

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
ids = st.one_of(st.integers(), st.text(max_size=5))
methods = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0"), "method": st.text(max_size=10)},
    optional={"id": ids, "params": st.dictionaries(st.text(max_size=5), values, max_size=3)},
)
answers = st.fixed_dictionaries({"jsonrpc": st.just("2.0"), "id": ids, "result": values})
messages = st.one_of(methods, answers)
noise = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"123", b'"x"', b"null", b"true", b"[1,2]", b"", b"{}", b'{"a":1}', b"{", b'{"jsonrpc":"1.0","id":1}']),
    values.map(lambda value: json.dumps(value).encode()),
).filter(lambda line: b"\n" not in line and parse(line) is None)
lines = st.lists(st.one_of(messages.map(lambda m: (True, json.dumps(m).encode())), noise.map(lambda n: (False, n))), max_size=12)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(lines, st.lists(st.integers(0, 10**6), max_size=10), st.booleans())
def test_messages_come_through_in_order_however_the_stream_is_cut(
    given_lines: list[tuple[bool, bytes]], places: list[int], ends: bool
) -> None:
    data = b"\n".join(line for _, line in given_lines) + (b"\n" if ends and given_lines else b"")
    thrown: list[bytes] = []
    filtered = LineFilter(thrown.append)
    found: list[Any] = []
    for chunk in cut(data, places):
        found += [message for message, _ in filtered.feed(chunk)]
    found += [message for message, _ in filtered.close()]
    assert found == [json.loads(line) for is_message, line in given_lines if is_message]
    kept = b"".join(thrown).replace(b"\n", b"")
    assert kept == b"".join(line for is_message, line in given_lines if not is_message)


@given(st.lists(st.binary(max_size=60), max_size=20), st.integers(1, 40))
def test_no_stream_breaks_it_and_every_byte_is_accounted_for(chunks: list[bytes], limit: int) -> None:
    thrown: list[bytes] = []
    filtered = LineFilter(thrown.append, max_bytes=limit)
    taken = [line for chunk in chunks for _, line in filtered.feed(chunk)]
    taken += [line for _, line in filtered.close()]
    assert sum(map(len, thrown)) + sum(map(len, taken)) == sum(map(len, chunks))
    assert all(len(line) <= limit for line in taken)


@given(messages, st.integers(1, 50))
def test_the_line_after_one_that_is_too_long_is_read(message: dict[str, Any], limit: int) -> None:
    line = json.dumps(message).encode() + b"\n"
    filtered = LineFilter(lambda noise: None, max_bytes=max(limit, len(line)))
    long = b'{"jsonrpc":"2.0","method":"' + b"x" * (2 * max(limit, len(line))) + b'"}\n'
    found = [*filtered.feed(long[:7]), *filtered.feed(long[7:] + line)]
    assert [found for found, _ in found] == [message]


def test_a_flood_without_a_newline_is_not_held() -> None:
    thrown: list[int] = []
    filtered = LineFilter(lambda part: thrown.append(len(part)))
    chunk = b"x" * 65536
    for number in range(64):
        assert not list(filtered.feed(chunk))
        assert sum(thrown) == (number + 1) * len(chunk), "what begins like no message goes to the log at once"
    assert [message["id"] for message, _ in filtered.feed(b'\n{"jsonrpc":"2.0","id":1,"result":{}}\n')] == [1]


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":[1],"result":{}}',
        b'{"jsonrpc":"2.0","id":{},"result":{}}',
        b'{"jsonrpc":"2.0","id":true,"result":{}}',
        b'{"jsonrpc":"2.0","id":1.5,"result":{}}',
        b'{"jsonrpc":"2.0","result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":"no"}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":"x"}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"message":[]}}',
        b'{"jsonrpc":"2.0","method":7}',
        b'{"jsonrpc":"2.0","method":"m","params":"p"}',
        b'{"jsonrpc":"2.0","id":1,"method":null}',
        b'{"a":' * 100_000,
        b'{"jsonrpc":"2.0","method":"\xff"}',
    ],
)
def test_messages_that_would_break_a_client_are_noise(line: bytes) -> None:
    assert parse(line) is None
