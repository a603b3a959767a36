"""Folders as tar streams, in both directions: the one place that reads what comes out of a sandbox.

`pack` writes GNU tar. `unpack` reads ustar, GNU and pax archives that an enemy may have made: it writes nothing outside its
target, follows no link, makes no device, takes no more than its limits, and no longer a header than a real file name needs.
Both work on ordinary blocking streams; backends run them in a thread.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from rollout.core.errors import TransferError
from rollout.core.types import DEFAULT_TRANSFER_LIMITS, TransferLimits, TransferReport

_BLOCK = 512
_CHUNK = 256 * 1024
_MAX_HEADER_BYTES = 1024 * 1024
_MAX_REPORTED = 100
_FILE, _HARD_LINK, _LINK, _FOLDER = b"0", b"1", b"2", b"5"
_SKIPPED_KEY = b"ROLLOUT.skipped"


class Reader(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Writer(Protocol):
    def write(self, data: bytes, /) -> object: ...


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
                out.write(_header(entry + b"/", status, owner, mode, 0, _FOLDER))
                prefix = below + b"/" if below else b""
                stack.extend((path + b"/" + child, entry + b"/" + child, prefix + child) for child in children)
            elif kind == stat.S_IFLNK:
                out.write(_header(entry, status, owner, None, 0, _LINK, os.readlink(path)))
            elif kind == stat.S_IFREG:
                _pack_file(path, entry, owner, mode, out)
        except (PermissionError, FileNotFoundError) as error:
            raise TransferError(f"cannot read {os.fsdecode(path)}: {error.strerror}") from error
    out.write(bytes(2 * _BLOCK))


def unpack(stream: Reader, target: Path, limits: TransferLimits = DEFAULT_TRANSFER_LIMITS) -> TransferReport:
    """Write the content of an archive to `target`.

    The first component of every name is dropped: an archive of one file becomes the file `target`, one of a folder becomes the
    folder `target`, merged into what is there. Modes are reduced to the user's own (0600 or 0700). Links are kept when they
    cannot lead out of `target`; everything that is refused is in the report.

    Raises:
        TransferError: the stream is not an archive or ends early, or the host cannot write.
    """
    extraction = _Extraction(stream, target, limits)
    try:
        for member in _members(stream):
            if not extraction.take(member):
                break
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename else "the transfer"
        raise TransferError(f"{where}: {error.strerror or error}") from error
    return extraction.report()


class _Member(NamedTuple):
    name: bytes
    kind: bytes
    mode: int
    mtime: int
    size: int
    link: bytes
    skipped: str | None
    data: _Data


class _Data:
    """The bytes of one member; what is not asked for is passed over."""

    def __init__(self, stream: Reader, size: int) -> None:
        self._stream = stream
        self._left = size
        self._padding = -size % _BLOCK

    def chunks(self) -> Iterator[bytes]:
        while self._left:
            chunk = self._stream.read(min(self._left, _CHUNK))
            if not chunk:
                raise TransferError("the archive ends in the middle of a file")
            self._left -= len(chunk)
            yield chunk

    def finish(self) -> None:
        for _ in self.chunks():
            pass
        padding, self._padding = self._padding, 0
        _read_exactly(self._stream, padding)


class _Extraction:
    def __init__(self, stream: Reader, target: Path, limits: TransferLimits) -> None:
        self._target = os.fsencode(os.path.abspath(target))
        self._limits = limits
        self._folders: set[bytes] = set()
        self._entries = self._files = self._bytes = self._skipped_count = 0
        self._skipped: list[tuple[str, str]] = []

    def report(self) -> TransferReport:
        return TransferReport(
            files=self._files, total_bytes=self._bytes, skipped=tuple(self._skipped), skipped_count=self._skipped_count
        )

    def take(self, member: _Member) -> bool:
        """Write one member or report why not; False ends the extraction."""
        parts = member.name.rstrip(b"/").split(b"/")
        below = [part for part in parts[1:] if part not in (b"", b".")]
        shown = os.fsdecode(b"/".join(below)) or "."
        if self._entries >= self._limits.max_files:
            self._skip(shown, f"more than {self._limits.max_files} entries: this and what follows is left out")
            return False
        self._entries += 1
        if parts[0] == b"" or b".." in parts or b"\0" in member.name:
            reason: str | None = "a name that leads out of the folder"
        else:
            try:
                reason = self._write(member, below)
            except OSError as error:
                if error.errno not in (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ):
                    raise
                reason = "a name that this file system cannot hold"
        if reason is not None:
            self._skip(shown, reason)
        return True

    def _skip(self, name: str, reason: str) -> None:
        self._skipped_count += 1
        if len(self._skipped) < _MAX_REPORTED:
            self._skipped.append((name.encode("utf-8", "backslashreplace").decode()[:1000], reason))

    def _write(self, member: _Member, below: list[bytes]) -> str | None:
        """None, or why the member was left out."""
        if member.skipped is not None:
            return member.skipped
        path = b"/".join([self._target, *below])
        if member.kind == _FOLDER:
            return self._folder(below)
        if not below:
            if member.kind != _FILE:
                return "neither a file nor a folder"
            os.makedirs(os.path.dirname(path), exist_ok=True)
        elif (reason := self._folder(below[:-1])) is not None:
            return reason
        if member.kind == _FILE:
            return self._file(path, member)
        if member.kind == _LINK:
            if not _stays_inside(below, member.link):
                return f"a link out of the folder, to {os.fsdecode(member.link)[:200]!r}"
            if not self._clear(path):
                return "a folder is in the way"
            os.symlink(member.link, path)
            return None
        if member.kind == _HARD_LINK:
            return self._hard_link(path, member)
        return "a device, FIFO or special file"

    def _folder(self, below: list[bytes]) -> str | None:
        """Make a folder and its parents; each must be a real one, so that nothing is written through a link."""
        path = b"/".join([self._target, *below])
        if path in self._folders:
            return None
        if below:
            reason = self._folder(below[:-1])
            if reason is not None:
                return reason
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    return "a link or a file is in the way"
        else:
            os.makedirs(path, mode=0o777, exist_ok=True)
        self._folders.add(path)
        return None

    def _file(self, path: bytes, member: _Member) -> str | None:
        if member.size > self._limits.max_file_bytes:
            return f"larger than {self._limits.max_file_bytes} bytes"
        if self._bytes + member.size > self._limits.max_total_bytes:
            return f"beyond {self._limits.max_total_bytes} bytes in all"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        mode = 0o600 | (member.mode & 0o100)
        try:
            descriptor = os.open(path, flags, mode)
        except FileExistsError:
            if not self._clear(path):
                return "a folder is in the way"
            descriptor = os.open(path, flags, mode)
        try:
            for chunk in member.data.chunks():
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            os.utime(descriptor, (member.mtime, member.mtime))
        finally:
            os.close(descriptor)
        self._files += 1
        self._bytes += member.size
        return None

    def _hard_link(self, path: bytes, member: _Member) -> str | None:
        """Only to a file that lies below the target, through real folders."""
        parts = member.link.split(b"/")
        below = [part for part in parts[1:] if part not in (b"", b".")]
        source = b"/".join([self._target, *below])
        if parts[0] == b"" or b".." in parts or not below or b"/".join([self._target, *below[:-1]]) not in self._folders:
            return "a hard link to something that is not here"
        try:
            regular = stat.S_ISREG(os.lstat(source).st_mode)
        except FileNotFoundError:
            regular = False
        if not regular or source == path:
            return "a hard link to something that is not here"
        if not self._clear(path):
            return "a folder is in the way"
        os.link(source, path, follow_symlinks=False)
        self._files += 1
        return None

    def _clear(self, path: bytes) -> bool:
        """Make way at `path`; False when a folder is there."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in (errno.EISDIR, errno.EPERM):
                return False
            raise
        return True


