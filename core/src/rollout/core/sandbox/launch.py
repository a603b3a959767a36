"""Starting what runs outside Rollout's own process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO

from rollout.core.sandbox import inside

_PACKAGE = Path(inside.__path__[0])


def launch_inside(module: str, control: socket.socket, errors: IO[bytes] | int) -> subprocess.Popen[bytes]:
    """Run `main` of a module of `inside` in a Python of its own; it serves the other end of `control`."""
    start = f"import sys; sys.path.insert(0, {str(_PACKAGE.parent)!r}); from {_PACKAGE.name}.{module} import main; main()"
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-X", "utf8", "-c", start, str(control.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        pass_fds=[control.fileno()],
        start_new_session=True,  # what is typed at the terminal is Rollout's to handle
        # nothing of the host's environment; an interpreter that was built so may need the last one to start
        env={name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
        cwd="/",
    )
