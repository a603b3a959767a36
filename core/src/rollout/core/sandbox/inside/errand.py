"""Errands in a user namespace with the ids of sandboxes: what their users own is only there an ordinary user's own."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from . import channel
from .namespaces import enter_outer_namespace
from .trees import remove_tree


def main() -> None:
    """Serve the socket whose descriptor is the first argument: one request.

    With `remove`, folders: the answer has `ids`, which ids a user namespace of this user has (`all`, `ranges`, `one`), or `error`
    and `errno`. With `run`, a program and its arguments: this process becomes it; an answer comes only when it does not.
    """
    control = socket.socket(fileno=int(sys.argv[1]))
    received = channel.receive(control)
    if received is None:
        return
    request = received[0]
    answer: dict[str, Any]
    try:
        answer = {"ids": enter_outer_namespace()}
        for path in request.get("remove", []):
            remove_tree(path)
        if "run" in request:
            os.dup2(2, 1)
            os.execv(request["run"][0], request["run"])
    except (OSError, RuntimeError) as error:
        answer = {"error": str(error), "errno": error.errno if isinstance(error, OSError) else 0}
    channel.send(control, answer)
