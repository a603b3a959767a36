"""Sending into a channel. All of it blocks."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import paramiko

CHUNK_BYTES = 1 << 15
"""As much as a packet of ssh holds."""


@contextmanager
def broken_pipe() -> Iterator[None]:
    """What paramiko raises when a connection dies while something is sent, as a stream says it."""
    try:
        yield
    except (paramiko.SSHException, EOFError) as error:
        raise BrokenPipeError(errno.EPIPE, in_words(error)) from error


def send(channel: paramiko.Channel, data: bytes) -> None:
    """Raises OSError when the other side takes no more."""
    view = memoryview(data)
    with broken_pipe():
        for start in range(0, len(view), CHUNK_BYTES):
            channel.sendall(bytes(view[start : start + CHUNK_BYTES]))


def give(channel: paramiko.Channel, data: bytes, *, last: bool) -> bool:
    """Whether the other side took it. `last`: and no more will come."""
    try:
        send(channel, data)
        if last:
            with broken_pipe():
                channel.shutdown_write()
    except OSError:
        return False
    return True


def in_words(error: BaseException) -> str:
    """An error of a connection, in a line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
