"""`ssh://`: one ssh process that forwards the socket of a remote engine to a local one.

A forwarded socket costs no process per call and does not count against the server's MaxSessions, both of which
`docker system dial-stdio` does: 20 calls took 0.18 s through it, 4.9 s by a dial-stdio each over one shared connection.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

_START_SEC = 60.0
_CONNECT_SEC = 20
_PAUSE_SEC = 5.0
_OPTIONS = {
    "BatchMode": "yes",  # nobody is there to answer a question
    "ConnectTimeout": str(_CONNECT_SEC),
    "ControlMaster": "no",
    "ControlPath": "none",  # a forwarding through somebody else's connection would end with it
    "ExitOnForwardFailure": "yes",
    "RemoteCommand": "none",
    "ServerAliveInterval": "15",
    "ServerAliveCountMax": "3",
    "StreamLocalBindMask": "0177",
    "StreamLocalBindUnlink": "yes",
}
_FIND = """
r=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}
for s in "${DOCKER_HOST#unix://}" "$r/docker.sock" /var/run/docker.sock "$r/podman/podman.sock" /run/podman/podman.sock; do
    if [ -S "$s" ] && [ -w "$s" ]; then echo "$s"; exit 0; fi
done
if [ -S /var/run/docker.sock ]; then echo "the user $(id -un) there may not use /var/run/docker.sock (group docker)" >&2
else echo "no engine has a socket there" >&2; fi
exit 1
"""
_HOLD = "echo ready; exec cat > /dev/null"
"""Ends with our end of its standard input, even when we are killed: no ssh is left behind."""
_OTHER_KEY = "The host shows another key than the one that is known."
_NO_KEY = "Its key is not known: connect once by hand and accept it."
_NO_LOGIN = "It needs a key without a passphrase, or an agent that holds one."


class Tunnel:
    """A way to the engine at `ssh://[user@]host[:port][/path/of/socket]`. Its methods block, and threads may share it."""

    def __init__(self, url: str, folder: Path) -> None:
        """`folder`: on this machine, ours alone; holds the socket.

        Raises:
            ValueError: the address cannot be understood.
        """
        parts = urlsplit(url)
        if parts.scheme != "ssh" or not parts.hostname or parts.hostname.startswith("-") or parts.password or parts.query:
            raise ValueError(f"{url!r} is not ssh://[user@]host[:port][/path]")
        self.socket = folder / "engine.sock"
        self._said = folder / "ssh.log"
        self._destination = [
            *(["-p", str(parts.port)] if parts.port else []),
            *(["-l", unquote(parts.username)] if parts.username else []),
            "--",
            parts.netloc.rpartition("@")[2].partition(":")[0] if ":" not in parts.hostname else parts.hostname,
        ]
        self._remote = parts.path if parts.path not in ("", "/") else None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._failed: tuple[float, str] | None = None

    def open(self) -> None:
        """Make the connection, or make it again if it broke. One that just failed is not tried at once again.

        Raises:
            OSError: what ssh says.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            if self._failed is not None and time.monotonic() - self._failed[0] < _PAUSE_SEC:
                raise ConnectionError(self._failed[1])
            try:
                self._open()
            except OSError as error:
                self._failed = time.monotonic(), str(error)
                raise
            self._failed = None

    def close(self) -> None:
        with self._lock:
            self._end()

    def _open(self) -> None:
        self._end()
        if shutil.which("ssh") is None:
            raise ConnectionError("the ssh command is not installed")
        if self._remote is None:
            self._remote = self._run(_FIND)
        forward = ["-L", f"{self.socket}:{self._remote}"]
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                self._command(_HOLD, *forward),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,  # Ctrl-C at the terminal is not meant for it: containers are still to be removed
            )
        try:
            self._await_ready(self._process)
        except OSError:
            self._end()
            raise

    def _command(self, script: str, *forward: str) -> list[str]:
        options = [word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}")]
        return ["ssh", "-T", *options, *forward, *self._destination, f"sh -c {shlex.quote(script)}"]

    def _run(self, script: str) -> str:
        try:
            done = subprocess.run(
                self._command(script),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_START_SEC,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"ssh did not get there within {_START_SEC:g} s") from error
        if done.returncode != 0:
            raise ConnectionError(_advice(done.stderr))
        return done.stdout.strip().splitlines()[-1]

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        deadline = time.monotonic() + _START_SEC
        heard = b""
        while b"ready" not in heard:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise TimeoutError(f"ssh did not get there within {_START_SEC:g} s")
            chunk = os.read(process.stdout.fileno(), 4096)
            if not chunk:
                process.wait()
                raise ConnectionError(_advice(self._said.read_text("utf-8", "replace")))
            heard += chunk

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()


def _advice(said: str) -> str:
    """The last thing that ssh said, and what to do about it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1] if lines else "ssh ended without a word"
    if "Host key verification failed" in last:
        changed = any("IDENTIFICATION HAS CHANGED" in line for line in lines)
        return f"{last} {_OTHER_KEY if changed else _NO_KEY}"
    if "Permission denied" in last:
        return f"{last} {_NO_LOGIN}"
    return last
