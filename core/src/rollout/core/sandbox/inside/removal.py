"""Removing folders that hold files of a sandbox's users: their ids are only an ordinary user's own in a user namespace."""

from __future__ import annotations

import socket
import sys
from typing import Any

from . import channel
from .namespaces import enter_outer_namespace
from .trees import remove_tree


def main() -> None:
    """Serve the socket whose descriptor is the first argument: one request with `paths`, one answer.

    The answer has `ids`, which ids a user namespace of this user has (`all`, `ranges`, `one`), or `error` and `errno`.
    """
    control = socket.socket(fileno=int(sys.argv[1]))
    received = channel.receive(control)
    if received is None:
        return
    answer: dict[str, Any]
    try:
        answer = {"ids": enter_outer_namespace()}
        for path in received[0]["paths"]:
            remove_tree(path)
    except (OSError, RuntimeError) as error:
        answer = {"error": str(error), "errno": error.errno if isinstance(error, OSError) else 0}
    channel.send(control, answer)
