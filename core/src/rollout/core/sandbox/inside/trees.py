"""Removing folders that somebody else has filled."""

from __future__ import annotations

import os
import stat
import time

_REMOVE_SEC = 10.0


def remove_tree(path: str) -> None:
    """Remove a folder whatever its modes; what vanishes meanwhile is fine.

    Raises:
        OSError: something could not be removed for ten seconds.
    """
    deadline = time.monotonic() + _REMOVE_SEC
    while True:
        try:
            _remove_tree(path)
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _remove_tree(path: str) -> None:
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    try:
        entries = list(os.scandir(path))
        if not os.access(path, os.W_OK):
            raise PermissionError
    except PermissionError:
        os.chmod(path, 0o700)
        entries = list(os.scandir(path))
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                _remove_tree(entry.path)
            else:
                os.unlink(entry.path)
        except FileNotFoundError:
            continue
    os.rmdir(path)
