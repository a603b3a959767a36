"""Commands in the namespaces of a container that something else has started: the place of `init` is taken from outside.

    container engine ── process 1 of the container
    rollout ── this process (in the container's user, mount, network ... namespaces; not in its process namespace)
                 └─ commands (in all of them)

Nothing of this is visible in the container, and it needs nothing of it. When Rollout's end of the socket closes, process 1 is
killed and with it everything in the container, so that a killed Rollout leaves nothing that runs.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from typing import Any

from . import cgroups, channel, kernel, mounts
from .init import Init

_EXIT_SEC = 20.0
_PF_EXITING = 0x4
_NAMESPACES = {  # the user namespace first: it gives the right to enter the others
    "user": kernel.CLONE_NEWUSER,
    "cgroup": kernel.CLONE_NEWCGROUP,
    "ipc": kernel.CLONE_NEWIPC,
    "uts": kernel.CLONE_NEWUTS,
    "net": kernel.CLONE_NEWNET,
    "pid": kernel.CLONE_NEWPID,
    "mnt": kernel.CLONE_NEWNS,
}
_MKNOD = 27


def enter(pid: int) -> bool:
    """Enter the namespaces of a process and take its root folder. Returns whether the machine's own user namespace is kept."""
    found = {}
    for name in _NAMESPACES:
        path = f"/proc/{pid}/ns/{name}"
        if os.path.exists(path) and os.stat(path).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:
            found[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if "mnt" not in found or "pid" not in found:
        raise RuntimeError(f"process {pid} has no namespaces of its own")
    root = -1
    for name, descriptor in found.items():
        if name == "mnt":  # only now: its file system may be one that nobody outside its user namespace may look at
            root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        kernel.setns(descriptor, _NAMESPACES[name])
        os.close(descriptor)
    os.fchdir(root)
    os.chroot(".")
    os.chdir("/")
    os.close(root)
    try:
        os.setgroups([])
    except PermissionError:
        pass  # a namespace with one id has no groups to give
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    return "user" not in found


def _restrict(own_machine: bool) -> None:
    """What container engines forbid their containers, for those that do not."""
    kept = kernel.KEPT_CAPABILITIES
    if own_machine:  # root is root of the machine: what it could change the machine with is closed
        mounts.mask_proc("/proc")
        if os.path.ismount("/sys"):
            kernel.bind("/sys", "/sys", read_only=True)
        kept = kept - {_MKNOD}
    kernel.drop_capabilities(kept)
    kernel.forbid_tracing()


def serve(control: socket.socket, config: dict[str, Any]) -> None:
    """Run commands in the container whose first process is `config['pid']` until the socket's other end is closed or it ends."""
    step = "looking at the container"
    try:
        process = os.pidfd_open(config["pid"])
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        step = "setting resource limits"
        if config["groups"]:
            cgroups.create(config["groups"], config["name"], config["limits"], os.getpid())
        step = "entering the container"
        own_machine = enter(config["pid"])
        step = "making the working directory"
        os.makedirs(config["workdir"], exist_ok=True)
        step = "giving up privileges"
        _restrict(own_machine)
    except (OSError, RuntimeError) as error:
        number = error.errno if isinstance(error, OSError) else 0
        channel.send(control, {"error": f"{step}: {error}", "step": step, "errno": number})
        return

    def kill_all() -> None:
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended

    def ending() -> bool:
        return _is_ending(config["pid"], proc)

    channel.send(control, {"ready": True})
    try:
        Init(control, config, proc=proc, kill_all=kill_all, until=process, ending=ending).serve()
    finally:
        kill_all()
        control.close()
        _reap_until_ended(process)


def _is_ending(pid: int, proc: int) -> bool:
    """Whether the first process of the container ends: the kernel then kills every other, and waits for us to notice."""
    try:
        descriptor = os.open(f"{pid}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    except OSError:
        return True
    try:
        fields = os.read(descriptor, 4096).rpartition(b")")[2].split()
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return fields[0] in (b"Z", b"X") or bool(int(fields[6]) & _PF_EXITING)


def _reap_until_ended(process: int) -> None:
    """The first process is not gone before its namespace is empty, for which commands must have been waited for."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    deadline = time.monotonic() + _EXIT_SEC
    while not poll.poll(1) and time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            continue


def main() -> None:
    """Serve the socket whose descriptor is the first argument; the first message says which container."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    received = channel.receive(control)
    if received is not None:
        serve(control, received[0])
