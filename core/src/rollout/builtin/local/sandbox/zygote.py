"""The process that makes sandboxes: started once per backend, it forks each of them, so that a start costs milliseconds.

    rollout ── zygote (user namespace: the user is root in it; the mounts as they were when the job began)
                 └─ init of a sandbox (user, mount, pid, ipc, uts and perhaps network namespace of its own)
                      └─ commands

It ends when Rollout's end of its socket closes, and so does each init: nothing has to be tidied up after a crash but folders.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable
from typing import Any

from . import cgroups, channel, init, kernel, view
from .accounts import subordinate_ranges
from .trees import remove_tree

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


class Zygote:
    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.view: dict[str, Any] = {}
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
        scratch = next((folder for folder in config["scratch"] if _is_own(folder) and view.usable_for_upper(folder)), None)
        if scratch is None:
            raise RuntimeError(f"no folder among {', '.join(config['scratch'])} can hold what sandboxes write")
        rootfs = config["rootfs"]
        if config["rootfs_tar"]:
            unpack_rootfs(config["rootfs_tar"], rootfs)
        base = f"{scratch}/base-{os.getpid()}"
        os.mkdir(base)
        self.view = view.survey(base, share=config["share"], hide=config["hide"], rootfs=rootfs, writable=ids != "all")
        return {
            "ids": ids,
            "groups": self.groups,
            "shown": [path for path, _ in self.view["overlays"]],
            "scratch": scratch,
            "base": base,
            "cache": config["cache"] if view.usable_for_upper(config["cache"]) else f"{scratch}/cache",
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
        pid = _fork()
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
        pid = _fork()
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
        channel.send(self.control, message)


def enter_outer_namespace() -> str:
    """Become root of a user namespace; say which ids it has: `all`, `ranges` (subordinate ids) or `one`."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        try:
            kernel.unshare(kernel.CLONE_NEWNS)
        except PermissionError:
            pass  # root of a container: as good as an ordinary user here
        else:
            kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
            view.detach_foreign_mounts()
    maps = (_identity("uid"), _identity("gid"))
    ranges = subordinate_ranges(user)

    def write(pid: int) -> str:
        if user == 0:
            try:
                write_maps(pid, *maps)
                return "all"
            except OSError:  # root without CAP_SETUID
                pass
        elif ranges is not None:
            done = [
                os.spawnvp(os.P_WAIT, program, [program, str(pid), "0", str(own), "1", "1", str(first), str(count)])
                for program, own, (first, count) in (("newuidmap", user, ranges[0]), ("newgidmap", group, ranges[1]))
            ]
            if done == [0, 0]:
                return "ranges"
        _write(f"/proc/{pid}/setgroups", "deny")
        write_maps(pid, f"0 {user} 1", f"0 {group} 1")
        return "one"

    helper = Helper(write)
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
    result = helper.call()
    helper.close()
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    return result


def start_sandbox(control: socket.socket, config: dict[str, Any], shown: dict[str, Any], report: int) -> None:
    """In a forked process: make the namespaces and fork the sandbox's init into them. Never returns."""
    step = "creating namespaces"
    try:
        maps = (_identity("uid"), _identity("gid"))
        limits = config["limits"]

        def write(pid: int) -> str:
            write_maps(pid, *maps)
            return ""

        def move(pid: int) -> str:
            if config["groups"]:
                cgroups.create(config["groups"], config["name"], limits, pid)
            return ""

        helper = Helper(write, move)
        network = kernel.CLONE_NEWNET if config["network"] == "none" else 0
        flags = kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
        kernel.unshare(flags | network)
        helper.call()
        pid = os.fork()
        if pid:
            os.write(report, str(pid).encode())
            helper.request(pid)
            os._exit(0)
        os.close(report)
        os.setsid()
        step = "setting up the network"
        if network:
            _raise_loopback()
        step = "building the file system"
        _build_root(config, shown)
        step = "setting resource limits"
        helper.result()
        helper.close()
        kernel.unshare(kernel.CLONE_NEWCGROUP)  # the host's names of groups are nobody's business
        step = "giving up privileges"
        kernel.drop_capabilities()
        os.makedirs(config["workdir"], exist_ok=True)
        init.run(control, config)
    except (OSError, RuntimeError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else 0
        try:
            channel.send(control, {"error": f"{step}: {error}", "step": step, "errno": number})
        except OSError:
            pass  # nobody waits any more
    finally:
        os._exit(1)


def _build_root(config: dict[str, Any], shown: dict[str, Any]) -> None:
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    scratch = config["scratch"]
    os.mkdir(scratch, 0o755)
    if config["tmpfs_bytes"]:
        kernel.mount("tmpfs", scratch, "tmpfs", kernel.MS_NODEV, f"size={config['tmpfs_bytes']},mode=755")
    upper = config["upper"] or scratch + "/files"
    if not os.path.isdir(upper):
        os.mkdir(upper)
    os.mkdir(scratch + "/work")
    os.mkdir(scratch + "/root")
    view.mount_root(shown, config["layers"], upper, scratch + "/work", scratch + "/root", config["shm_bytes"])


class Helper:
    """A process that stays behind when its parent enters new namespaces, and does what only it may do.

    The actions run in the order of `request`, each with one pid; `result` waits for the next answer, in whichever process asks.
    """

    def __init__(self, *actions: Callable[[int], str]) -> None:
        requests, self._request = os.pipe2(os.O_CLOEXEC)
        self._answers, answer = os.pipe2(os.O_CLOEXEC)
        self._own = os.getpid()
        pid = _fork()
        if pid:
            os.close(requests)
            os.close(answer)
            return
        os.close(self._request)
        for action in actions:
            data = os.read(requests, 4)
            if len(data) < 4:
                break
            try:
                text = "+" + action(struct.unpack("=i", data)[0])
            except OSError as error:
                text = f"-{error}"
            os.write(answer, text.encode()[:4000])
        os._exit(0)

    def request(self, pid: int) -> None:
        os.write(self._request, struct.pack("=i", pid))

    def result(self) -> str:
        text = os.read(self._answers, 4096).decode()
        if not text.startswith("+"):
            raise RuntimeError(text[1:] or "the helper process ended")
        return text[1:]

    def call(self) -> str:
        """The action for this very process."""
        self.request(self._own)
        return self.result()

    def close(self) -> None:
        os.close(self._request)
        os.close(self._answers)


def write_maps(pid: int, users: str, groups: str) -> None:
    _write(f"/proc/{pid}/uid_map", users)
    _write(f"/proc/{pid}/gid_map", groups)


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


def _identity(which: str) -> str:
    """A map that gives a new namespace every id of this one, unchanged."""
    return "\n".join(f"{inside} {inside} {count}" for inside, count in _extents(which))


def _extents(which: str) -> list[tuple[int, int]]:
    with open(f"/proc/self/{which}_map") as file:
        return [(int(fields[0]), int(fields[2])) for fields in map(str.split, file)]


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(probe, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _fork() -> int:
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
    return pid


def main() -> None:
    """Serve the socket whose descriptor is the first argument."""
    control = socket.socket(fileno=int(sys.argv[1]))
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
    channel.send(control, hello)
    try:
        zygote.serve()
    except ConnectionError:
        return  # Rollout has ended