def _stays_inside(below: list[bytes], link: bytes) -> bool:
    """Whether a link at `below` leads to something within the folder, whatever other links there are.

    Leading `..` go up from a real folder and can be counted. After a name they would go up from wherever that name leads.
    """
    parts = [part for part in link.split(b"/") if part not in (b"", b".")]
    up = 0
    while up < len(parts) and parts[up] == b"..":
        up += 1
    return not link.startswith(b"/") and link != b"" and b"\0" not in link and up < len(below) and b".." not in parts[up:]


def _members(stream: Reader) -> Iterator[_Member]:
    """The entries of an archive, extension headers resolved."""
    long_name = long_link = None
    records: dict[bytes, bytes] = {}
    empty = True
    while True:
        block = stream.read(_BLOCK)
        if len(block) < _BLOCK:
            block += _read_exactly(stream, _BLOCK - len(block)) if block else b""
        if not block and empty:
            raise TransferError("the archive is empty")
        if not block.strip(b"\0"):
            for _ in range(_MAX_HEADER_BYTES // _BLOCK):  # the end mark, and padding that the writer still wants to get rid of
                if not stream.read(_BLOCK):
                    break
            return
        empty = False
        kind = block[156:157]
        if _checksum(block) != _number(block[148:156]):
            raise TransferError("this is not a tar archive, or it is damaged")
        size = _number(block[124:136])
        if kind in b"LKxg" and size > _MAX_HEADER_BYTES:
            raise TransferError(f"the archive has a header of {size} bytes")
        if kind in b"LKxg":
            value = _read_exactly(stream, size)
            _read_exactly(stream, -size % _BLOCK)
            if kind == b"L":
                long_name = value.rstrip(b"\0")
            elif kind == b"K":
                long_link = value.rstrip(b"\0")
            elif kind == b"x":
                records = _pax_records(value)
            continue
        name = block[:100].split(b"\0", 1)[0]
        if block[257:265] == b"ustar\x0000" and block[345] != 0:
            name = block[345:500].split(b"\0", 1)[0] + b"/" + name
        skipped = records.get(_SKIPPED_KEY)
        if kind == b"S" or any(key.startswith(b"GNU.sparse") for key in records):
            skipped = skipped or b"a sparse file in a form that is not read"
            if kind == b"S":
                _skip_sparse_headers(stream, block)
        if b"size" in records:
            size = _decimal(records[b"size"])
        if kind in (_LINK, _FOLDER, b"3", b"4", b"6"):
            size = 0
        data = _Data(stream, size)
        name = records.get(b"path") or long_name or name
        kind = _FILE if kind in (b"\0", b"7") else kind
        if kind == _FILE and name.endswith(b"/"):
            kind = _FOLDER  # as archives older than POSIX have them
        yield _Member(
            name=name,
            kind=kind,
            mode=_number(block[100:108]),
            mtime=min(_number(block[136:148]), 2**40),
            size=size,
            link=records.get(b"linkpath") or long_link or block[157:257].split(b"\0", 1)[0],
            skipped=skipped.decode("utf-8", "replace")[:200] if skipped is not None else None,
            data=data,
        )
        data.finish()
        long_name = long_link = None
        records = {}


def _pax_records(data: bytes) -> dict[bytes, bytes]:
    records = {}
    while data:
        digits, space, _ = data[:12].partition(b" ")
        length = _decimal(digits)
        if not space or not len(digits) + 3 <= length <= len(data):
            raise TransferError("the archive has a damaged pax header")
        key, _, value = data[len(digits) + 1 : length - 1].partition(b"=")
        records[key] = value
        data = data[length:]
    return records


def _skip_sparse_headers(stream: Reader, block: bytes) -> None:
    more = block[482]
    for _ in range(10_000):
        if not more:
            return
        more = _read_exactly(stream, _BLOCK)[504]
    raise TransferError("the archive has a sparse file of endless parts")


def _read_exactly(stream: Reader, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = stream.read(size - len(data))
        if not part:
            raise TransferError("the archive ends early")
        data += part
    return data


def _decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 19:
        raise TransferError("the archive has a damaged number")
    return int(digits)


def _number(field: bytes) -> int:
    if field[0] & 0x80:
        value = int.from_bytes(field[1:], "big")
        if field[0] & 0x7F or value >= 2**63:
            return 0 if field[0] == 0xFF else _damaged()  # a time before 1970, or nonsense
        return value
    digits = field.strip(b" \0")
    if not digits:
        return 0
    if digits.strip(b"01234567"):
        _damaged()
    return int(digits, 8)


def _damaged() -> int:
    raise TransferError("the archive has a damaged number")


def _checksum(block: bytes) -> int:
    return sum(block) - sum(block[148:156]) + 8 * 32


def _header(
    name: bytes, status: os.stat_result, owner: tuple[int, int], mode: int | None, size: int, kind: bytes, link: bytes = b""
) -> bytes:
    bits = stat.S_IMODE(status.st_mode) if mode is None else mode
    return _raw_header(name, bits, owner, size, int(status.st_mtime), kind, link)


def _raw_header(name: bytes, mode: int, owner: tuple[int, int], size: int, mtime: int, kind: bytes, link: bytes = b"") -> bytes:
    extra = b""
    for value, letter in ((name, b"L"), (link, b"K")):
        if len(value) > 100:
            extra += _raw_header(b"././@LongLink", 0, (0, 0), len(value) + 1, 0, letter)
            extra += value + b"\0" + bytes(-(len(value) + 1) % _BLOCK)
    fields = struct.pack(
        "100s8s8s8s12s12s8sc100s8s247x",
        name[:100],
        b"%07o\0" % mode,
        b"%07o\0" % min(owner[0], 8**7 - 1) if owner[0] < 8**7 else b"\x80" + owner[0].to_bytes(7, "big"),
        b"%07o\0" % min(owner[1], 8**7 - 1) if owner[1] < 8**7 else b"\x80" + owner[1].to_bytes(7, "big"),
        b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big"),
        b"%011o\0" % min(max(mtime, 0), 8**11 - 1),
        b" " * 8,
        kind,
        link[:100],
        b"ustar  \0",
    )
    return extra + fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]


def _pack_file(path: bytes, name: bytes, owner: tuple[int, int], mode: int | None, out: Writer) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        left = status.st_size
        out.write(_header(name, status, owner, mode, left, _FILE))
        while left:
            chunk = os.read(descriptor, min(left, _CHUNK))
            if not chunk:
                raise TransferError(f"{os.fsdecode(path)} became shorter while it was read")
            left -= len(chunk)
            out.write(chunk)
        if status.st_size % _BLOCK:
            out.write(bytes(-status.st_size % _BLOCK))
    finally:
        os.close(descriptor)
