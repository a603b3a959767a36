"""A folder's content: what is in it, whether its links stay inside, and the hash that identifies it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from rollout.core.errors import TaskError

_FORMAT = b"rollout tree 1\n"
_CHUNK_BYTES = 1024 * 1024


class Entry(NamedTuple):
    """One file, link or folder of a tree."""

    path: str
    """Relative to the tree's root, with `/`."""
    kind: Literal["file", "link", "folder", "special"]
    executable: bool
    """For its owner. Links and folders never are."""


def walk(root: str | Path) -> Iterator[Entry]:
    """Everything below `root` except a `.git` at its top, without following links; in no particular order.

    Raises:
        OSError: a folder cannot be read.
    """
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(os.path.join(root, folder)) as entries:
            for entry in entries:
                if entry.name == ".git" and not folder:
                    continue
                path = f"{folder}{entry.name}"
                if entry.is_symlink():
                    yield Entry(path, "link", False)
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(f"{path}/")
                    yield Entry(path, "folder", False)
                elif entry.is_file(follow_symlinks=False):
                    yield Entry(path, "file", bool(entry.stat(follow_symlinks=False).st_mode & 0o100))
                else:
                    yield Entry(path, "special", False)


def link_fault(root: str | Path, path: str) -> str | None:
    """What is wrong with the link at `path` of the tree, or None when it stays inside."""
    link = os.path.join(root, path)
    target = os.readlink(link)
    inside = os.path.realpath(root)
    if not os.path.isabs(target) and os.path.commonpath([inside, os.path.realpath(link)]) == inside:
        return None
    return f"is a link to {target!r}, which is outside the task; put a copy in its place"


def digest_lines(root: str | Path) -> list[bytes]:
    """One line per entry, sorted: path, kind, x bit, and a hash of the content (of a link: its target).

    A folder has a line only when it is empty, so that a checkout and the folder it came from are equal.

    Raises:
        TaskError: something cannot be read, or is no file, folder or link.
    """
    lines: list[bytes] = []
    folders: set[str] = set()
    parents: set[str] = set()
    try:
        for path, kind, executable in walk(root):
            parents.add(path.rpartition("/")[0])
            if kind == "folder":
                folders.add(path)
                continue
            full = os.path.join(root, path)
            if kind == "special":
                raise TaskError(f"{full}: is neither a file, a folder nor a link")
            content = _file_hash(full) if kind == "file" else hashlib.sha256(os.fsencode(os.readlink(full))).digest()
            mark = b"x" if executable else b"-"
            lines.append(b"%b\0%b%b%b" % (os.fsencode(path), kind[0].encode(), mark, content))
    except OSError as error:
        raise TaskError(f"{error.filename or root}: cannot be read: {error.strerror}") from error
    lines += [os.fsencode(folder) + b"\0d" for folder in folders - parents]
    lines.sort()
    return lines


def digest_of(lines: Iterable[bytes]) -> str:
    """One hash over `digest_lines`."""
    total = hashlib.sha256(_FORMAT)
    for line in lines:
        total.update(len(line).to_bytes(4, "big"))
        total.update(line)
    return total.hexdigest()


def tree_digest(root: str | Path) -> str:
    """The hash of everything in `root`: paths, x bits, contents, link targets; neither times nor owners.

    Raises:
        TaskError: something cannot be read.
    """
    return digest_of(digest_lines(root))


def _file_hash(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        chunk = os.read(descriptor, _CHUNK_BYTES)
        total = hashlib.sha256(chunk)
        while chunk:
            chunk = os.read(descriptor, _CHUNK_BYTES)
            total.update(chunk)
        return total.digest()
    finally:
        os.close(descriptor)
