"""Frames and notes: however the engine cuts its stream, the same comes out."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.core.notes import Notes
from rollout_docker.http import Address, Connection, ProtocolError
from rollout_docker.stream import Frames

MARK = b"\x1erollout-0123 "


def frame(number: int, payload: bytes) -> bytes:
    return bytes([number, 0, 0, 0]) + len(payload).to_bytes(4, "big") + payload


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(at)]


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40))), st.lists(st.integers(0, 10_000)))
def test_frames_come_out_whole_wherever_the_stream_is_cut(sent: list[tuple[int, bytes]], places: list[int]) -> None:
    frames = Frames()
    got = [piece for part in cut(b"".join(frame(*one) for one in sent), places) for piece in frames.feed(part)]
    for number, stream in ((1, "stdout"), (2, "stderr")):
        expected = b"".join(payload for one, payload in sent if one == number)
        assert b"".join(payload for name, payload in got if name == stream) == expected


@given(
    st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([b"\x1e", b"\x1eroll", MARK[:-1], b"\x1e\x1e"]))),
    st.integers(0, 255),
    st.lists(st.integers(0, 10_000)),
)
def test_a_note_is_found_between_any_output(output: list[bytes], code: int, places: list[int]) -> None:
    before, after = b"".join(output[::2]), b"".join(output[1::2])
    whole = before + MARK + str(code).encode() + b"\n" + after
    notes = Notes(MARK)
    text, found = b"", []
    for part in cut(whole, places):
        passed, noted = notes.feed(part)
        text += passed
        found += noted
    assert text + notes.rest() == before + after
    assert found == [str(code).encode()]


def test_output_is_not_held_back_for_what_cannot_be_a_note() -> None:
    notes = Notes(MARK)
    assert notes.feed(b"prompt> ") == (b"prompt> ", [])
    assert notes.feed(b"odd \x1e byte") == (b"odd \x1e byte", [])


def test_a_mark_without_a_note_is_output() -> None:
    notes = Notes(MARK)
    text, found = notes.feed(MARK + b"x" * 1000)
    assert (text + notes.rest(), found) == (MARK + b"x" * 1000, [])


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("unix:///var/run/docker.sock", Address("/var/run/docker.sock")),
        ("tcp://127.0.0.1:1234", Address(None, "127.0.0.1", 1234)),
        ("tcp://build-host", Address(None, "build-host", 2375)),
    ],
)
def test_addresses(url: str, address: Address) -> None:
    assert Address.parse(url) == address


@pytest.mark.parametrize("url", ["", "ssh://user@host", "unix://", "/var/run/docker.sock", "npipe:////./pipe/docker"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="neither unix"):
        Address.parse(url)


class Sent:
    """A connection whose other side has said `answer` and hung up."""

    def __init__(self, answer: bytes) -> None:
        self.reader = asyncio.StreamReader()
        self.reader.feed_data(answer)
        self.reader.feed_eof()


async def read(answer: bytes) -> tuple[int, bytes]:
    connection = Connection(Sent(answer).reader, None)  # type: ignore[arg-type]
    response = await connection._head()
    return response.status, b"".join([chunk async for chunk in connection.chunks(response)])


@given(st.lists(st.binary(min_size=1, max_size=50)))
async def test_chunked_answers_are_put_together(chunks: list[bytes]) -> None:
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    assert await read(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body) == (200, b"".join(chunks))


async def test_an_answer_of_a_given_length_ends_there() -> None:
    assert await read(b"HTTP/1.1 404 No\r\nContent-Length: 3\r\n\r\nabcdef") == (404, b"abc")


@given(st.binary(max_size=200))
async def test_whatever_is_no_answer_is_a_protocol_error(answer: bytes) -> None:
    try:
        await read(answer)
    except ProtocolError:
        return
    assert answer.startswith(b"HTTP/1.")


@pytest.mark.parametrize("body", [b"5\r\nabc", b"zz\r\n", b"", b"3\r\nabc\r\n"])
async def test_a_broken_chunk_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        await read(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
