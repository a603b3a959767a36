"""The process that makes sandboxes: started once per backend, it forks each of them, so that a start costs milliseconds.

    rollout ── zygote (user namespace: the user is root in it; the mounts as they were when the job began)
                 └─ init of a sandbox (user, mount, pid, ipc, uts and perhaps network namespace of its own)
                      └─ commands

It ends when Rollout's end of its socket closes, and tidies up first: a killed Rollout leaves nothing. An init ends the same way,
in case the zygote was killed too; then folders and control groups are left, which carry the job's id.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import stat
import sys
import time
from typing import Any

from . import cgroups, channel, kernel, mounts, view
from .namespaces import enter_outer_namespace, fork, start_sandbox
from .trees import remove_tree

_FINISH_SEC = 20.0


class Zygote:
    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.view: dict[str, Any] = {}
        self.base: str | None = None
        self.groups: dict[str, list[str]] = {}
        self.starting: dict[int, tuple[int, int]] = {}  # first process of a start -> token, pipe with the pid of its init
        self.inits: dict[int, int] = {}  # init -> token
        self.leftovers: dict[int, dict[str, Any]] = {}  # token -> what to remove
        self.stopping: set[int] = set()
        self.removers: dict[int, int] = {}
        self.strays: set[int] = set()
        self.wakeup, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is Rollout's to handle
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def prepare(self, config: dict[str, Any]) -> dict[str, Any]:
        """Enter the namespaces that all sandboxes are made from, and look at the machine."""
        kernel.adopt_orphans()
        self.groups = cgroups.find()
        ids = enter_outer_namespace()
        scratch = next((folder for folder in config["scratch"] if _is_own(folder) and mounts.usable_for_upper(folder)), None)
        if scratch is None:
            raise RuntimeError(f"no folder among {', '.join(config['scratch'])} can hold what sandboxes write")
        rootfs = config["rootfs"]
        if config["rootfs_tar"]:
            unpack_rootfs(config["rootfs_tar"], rootfs)
        self.base = base = f"{scratch}/base-{os.getpid()}"
        os.mkdir(base)
        self.view = view.survey(base, share=config["share"], hide=config["hide"], rootfs=rootfs, writable=ids != "all")
        return {
            "ids": ids,
            "groups": self.groups,
            "shown": [path for path, _ in self.view["overlays"]],
            "scratch": scratch,
            "base": base,
            "cache": config["cache"] if mounts.usable_for_upper(config["cache"]) else f"{scratch}/cache",
        }

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.wakeup, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self.wakeup:
                    os.read(self.wakeup, 4096)
                    self.reap()
                    continue
                received = channel.receive(self.control)
                if received is None:
                    return
                request, descriptors = received
                if request["op"] == "start":
                    self.start(request["token"], request["config"], descriptors[0])
                elif request["op"] == "stop":
                    self.stop(request["token"])
                elif request["op"] == "remove":
                    self.leftovers[request["token"]] = request
                    self.remove(request["token"])

    def start(self, token: int, config: dict[str, Any], descriptor: int) -> None:
        read, write = os.pipe2(os.O_CLOEXEC)
        config["groups"] = self.groups
        self.leftovers[token] = {
            "paths": [config["scratch"]],
            "groups": cgroups.folders(self.groups, config["name"]) if self.groups else [],
        }
        pid = fork()
        if pid == 0:
            os.close(read)
            self.control.close()
            start_sandbox(socket.socket(fileno=descriptor), config, self.view, write)
        os.close(write)
        os.close(descriptor)
        self.starting[pid] = (token, read)

    def stop(self, token: int) -> None:
        """Kill what runs; when it is gone remove what it left and answer."""
        if token not in self.leftovers:
            self.reply({"gone": token})
            return
        self.stopping.add(token)
        running = [pid for pid, known in self.inits.items() if known == token]
        for pid in running:
            os.kill(pid, signal.SIGKILL)
        if not running and not any(known == token for known, _ in self.starting.values()):
            self.remove(token)

    def remove(self, token: int) -> None:
        left = self.leftovers.pop(token)
        self.stopping.discard(token)
        pid = fork()
        if pid == 0:
            self.control.close()
            code = 1
            try:
                for path in left["paths"]:
                    remove_tree(path)
                cgroups.remove(left.get("groups", []))
                code = 0
            except OSError as error:
                sys.stderr.write(f"{error}\n")
            finally:
                os._exit(code)
        self.removers[pid] = token

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self.starting:
                self.started(*self.starting.pop(pid))
            elif pid in self.inits:
                self.ended(self.inits.pop(pid))
            elif pid in self.removers:
                self.reply({"gone": self.removers.pop(pid), "failed": status != 0})
            else:
                self.strays.add(pid)
        if not self.starting:
            self.strays.clear()

    def started(self, token: int, pipe: int) -> None:
        text = os.read(pipe, 32)
        os.close(pipe)
        if not text or int(text) in self.strays:
            self.ended(token)
            return
        self.inits[int(text)] = token
        if token in self.stopping:
            os.kill(int(text), signal.SIGKILL)

    def ended(self, token: int) -> None:
        if token in self.stopping:
            self.remove(token)

    def reply(self, message: dict[str, Any]) -> None:
        try:
            channel.send(self.control, message)
        except OSError:
            return  # Rollout has ended: `serve` is about to see it

    def finish(self) -> None:
        """Stop and remove whatever Rollout has not."""
        deadline = time.monotonic() + _FINISH_SEC
        for token in list(self.leftovers):
            self.stop(token)
        while (self.starting or self.inits or self.removers) and time.monotonic() < deadline:
            time.sleep(0.005)
            self.reap()
        if self.base is not None:
            remove_tree(self.base)


def _is_own(folder: str) -> bool:
    """Make a folder that only this user may enter; False when somebody else has put something there."""
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return False
        os.chmod(folder, 0o700)
        return True
    except OSError:
        return False


def unpack_rootfs(archive: str, target: str) -> None:
    """Unpack a root file system once; jobs that want the same one at the same time wait."""
    import tarfile

    os.makedirs(os.path.dirname(target), exist_ok=True)
    lock = os.open(target + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.isdir(target):
            return
        fresh = target + ".new"
        if os.path.isdir(fresh):
            remove_tree(fresh)
        with tarfile.open(archive) as tar:
            members = [
                member
                for member in tar
                if not member.isdev() and not member.name.startswith("/") and ".." not in member.name.split("/")
            ]
            tar.extractall(fresh, members, numeric_owner=True)
        os.chmod(fresh, 0o755)
        os.rename(fresh, target)
    except tarfile.TarError as error:
        raise RuntimeError(f"{archive}: {error}") from error
    finally:
        os.close(lock)


def main() -> None:
    """Serve the socket whose descriptor is the first argument."""
    serve(socket.socket(fileno=int(sys.argv[1])))


def serve(control: socket.socket) -> None:
    """Take the configuration from the socket, then requests until its other end is closed."""
    received = channel.receive(control)
    if received is None:
        return
    zygote = Zygote(control)
    try:
        hello = zygote.prepare(received[0])
    except (OSError, RuntimeError) as error:
        number = error.errno if isinstance(error, OSError) else 0
        channel.send(control, {"error": str(error), "errno": number})
        return
    try:
        channel.send(control, hello)
        zygote.serve()
    finally:
        zygote.finish()
