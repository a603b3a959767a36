"""Output is kept up to a limit, from its end."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from rollout.core.capture import OutputCapture


@given(chunks=st.lists(st.binary(max_size=40), max_size=60), limit=st.integers(0, 300))
def test_the_end_is_kept_and_the_rest_counted(chunks: list[bytes], limit: int) -> None:
    whole = b"".join(chunks)
    seen: list[bytes] = []
    capture = OutputCapture(limit, lambda stream, chunk: seen.append(chunk))
    for chunk in chunks:
        capture.feed("stdout", chunk)
    result = capture.result(3)
    assert result.stdout == whole[max(len(whole) - limit, 0) :]
    assert result.stdout_cut_bytes == max(len(whole) - limit, 0)
    assert b"".join(seen) == whole
    assert (result.exit_code, result.stderr, result.stderr_cut_bytes) == (3, b"", 0)


def test_streams_are_apart() -> None:
    capture = OutputCapture(10)
    capture.feed("stdout", b"out")
    capture.feed("stderr", b"err")
    result = capture.result(0, out_of_memory=True)
    assert (result.stdout, result.stderr, result.out_of_memory) == (b"out", b"err", True)


def test_a_gigabyte_of_output_takes_no_memory() -> None:
    capture = OutputCapture(1 << 20)
    chunk = bytes(1 << 16)
    tracemalloc.start()
    try:
        for _ in range((1 << 30) // len(chunk)):
            capture.feed("stdout", chunk)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    assert capture.result(0).stdout_cut_bytes == (1 << 30) - (1 << 20)
