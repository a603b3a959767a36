"""User namespaces of this machine: which ids they give this user, and work on files that belong to such ids."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollout.core.aio import Blocking
from rollout.core.errors import SandboxError, TeardownError
from rollout.core.sandbox.diagnosis import explain
from rollout.core.sandbox.inside import channel
from rollout.core.sandbox.launch import launch_inside

_ANSWER_SEC = 120.0


def user_ids() -> str:
    """`ranges` when this user has subordinate ids, `one` when not, `all` for root.

    Raises:
        SandboxError: the kernel allows no user namespaces; the text says what would change that.
    """
    answer = _ask([])
    if "error" in answer:
        raise SandboxError(
            explain(
                answer, what="type: apptainer needs user namespaces, which cannot be had here", instead="ask the administrator"
            )
        )
    return str(answer["ids"])


def remove(paths: Sequence[Path]) -> None:
    """Remove folders with whatever sandboxes have put there. Blocks.

    Raises:
        TeardownError
    """
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
    left = [str(path) for path in paths if os.path.lexists(path)]
    if not left:
        return
    answer = _ask(left)
    if "error" in answer:
        raise TeardownError(f"cannot remove what a sandbox left in {', '.join(left)}: {answer['error']}")


async def run(argv: Sequence[str], log: Path, blocking: Blocking) -> None:
    """Run a program as root of a user namespace. Cancelling kills it.

    Raises:
        SandboxError: it failed; the text has the end of what it printed.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, log.open("ab") as output:
        process = await blocking(launch_inside, "errand", theirs, output)
        theirs.close()
        try:
            channel.send(ours, {"run": list(argv)})
            code = await blocking(process.wait)
            answer = await blocking(channel.receive, ours)  # the socket's other end is closed by a program that was started
        finally:
            process.kill()
    if answer is not None or code != 0:
        lines = log.read_text("utf-8", "replace").split("\n") if answer is None else [str(answer[0].get("error"))]
        said = "; ".join(line.strip() for line in lines if line.strip())[-1000:]
        raise SandboxError(f"{os.path.basename(argv[0])}: {said or f'exit code {code}'}")


def _ask(paths: list[str]) -> dict[str, Any]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.settimeout(_ANSWER_SEC)
        process = launch_inside("errand", theirs, subprocess.DEVNULL)
        theirs.close()
        try:
            channel.send(ours, {"remove": paths})
            received = channel.receive(ours)
        except OSError as error:
            received = {"error": str(error), "errno": error.errno or 0}, []
        finally:
            process.kill()
            process.wait()
    return dict(received[0]) if received else {"error": "the process that was to do it ended without a word", "errno": 0}
