"""Containers that another program has started: the process above their first one, and what their image says of variables."""

from __future__ import annotations

import os
import select
import time

_SHELL = frozenset({"HOME", "LD_LIBRARY_PATH", "PROMPT_COMMAND", "PS1", "PWD", "OLDPWD", "SHLVL", "TERM", "_", "USER"})
_ENGINE = ("APPTAINER_", "SINGULARITY_")


def watch_parent(pid: int, folder: str) -> int:
    """A descriptor for the process that mounts and unmounts the container's file systems: when it ends, everything has. A file of
    the folder says which it is.

    Raises:
        OSError, IndexError: there is no such process any more.
    """
    parent = int(_stat(pid)[1])
    descriptor = os.pidfd_open(parent)
    with open(f"{folder}/monitor", "w", encoding="ascii") as file:
        file.write(f"{parent} {_stat(parent)[19]}")
    return descriptor


def watched(folder: str) -> int | None:
    """A descriptor for the process that `watch_parent` noted in this folder, if that still runs."""
    try:
        with open(f"{folder}/monitor", encoding="ascii") as file:
            pid, started = file.read().split()
        descriptor = os.pidfd_open(int(pid))
    except (OSError, ValueError):
        return None
    try:
        if _stat(int(pid))[19] == started:
            return descriptor
    except (OSError, IndexError):
        pass  # it has just ended
    os.close(descriptor)
    return None


def ended(descriptor: int, timeout_sec: float) -> bool:
    """Wait for the process of a descriptor; whether it has ended."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + timeout_sec
    while True:
        try:
            return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
        except InterruptedError:
            continue


def image_variables(environ: bytes) -> dict[str, str]:
    """What /proc/self/environ of a process in an image says of the image: without what the engine and its shell add."""
    items = [item.split("=", 1) for item in environ.decode("utf-8", "surrogateescape").split("\0") if "=" in item]
    return {name: value for name, value in items if name not in _SHELL and not name.startswith(_ENGINE)}


def _stat(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
