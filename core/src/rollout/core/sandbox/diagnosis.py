"""Why this machine does not allow sandboxes, in words that say what to do."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SWITCHES = {
    "/proc/sys/kernel/unprivileged_userns_clone": (
        "0",
        "the kernel forbids user namespaces to ordinary users: `sudo sysctl kernel.unprivileged_userns_clone=1` allows them",
    ),
    "/proc/sys/user/max_user_namespaces": (
        "0",
        "the kernel allows no user namespaces: `sudo sysctl user.max_user_namespaces=15000` allows them",
    ),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "AppArmor keeps ordinary users from using user namespaces (as Ubuntu does since 24.04): "
        "`sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0` allows them",
    ),
}
_CONTAINER = (
    "this looks like a container whose engine forbids it: start it with "
    "`--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined`"
)


TELLING = (*_SWITCHES, "/proc/self/status", "/.dockerenv", "/run/.containerenv")
"""The files whose content tells why."""


def read_switch(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def explain(
    answer: dict[str, Any],
    read: Callable[[str], str | None] = read_switch,
    *,
    what: str = "type: local cannot make a sandbox here",
    instead: str = "use another `environment.type`, for instance docker",
) -> str:
    """One line for a sandbox that could not be made. `answer`: `error`, `errno`, `step`, as the zygote has them.

    `read` reads a file of the machine that refused.
    """
    said = f"{what} ({answer['error']})"
    if (
        answer.get("errno") in (errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSPC, errno.ENOSYS)
        or "perm" in answer["error"].lower()
    ):
        for path, (bad, advice) in _SWITCHES.items():
            if read(path) == bad:
                return f"{said}: {advice}, or {instead}"
        status = read("/proc/self/status") or ""
        if "Seccomp:\t2" in status or read("/.dockerenv") is not None or read("/run/.containerenv") is not None:
            return f"{said}: {_CONTAINER}, or {instead}"
    if answer.get("errno") == errno.ENODEV:
        return f"{said}: this kernel has no overlay file system (`sudo modprobe overlay`)"
    return f"{said}: {instead}"
