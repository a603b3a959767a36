"""A file or a folder of the host as a tar stream."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from rollout.core.archive.tar import BLOCK, CHUNK, FILE, FOLDER, LINK, Writer, header
from rollout.core.errors import TransferError


def pack(
    source: Path,
    out: Writer,
    *,
    name: str = "r",
    owner: tuple[int, int] = (0, 0),
    mode: int | None = None,
    keep: Callable[[str], bool] = lambda path: True,
) -> None:
    """Write a file or a folder as a tar stream whose root entry is `name`.

    Modes and times are kept (`mode` replaces the modes of files and folders), links stay links, everything belongs to `owner`.
    Sockets, FIFOs and devices are left out. `keep` is asked with each path relative to a folder `source`; what it refuses is left
    out with all below it.

    Raises:
        TransferError: something cannot be read.
        OSError: `out` cannot be written.
    """
    stack = [(os.fsencode(source), os.fsencode(name), b"")]
    while stack:
        path, entry, below = stack.pop()
        if below and not keep(os.fsdecode(below)):
            continue
        try:
            status = os.lstat(path)
            kind = stat.S_IFMT(status.st_mode)
            if kind == stat.S_IFDIR:
                children = sorted(os.listdir(path), reverse=True)
                out.write(_header(entry + b"/", status, owner, mode, 0, FOLDER))
                prefix = below + b"/" if below else b""
                stack.extend((path + b"/" + child, entry + b"/" + child, prefix + child) for child in children)
            elif kind == stat.S_IFLNK:
                out.write(_header(entry, status, owner, None, 0, LINK, os.readlink(path)))
            elif kind == stat.S_IFREG:
                _pack_file(path, entry, owner, mode, out)
        except (PermissionError, FileNotFoundError) as error:
            raise TransferError(f"cannot read {os.fsdecode(path)}: {error.strerror}") from error
    out.write(bytes(2 * BLOCK))


def _header(
    name: bytes, status: os.stat_result, owner: tuple[int, int], mode: int | None, size: int, kind: bytes, link: bytes = b""
) -> bytes:
    bits = stat.S_IMODE(status.st_mode) if mode is None else mode
    return header(name, bits, owner, size, int(status.st_mtime), kind, link)


def _pack_file(path: bytes, name: bytes, owner: tuple[int, int], mode: int | None, out: Writer) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        left = status.st_size
        out.write(_header(name, status, owner, mode, left, FILE))
        while left:
            chunk = os.read(descriptor, min(left, CHUNK))
            if not chunk:
                raise TransferError(f"{os.fsdecode(path)} became shorter while it was read")
            left -= len(chunk)
            out.write(chunk)
        if status.st_size % BLOCK:
            out.write(bytes(-status.st_size % BLOCK))
    finally:
        os.close(descriptor)
