"""A tar stream, whoever made it, as files of the host."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from rollout.core.archive.tar import FILE, FOLDER, HARD_LINK, LINK, Member, Reader, members
from rollout.core.errors import TransferError
from rollout.core.types import DEFAULT_TRANSFER_LIMITS, TransferLimits, TransferReport

_MAX_REPORTED = 100


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
        for member in members(stream):
            if not extraction.take(member):
                break
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename else "the transfer"
        raise TransferError(f"{where}: {error.strerror or error}") from error
    return extraction.report()


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

    def take(self, member: Member) -> bool:
        """Write one member or report why not; False ends the extraction."""
        parts = member.name.rstrip(b"/").split(b"/")
        below = [part for part in parts[1:] if part not in (b"", b".")]
        shown = os.fsdecode(b"/".join(below)) or "."
        if self._limits.exclude and below and self._limits.excludes(shown):
            return True
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

    def _write(self, member: Member, below: list[bytes]) -> str | None:
        """None, or why the member was left out."""
        if member.skipped is not None:
            return member.skipped
        path = b"/".join([self._target, *below])
        if member.kind == FOLDER:
            return self._folder(below)
        if not below:
            if member.kind != FILE:
                return "neither a file nor a folder"
            os.makedirs(os.path.dirname(path), exist_ok=True)
        elif (reason := self._folder(below[:-1])) is not None:
            return reason
        if member.kind == FILE:
            return self._file(path, member)
        if member.kind == LINK:
            if not _stays_inside(below, member.link):
                return f"a link out of the folder, to {os.fsdecode(member.link)[:200]!r}"
            if not self._clear(path):
                return "a folder is in the way"
            os.symlink(member.link, path)
            return None
        if member.kind == HARD_LINK:
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

    def _file(self, path: bytes, member: Member) -> str | None:
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

    def _hard_link(self, path: bytes, member: Member) -> str | None:
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
