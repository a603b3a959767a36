"""Files into and out of a sandbox, as a tar stream, by a process inside it: links lead nowhere but to the sandbox's own files.

The stream is what `rollout.core.archive` writes and reads (GNU tar, one root entry). These few lines read it back because the
other end wrote it; what comes out of a sandbox is read by `rollout.core.archive`, which trusts nothing.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
from typing import Any, BinaryIO

from .accounts import find_account

MISSING = 3
FAILED = 1
_BLOCK = 512
_CHUNK = 1 << 16


def run(direction: str, arguments: dict[str, Any]) -> int:
    """`unpack` reads standard input, `pack` writes standard output; the exit code says how it went, standard error why."""
    try:
        if direction == "unpack":
            with open(0, "rb", _CHUNK * 4, closefd=False) as stream:
                owner = find_account(arguments["owner"])
                if owner is None:
                    raise OSError(22, f"no user {arguments['owner']!r} in this environment", arguments["target"])
                unpack(stream, os.fsencode(arguments["target"]), owner.uid, owner.gid)
        else:
            source = os.fsencode(arguments["source"])
            if not os.path.lexists(source):
                return MISSING
            with open(1, "wb", _CHUNK * 4, closefd=False) as out:
                pack(source, out, arguments["max_file_bytes"], arguments["max_files"])
    except BrokenPipeError:
        return FAILED  # the other end has stopped and says why
    except OSError as error:
        name = os.fsdecode(error.filename) if error.filename else "a file"
        sys.stderr.write(f"{name!r}: {error.strerror}")
        sys.stderr.flush()
        return FAILED
    return 0


def header(name: bytes, mode: int, size: int, mtime: int, kind: bytes, link: bytes = b"") -> bytes:
    """One GNU tar header, with long names before it."""
    blocks = b""
    if len(name) > 100:
        blocks += header(b"././@LongLink", 0, len(name) + 1, 0, b"L") + _padded(name + b"\0")
    if len(link) > 100:
        blocks += header(b"././@LongLink", 0, len(link) + 1, 0, b"K") + _padded(link + b"\0")
    size_field = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    mtime = min(max(mtime, 0), 8**11 - 1)
    fields = struct.pack(
        "100s8s8s8s12s12s8sc100s8s247x",
        name[:100],
        b"%07o\0" % (mode & 0o7777),
        b"0000000\0",
        b"0000000\0",
        size_field,
        b"%011o\0" % mtime,
        b" " * 8,
        kind,
        link[:100],
        b"ustar  \0",
    )
    return blocks + fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]


def skipped(name: bytes, reason: str) -> bytes:
    """An entry that says why a file was left out: a pax header that other readers ignore, for an empty file."""
    text = b" ROLLOUT.skipped=" + reason.encode() + b"\n"
    length = len(text) + len(str(len(text)))
    length = len(text) + len(str(length))
    record = str(length).encode() + text
    return header(b"././@PaxHeader", 0, len(record), 0, b"x") + _padded(record) + header(name, 0, 0, 0, b"0")


def pack(source: bytes, out: BinaryIO, max_file_bytes: int, max_files: int) -> None:
    """Write `source`, a file or a folder, as the entry `r` and what is below it."""
    left = max_files + 1  # the reader reports what comes after the last one it may take
    stack = [(source, b"r")]
    while stack and left > 0:
        path, name = stack.pop()
        left -= 1
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            continue  # removed meanwhile by whatever still runs
        mode, mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        if stat.S_ISDIR(status.st_mode):
            out.write(header(name + b"/", mode, 0, mtime, b"5"))
            try:
                stack.extend((path + b"/" + child, name + b"/" + child) for child in sorted(os.listdir(path), reverse=True))
            except FileNotFoundError:
                continue
        elif stat.S_ISLNK(status.st_mode):
            out.write(header(name, mode, 0, mtime, b"2", os.readlink(path)))
        elif stat.S_ISREG(status.st_mode):
            if status.st_size > max_file_bytes:
                out.write(skipped(name, f"larger than {max_file_bytes} bytes"))
            else:
                _pack_file(path, name, mode, mtime, out)
        else:
            out.write(skipped(name, "a device, FIFO or socket"))
    out.write(bytes(2 * _BLOCK))


def _pack_file(path: bytes, name: bytes, mode: int, mtime: int, out: BinaryIO) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        size = left = os.fstat(descriptor).st_size
        out.write(header(name, mode, size, mtime, b"0"))
        while left:
            chunk = os.read(descriptor, min(left, _CHUNK)) or bytes(min(left, _CHUNK))  # it shrank: the header has promised
            out.write(chunk)
            left -= len(chunk)
        out.write(bytes(-size % _BLOCK))
    finally:
        os.close(descriptor)


def unpack(stream: BinaryIO, target: bytes, uid: int, gid: int) -> None:
    """Write the entry at the root of the stream to `target` and everything below it beneath; merge into what is there."""
    os.makedirs(os.path.dirname(target) or b"/", exist_ok=True)
    long_name = long_link = None
    folders: list[tuple[bytes, int, int]] = []
    while True:
        block = stream.read(_BLOCK)
        if len(block) < _BLOCK or not block.strip(b"\0"):
            break
        size = int.from_bytes(block[125:136], "big") if block[124] & 0x80 else int(block[124:135], 8)
        kind = block[156:157]
        if kind in b"LK":
            value = stream.read(size + -size % _BLOCK)[: size - 1]
            long_name, long_link = (value, long_link) if kind == b"L" else (long_name, value)
            continue
        name = long_name or block[:100].rstrip(b"\0")
        link = long_link or block[157:257].rstrip(b"\0")
        long_name = long_link = None
        mode, mtime = int(block[100:107], 8), int(block[136:147], 8)
        below = name.rstrip(b"/").partition(b"/")[2]
        path = target + b"/" + below if below else target
        if kind == b"5":
            if not os.path.isdir(path):
                os.mkdir(path)
                os.lchown(path, uid, gid)
                folders.append((path, mode, mtime))
        elif kind == b"2":
            _remove_file(path)
            os.symlink(link, path)
            os.lchown(path, uid, gid)
        else:
            _unpack_file(stream, path, size, mode, uid, gid)
            os.utime(path, (mtime, mtime))
    for path, mode, mtime in reversed(folders):
        os.chmod(path, mode)
        os.utime(path, (mtime, mtime))


def _unpack_file(stream: BinaryIO, path: bytes, size: int, mode: int, uid: int, gid: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        _remove_file(path)
        descriptor = os.open(path, flags, 0o600)
    try:
        left = size
        while left:
            chunk = stream.read(min(left, _CHUNK))
            if not chunk:
                raise OSError(5, "the transfer was cut off", path)
            left -= len(chunk)
            while chunk:
                chunk = chunk[os.write(descriptor, chunk) :]
        stream.read(-size % _BLOCK)
        if uid or gid:
            os.fchown(descriptor, uid, gid)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def _remove_file(path: bytes) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _BLOCK)
