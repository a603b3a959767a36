"""Linux system calls that Python 3.11 does not have, through ctypes."""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 2

_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36

# Docker's default set. Not in it: SYS_ADMIN, SYS_PTRACE, SYS_MODULE, NET_ADMIN, SYS_BOOT ...
KEPT_CAPABILITIES = frozenset(
    {
        0,  # CHOWN
        1,  # DAC_OVERRIDE
        3,  # FOWNER
        4,  # FSETID
        5,  # KILL
        6,  # SETGID
        7,  # SETUID
        8,  # SETPCAP
        10,  # NET_BIND_SERVICE
        13,  # NET_RAW
        18,  # SYS_CHROOT
        27,  # MKNOD
        29,  # AUDIT_WRITE
        31,  # SETFCAP
    }
)
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)
# glibc and musl both export it, without a declaration
_libc.pivot_root.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
_libc.unshare.argtypes = [ctypes.c_int]
_libc.setns.argtypes = [ctypes.c_int, ctypes.c_int]
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_libc.capset.argtypes = [ctypes.c_char_p, ctypes.c_char_p]


def _check(result: int, doing: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), doing)


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, kind: int) -> None:
    """Enter the namespace that a descriptor of `/proc/PID/ns` stands for."""
    _check(_libc.setns(descriptor, kind), "setns")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str = "") -> None:
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), kind.encode() if kind else None, flags, os.fsencode(data) if data else None
    )
    _check(result, f"mount {kind or 'bind'} at {target}")


def unmount(target: str) -> None:
    """Detach a mount now; it goes when its last user is gone."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def bind(source: str, target: str, *, read_only: bool = False) -> None:
    """Show `source` at `target` too, without what is mounted beneath it."""
    mount(source, target, None, MS_BIND)
    if read_only:
        mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def pivot_root(new_root: str) -> None:
    """Make `new_root`, a mount point, the root of this mount namespace and let go of everything else."""
    os.chdir(new_root)
    # both the same: the old root ends up stacked on the new one, and is taken off again (pivot_root(2), "." ".")
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has ended."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def forbid_tracing() -> None:
    """Nobody without CAP_SYS_PTRACE outside may read this process's memory, files or environment."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")


def drop_capabilities(kept_capabilities: frozenset[int] = KEPT_CAPABILITIES) -> None:
    """Keep only these capabilities, in this process and in whatever it starts."""
    kept = [0, 0]
    for capability in range(_LAST_CAPABILITY + 1):
        if capability in kept_capabilities:
            kept[capability // 32] |= 1 << capability % 32
        elif _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # beyond the last one this kernel knows
    low, high = kept
    data = struct.pack("=6I", low, low, 0, high, high, 0)
    _check(_libc.capset(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), data), "capset")
