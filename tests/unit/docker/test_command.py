"""The streams of a command are told apart and keep their order, whichever comes first."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from rollout.core.types import Stream
from rollout_docker.command import Container, RunningCommand


@pytest.mark.parametrize("sizes", [(10, 20), (100_000, 5), (5, 100_000, 3), (70_000, 10, 5), (60_000, 60_000, 60_000, 7)])
async def test_output_that_comes_before_the_shells_first_word_keeps_its_order(sizes: tuple[int, ...]) -> None:
    heard: list[bytes] = []

    def feed(stream: Stream, chunk: bytes) -> None:
        assert stream == "stdout"
        heard.append(chunk)

    running = RunningCommand(Container(cast(Any, None), "id", "name", "/"), feed)
    chunks = [os.urandom(size).replace(b"\x1e", b"-") for size in sizes]
    for chunk in chunks[:-1]:
        running._take("stdout", chunk)
    running._take("stderr", f"{running._mark}42\n".encode())
    running._take("stdout", chunks[-1])
    assert b"".join(heard) == b"".join(chunks)
    assert running._pid.result() == 42
