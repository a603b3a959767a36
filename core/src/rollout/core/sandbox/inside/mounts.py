"""Building the root of one sandbox: overlays, /proc, /dev, /sys."""

from __future__ import annotations

import os
from typing import Any

from . import kernel
from .trees import remove_tree
from .view import SHOWN, copy_ownership, layer_name, within

_PROC_READ_ONLY = ("sys", "sysrq-trigger", "irq", "bus", "fs")
_PROC_MASKED = ("kcore", "keys", "latency_stats", "timer_list", "sched_debug", "scsi", "acpi", "kallsyms", "kmsg", "kpageflags")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def mount_root(view: dict[str, Any], layers: list[str], upper: str, work: str, root: str, shared_memory_bytes: int) -> None:
    """Build the root of a sandbox at `root`, in a mount namespace of its own, and enter it.

    `layers`: image layers, the topmost first. `upper`: what the sandbox writes.
    """
    for path, lowers in view["overlays"]:
        name = layer_name(path)
        top, scratch = os.path.join(upper, name), os.path.join(work, name)
        stack = [folder for folder in (os.path.join(layer, name) for layer in layers) if os.path.isdir(folder)] + lowers
        if not os.path.isdir(top):
            os.mkdir(top)
            copy_ownership(stack[0], top)
        os.mkdir(scratch)
        _overlay(stack, top, scratch, root + path)
    _mount_proc(root + "/proc")
    _mount_dev(root + "/dev", shared_memory_bytes)
    _mount_sys(root + "/sys")
    kernel.pivot_root(root)


def usable_for_upper(folder: str) -> bool:
    """Whether what a sandbox writes may lie in `folder`: not below anything shown, and on a file system that overlay can use."""
    real = os.path.realpath(folder)
    if any(within(real, os.path.realpath("/" + name)) for name in SHOWN):
        return False
    trial = os.path.join(folder, f".trial-{os.getpid()}")
    parts = [os.path.join(trial, name) for name in ("lower", "upper", "work", "root")]
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        os.mkdir(trial)
        for part in parts:
            os.mkdir(part)
        _overlay(parts[:1], *parts[1:])
        kernel.unmount(parts[3])
        return True
    except OSError:
        return False
    finally:
        if os.path.isdir(trial):
            remove_tree(trial)


def _overlay(stack: list[str], upper: str, work: str, target: str) -> None:
    options = (
        f"lowerdir={':'.join(_escape(folder) for folder in stack)},upperdir={_escape(upper)},workdir={_escape(work)},userxattr"
    )
    try:
        # volatile: what a trial wrote need not survive a power cut, and the end of the mount does not wait for the disk
        kernel.mount("overlay", target, "overlay", kernel.MS_NODEV, options + ",volatile")
    except OSError:
        kernel.mount("overlay", target, "overlay", kernel.MS_NODEV, options)


def _mount_proc(proc: str) -> None:
    kernel.mount("proc", proc, "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    mask_proc(proc)


def mask_proc(proc: str) -> None:
    """Make what sets the machine's own parameters read-only, and hide what tells of the machine's memory and keys."""
    for name in _PROC_READ_ONLY:
        if os.path.exists(f"{proc}/{name}"):
            kernel.bind(f"{proc}/{name}", f"{proc}/{name}", read_only=True)
    for name in _PROC_MASKED:
        path = f"{proc}/{name}"
        if os.path.isdir(path):
            kernel.mount("tmpfs", path, "tmpfs", kernel.MS_RDONLY, "size=0,mode=555")
        elif os.path.exists(path):
            kernel.bind("/dev/null", path)


def _mount_dev(dev: str, shared_memory_bytes: int) -> None:
    kernel.mount("tmpfs", dev, "tmpfs", kernel.MS_NOSUID, "size=64k,mode=755")
    for name in _DEVICES:
        os.close(os.open(f"{dev}/{name}", os.O_CREAT | os.O_WRONLY, 0o666))
        kernel.bind(f"/dev/{name}", f"{dev}/{name}")
    for name, target in (
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
        ("ptmx", "pts/ptmx"),
    ):
        os.symlink(target, f"{dev}/{name}")
    os.mkdir(f"{dev}/pts")
    os.mkdir(f"{dev}/shm")
    flags = kernel.MS_NOSUID | kernel.MS_NOEXEC
    try:
        kernel.mount("devpts", f"{dev}/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=0620,gid=5")
    except OSError:  # group 5 (tty) is not mapped
        kernel.mount("devpts", f"{dev}/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=0620")
    kernel.mount("tmpfs", f"{dev}/shm", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"mode=1777,size={shared_memory_bytes}")


def _mount_sys(sys: str) -> None:
    """Only the processors and memory of the machine, which programs ask for, and read-only."""
    kernel.mount("tmpfs", sys, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=64k,mode=555")
    shown = f"{sys}/devices/system"
    try:
        os.makedirs(shown)
        kernel.bind("/sys/devices/system", shown, read_only=True)
    except OSError:  # better none than a writable one
        kernel.unmount(sys)


def _escape(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
