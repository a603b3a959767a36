"""Messages between processes: one JSON object each, with file descriptors beside it, over a SOCK_SEQPACKET socket pair."""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Sequence
from typing import Any

# Well below the kernel's default for one message (net.core.wmem_default); what is longer travels in a memory file.
_INLINE_BYTES = 48 * 1024
_MAX_DESCRIPTORS = 16


def send(channel: socket.socket, message: Any, descriptors: Sequence[int] = ()) -> None:
    """Send one message. Blocks as the socket does.

    Raises:
        OSError: the other end is gone (BrokenPipeError, ConnectionResetError), or would block.
    """
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) <= _INLINE_BYTES:
        _send(channel, b"m" + data, descriptors)
        return
    carrier = os.memfd_create("message")
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(carrier, rest) :]
        _send(channel, b"f%d" % len(data), [carrier, *descriptors])
    finally:
        os.close(carrier)


def receive(channel: socket.socket) -> tuple[Any, list[int]] | None:
    """The next message and its file descriptors (the receiver closes them), or None when the other end is gone."""
    try:
        data, ancillary, _, _ = channel.recvmsg(
            _INLINE_BYTES + 64, socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionError:
        return None
    descriptors: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
            descriptors.extend(numbers)
    if not data:
        return None
    if data[:1] == b"f":
        carrier = descriptors.pop(0)
        size = int(data[1:])
        data = b"m" + _read_all(carrier, size)
        os.close(carrier)
    return json.loads(data[1:]), descriptors


def _send(channel: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    if descriptors:
        channel.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])
    else:
        channel.send(data)


def _read_all(descriptor: int, size: int) -> bytes:
    parts = []
    offset = 0
    while offset < size:
        part = os.pread(descriptor, size - offset, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
    return b"".join(parts)
