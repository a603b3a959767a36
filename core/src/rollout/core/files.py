"""Writing files so that a reader never sees half of one, and so that a crash leaves the old or the new."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollout.core.errors import StoreError

_HINTS = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "the quota is used up",
    errno.EROFS: "the file system is read-only; choose another jobs_dir",
    errno.EACCES: "choose a jobs_dir that you may write to",
    errno.EPERM: "choose a jobs_dir that you may write to",
}


@contextmanager
def storing(path: str | Path) -> Iterator[None]:
    """Turn an OSError into a StoreError that names the path and what to do."""
    try:
        yield
    except OSError as error:
        hint = _HINTS.get(error.errno or 0)
        message = f"cannot write {error.filename or path}: {error.strerror or error}"
        raise StoreError(f"{message}; {hint}, then run the same command again" if hint else message) from error


def write_atomic(path: str | Path, data: bytes) -> None:
    """Replace the file's content in one step. Other processes see the old content or the new, never a part.

    It survives the death of the process; it does not force the disk's own cache.

    Raises:
        StoreError: disk full, read-only, no permission ...
    """
    target = os.fspath(path)
    temporary = f"{target}.tmp{os.getpid()}"
    with storing(target):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError:
            os.unlink(temporary)
            raise
        finally:
            os.close(descriptor)
        os.rename(temporary, target)


def make_folder(path: str | Path) -> None:
    """Make a folder and its parents if they are not there.

    Raises:
        StoreError
    """
    with storing(path):
        os.makedirs(path, exist_ok=True)
