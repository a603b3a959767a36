"""A container of this machine's own engine, kept by a process of its own: it starts the container, lets another process run
commands in it, and sees to it that nothing is left of it.

    relay ── keeper (this; sees the container end, and its file systems unmounted)
               └─ `inside.entered` (in the container's namespaces; serves the sandbox's socket)
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
from typing import Any, NoReturn

from rollout.core.sandbox.inside import channel, entered, monitor

_START_SEC = 600.0
_END_SEC = 60.0
_QUOTED_LINES = 6


class _RefusedError(Exception):
    """The container does not start; the text says why."""


def find(programs: list[str]) -> str | None:
    """The first of these commands that is there."""
    return next((path for name in programs if (path := shutil.which(name)) is not None), None)


def keep(control: socket.socket, config: dict[str, Any]) -> NoReturn:
    """In a process forked for it: keep one container from its start to its end."""
    code = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        kept = control.fileno()
        os.closerange(3, kept)  # the relay's own: what it holds of other sandboxes must end with it
        os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
        _keep(control, config)
        code = 0
    except _RefusedError as error:  # by the command that ends it
        sys.stderr.write(f"{error}\n")
    finally:
        os._exit(code)


def _keep(control: socket.socket, config: dict[str, Any]) -> None:
    wanted, folder = config["container"], config["scratch"]
    names = {"{image}": wanted["image"], "{name}": config["name"], "{folder}": folder}
    try:
        os.makedirs(f"{folder}/overlay", 0o700)
        program = find(wanted["programs"])
        if program is None:
            raise _RefusedError(f"there is no {' or '.join(wanted['programs'])}")
        if wanted["environ"] is not None:
            found = _run(program, wanted["environ"], names)
            config["env"] = {**config["env"], **monitor.image_variables(found), **config["given"]}
        for arguments in [*wanted["before"], wanted["start"]]:
            _run(program, arguments, names)
        with open(f"{folder}/pid", encoding="ascii") as file:
            pid = int(file.read())
        above = monitor.watch_parent(pid, folder)
    except (_RefusedError, OSError, ValueError, IndexError) as error:
        channel.send(control, {"error": str(error), "errno": 0})
        control.close()
        return
    child = os.fork()
    if child == 0:
        code = 1
        try:
            entered.serve(control, {**config, "pid": pid})
            code = 0
        finally:
            os._exit(code)
    control.close()
    os.waitpid(child, 0)
    if not monitor.ended(above, 0):
        _kill(pid)
        if not monitor.ended(above, _END_SEC):
            _run(program, wanted["end"], names)


def end_left(folder: str) -> None:
    """End a container whose keeper was killed; it is known by a note in its folder."""
    descriptor = monitor.watched(folder)
    if descriptor is None:
        return  # never started, or gone
    try:
        with open(f"{folder}/pid", encoding="ascii") as file:
            _kill(int(file.read()))
        monitor.ended(descriptor, _END_SEC)
    finally:
        os.close(descriptor)


def _run(program: str, arguments: list[str], names: dict[str, str]) -> bytes:
    """Run one of the engine's commands to its end; what it printed. Raises _RefusedError."""
    folder = names["{folder}"]
    for name, value in names.items():
        arguments = [argument.replace(name, value) for argument in arguments]
    try:
        user = pwd.getpwuid(os.geteuid())
        environ = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    except KeyError:
        environ = {"HOME": folder}
    environ |= {"PATH": os.environ["PATH"], "TMPDIR": folder, "APPTAINER_TMPDIR": folder, "SINGULARITY_TMPDIR": folder}
    try:
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environ,
            cwd="/",
            timeout=_START_SEC,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _RefusedError(f"{program} {arguments[1]} does not end within {_START_SEC:g} s") from error
    if done.returncode != 0:
        lines = [" ".join(line.split()) for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
        raise _RefusedError("; ".join(lines[-_QUOTED_LINES:]) or f"{program} {arguments[1]} fails: exit code {done.returncode}")
    return done.stdout


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
