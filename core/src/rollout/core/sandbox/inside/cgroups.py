"""Limits of memory, processors and processes, where this user may make control groups.

Both generations: one unified tree (v2), below the nearest group that this user may write to; or a tree per controller (v1).
"""

from __future__ import annotations

import os
import time
from typing import Any

CONTROLLERS = ("memory", "cpu", "pids")
_PERIOD_USEC = 100_000
_REMOVE_SEC = 5.0


def find(self_cgroup: str = "/proc/self/cgroup", mountinfo: str = "/proc/self/mountinfo") -> dict[str, list[str]]:
    """Controller to [generation, parent folder], for those that can be used."""
    mounts = _mounts(mountinfo)
    found: dict[str, list[str]] = {}
    for line in _lines(self_cgroup):
        number, names, path = line.split(":", 2)
        if number == "0" and not names:
            parent = _delegated_parent(mounts.get("cgroup2"), path)
            if parent is not None:
                controllers = _words(os.path.join(parent, "cgroup.subtree_control"))
                found.update({name: ["v2", parent] for name in CONTROLLERS if name in controllers})
        else:
            for name in set(names.split(",")) & set(CONTROLLERS):
                folder = mounts.get(name, "") + path
                if name in mounts and os.access(folder, os.W_OK) and os.access(os.path.join(folder, "cgroup.procs"), os.W_OK):
                    found[name] = ["v1", folder]
    return found


def settings(generation: str, controller: str, limits: dict[str, Any]) -> dict[str, str]:
    """What to write into which file of a group. `limits`: memory (bytes), cpu (processors), pids."""
    value = limits.get(controller)
    if value is None:
        return {}
    if controller == "pids":
        return {"pids.max": str(value)}
    if controller == "memory":
        if generation == "v2":
            return {"memory.max": str(value), "memory.swap.max": "0", "memory.oom.group": "0"}
        return {"memory.limit_in_bytes": str(value), "memory.memsw.limit_in_bytes": str(value)}
    quota = max(1000, round(value * _PERIOD_USEC))
    if generation == "v2":
        return {"cpu.max": f"{quota} {_PERIOD_USEC}"}
    return {"cpu.cfs_period_us": str(_PERIOD_USEC), "cpu.cfs_quota_us": str(quota)}


def folders(found: dict[str, list[str]], name: str) -> list[str]:
    """The folders of one sandbox's group."""
    return sorted({os.path.join(parent, name) for _, parent in found.values()})


def find_left(prefix: str, mountinfo: str = "/proc/self/mountinfo") -> list[str]:
    """Groups whose name begins so, anywhere in the trees: a job may have run below another group than this process's."""
    roots = {point for name, point in _mounts(mountinfo).items() if name in (*CONTROLLERS, "cgroup2")}
    everything = (os.path.join(top, name) for root in roots for top, names, _ in os.walk(root) for name in names)
    return sorted(path for path in everything if os.path.basename(path).startswith(prefix))


def create(found: dict[str, list[str]], name: str, limits: dict[str, Any], pid: int) -> None:
    """Make a group with these limits and move one process into it."""
    for folder in folders(found, name):
        os.makedirs(folder, exist_ok=True)
    for controller, (generation, parent) in found.items():
        for file, text in settings(generation, controller, limits).items():
            try:
                _write(os.path.join(parent, name, file), text)
            except FileNotFoundError:
                if "swap" not in file and "memsw" not in file and "oom.group" not in file:  # kernels without swap accounting
                    raise
    for folder in folders(found, name):
        _write(os.path.join(folder, "cgroup.procs"), str(pid))


def oom_file(found: dict[str, list[str]], name: str) -> str | None:
    """The file that counts what the kernel killed in a group for memory."""
    if "memory" not in found:
        return None
    generation, parent = found["memory"]
    return os.path.join(parent, name, "memory.events" if generation == "v2" else "memory.oom_control")


def oom_kills(file: str | None) -> int:
    """0 where it cannot be told."""
    lines = _lines(file) if file is not None else []
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def remove(paths: list[str]) -> None:
    """Remove empty groups. A group is empty a moment after its last process has been waited for."""
    deadline = time.monotonic() + _REMOVE_SEC
    for path in paths:
        while True:
            try:
                os.rmdir(path)
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.002)
            else:
                break


def _delegated_parent(mount: str | None, path: str) -> str | None:
    """The nearest group above this process's own in which groups with limits can be made."""
    if mount is None:
        return None
    folder = (mount + path).rstrip("/")
    while folder.startswith(mount):
        if folder != mount + path or path == "/":
            if not os.access(folder, os.W_OK) or not os.access(os.path.join(folder, "cgroup.procs"), os.W_OK):
                return None
            control = os.path.join(folder, "cgroup.subtree_control")
            for name in set(CONTROLLERS) & _words(os.path.join(folder, "cgroup.controllers")) - _words(control):
                try:
                    _write(control, "+" + name)
                except OSError:
                    pass  # a group with processes of its own cannot hand on its controllers
            if "memory" in _words(control):
                return folder
        folder = os.path.dirname(folder)
    return None


def _mounts(mountinfo: str) -> dict[str, str]:
    """Controller (v1) or `cgroup2` to its mount point."""
    found: dict[str, str] = {}
    for line in _lines(mountinfo):
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        point = left.split(" ")[4]
        if kind == "cgroup2":
            found["cgroup2"] = point
        elif kind == "cgroup":
            found.update(dict.fromkeys(options.split(","), point))
    return found


def _words(path: str) -> set[str]:
    return {word for line in _lines(path) for word in line.split()}


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
