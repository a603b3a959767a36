"""Namespaces: the one that all sandboxes of a backend are made from, and those of each sandbox."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
from collections.abc import Callable
from typing import Any

from . import cgroups, channel, init, kernel, mounts, view
from .accounts import subordinate_ranges

_AT_ONCE = 8  # descriptors in one message
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


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
                try:
                    cgroups.create(config["groups"], config["name"], limits, pid)
                finally:
                    # a start that was given up meanwhile: whoever removes its groups may have been here before they were made
                    if not os.path.exists(f"/proc/{pid}"):
                        cgroups.remove(cgroups.folders(config["groups"], config["name"]))
            return ""

        helper = Helper(write, move)
        network = 0 if config["network"] == "host" else kernel.CLONE_NEWNET
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
        if config["relay"]:
            _send_sockets(control, **config["relay"])
        step = "building the file system"
        _build_root(config, shown)
        if config["relay"]:
            _name_the_server(config["relay"]["address"])
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
    mounts.mount_root(shown, config["layers"], upper, scratch + "/work", scratch + "/root", config["shm_bytes"])


class Helper:
    """A process that stays behind when its parent enters new namespaces, and does what only it may do.

    The actions run in the order of `request`, each with one pid; `result` waits for the next answer, in whichever process asks.
    """

    def __init__(self, *actions: Callable[[int], str]) -> None:
        requests, self._request = os.pipe2(os.O_CLOEXEC)
        self._answers, answer = os.pipe2(os.O_CLOEXEC)
        self._own = os.getpid()
        pid = fork()
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


def _send_sockets(control: socket.socket, address: str, ports: list[int], names: int) -> None:
    """Make the only ways out of a network that has no other: sockets of ours that somebody outside serves."""
    made = []
    for port in dict.fromkeys(ports):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((address, port))
        listener.listen(128)
        made.append(listener)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, names))
    made.append(server)
    while made:
        some, made = made[:_AT_ONCE], made[_AT_ONCE:]
        channel.send(control, {"sockets": len(some)}, [each.fileno() for each in some])
        for each in some:
            each.close()


def _name_the_server(address: str) -> None:
    """Have names looked up where they are allowed or not, and not in what the machine knows of them."""
    hosts = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n"
    for path, text in (("/etc/resolv.conf", f"nameserver {address}\n"), ("/etc/hosts", hosts)):
        if os.path.lexists(path):
            os.unlink(path)  # it may be a link
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def fork() -> int:
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
    return pid
