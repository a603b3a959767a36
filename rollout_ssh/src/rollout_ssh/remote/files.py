"""The other machine's own files: where sandboxes and layers lie, locks, and what a dead job left."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from typing import Any

from rollout.core.sandbox.inside import cgroups
from rollout.core.sandbox.inside.machine import machine_identity
from rollout_ssh.remote import container

_GROUP_SEC = 2.0


def resolve(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The zygote's configuration with this machine's paths, and what Rollout wants to know of the machine.

    `folder`: Rollout's own here, where `~` and `${XDG_CACHE_HOME}` are this machine's; `job`: the job's id; `tell`: files that
    explain a refusal.
    """
    folder = _folder(config["folder"])
    machine: dict[str, Any] = {
        "machine": os.uname().machine,
        "identity": machine_identity(),
        "euid": os.geteuid(),
        "folder": folder,
        "files": {path: _text(path) for path in config["tell"]},
        "program": container.find(config["programs"]),
        "image": _existing(config.get("image")),
    }
    for path in config["share"]:
        if not os.path.isdir(path) or os.path.realpath(path) == "/":
            machine["error"] = f"environment.options.share: {path} is not a folder there"
    rootfs = os.path.expanduser(config["rootfs"]) if config["rootfs"] else None
    archive = None
    if rootfs is not None and not os.path.isdir(rootfs):
        if not os.path.isfile(rootfs):
            machine["error"] = f"environment.options.rootfs: there is no {rootfs}"
        else:
            status = os.stat(rootfs)
            archive, rootfs = rootfs, f"{folder}/rootfs/{status.st_dev:x}-{status.st_ino:x}-{status.st_mtime_ns:x}"
    scratch = [f"{folder}/work/{config['job']}"]
    scratch += [f"{place}/rollout-{os.geteuid()}-{config['job']}" for place in ("/tmp", "/dev/shm")]
    zygote = {
        "scratch": scratch,
        "cache": folder,
        "share": config["share"],
        "hide": [folder, *(os.path.expanduser(path) for path in config["mask"])],
        "rootfs": rootfs,
        "rootfs_tar": archive,
    }
    return zygote, machine


def serve(request: dict[str, Any], locks: dict[str, int]) -> dict[str, Any]:
    """One request of Rollout's: what came of it, or the error in words."""
    try:
        return _serve(request, locks)
    except OSError as error:
        return {"error": f"{error.filename or request.get('path', '')}: {error.strerror}"}


def _serve(request: dict[str, Any], locks: dict[str, int]) -> dict[str, Any]:
    what, path = request["what"], request["path"]
    if what == "read":
        try:
            with open(path, encoding="utf-8") as file:
                return {"text": file.read()}
        except FileNotFoundError:
            return {"text": None}
    if what == "write":
        with open(path, "w", encoding="utf-8") as file:
            file.write(request["text"])
    elif what == "make":
        os.makedirs(path)
    elif what == "rename":
        os.rename(path, request["target"])
    elif what == "exists":
        return {"exists": os.path.lexists(path)}
    elif what == "lock":
        return {"locked": _lock(path, locks)}
    elif what == "unlock":
        os.close(locks.pop(path))
    elif what == "leftovers":
        return leftovers(path, request["job"])
    return {}


def _lock(path: str, locks: dict[str, int]) -> bool:
    if path in locks:
        return False
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    locks[path] = descriptor
    return True


def leftovers(folder: str, job: str) -> dict[str, Any]:
    """What relays of a job that are dead left: folders to remove (a zygote may have to), and groups, which are removed."""
    places = [f"{folder}/work/{job}", *(f"{place}/rollout-{os.geteuid()}-{job}" for place in ("/tmp", "/dev/shm"))]
    found = []
    for place in places:
        try:
            names = sorted(os.listdir(place))
        except OSError:
            continue
        # base-PID of a zygote, PID-TOKEN of a sandbox: those of a zygote that runs are none of our business
        for name in names:
            digits = name[5:] if name.startswith("base-") else name.partition("-")[0]
            if not (digits.isdigit() and _is_zygote(digits)):
                container.end_left(f"{place}/{name}")
                found.append(f"{place}/{name}")
    groups = []
    deadline = time.monotonic() + _GROUP_SEC
    for group in cgroups.find_left(f"rollout-{job}-"):
        while time.monotonic() < deadline:
            try:
                os.rmdir(group)
                groups.append(group)
                break
            except FileNotFoundError:
                break
            except OSError:
                if not found:
                    break  # of a sandbox that runs
                time.sleep(0.01)
    return {"paths": found, "groups": groups}


def _is_zygote(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"rollout" in file.read()
    except OSError:
        return False


def _folder(folder: str) -> str:
    if folder.startswith("~/.cache/") and os.environ.get("XDG_CACHE_HOME", "").startswith("/"):
        return os.environ["XDG_CACHE_HOME"] + folder[len("~/.cache") :]
    path = os.path.expanduser(folder)
    return path if path.startswith("/") else f"/tmp/rollout-{os.geteuid()}-cache"


def _existing(path: str | None) -> str | None:
    found = os.path.expanduser(path) if path is not None else ""
    return found if os.path.exists(found) else None


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return None
