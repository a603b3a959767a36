"""Real git repositories for tests, and HTTP servers that serve them: git's own smart protocol, and plain files."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from require import require

IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main", "-c", "commit.gpgSign=false")


def git(directory: Path, *arguments: str) -> str:
    """Run git in a folder and return what it printed."""
    return subprocess.run(
        ["git", *IDENTITY, *arguments], cwd=directory, check=True, capture_output=True, text=True
    ).stdout.strip()


def write_task(folder: Path, instruction: str = "Do it.", **files: str) -> Path:
    """A small valid task. `files` are more of them, with `__` for `/`."""
    texts = {
        "instruction.md": f"{instruction}\n",
        "task.toml": 'version = "1.0"\n',
        "environment/Dockerfile": "FROM scratch\n",
        "solution/solve.sh": "#!/bin/sh\ntrue\n",
        "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
    } | {name.replace("__", "/"): text for name, text in files.items()}
    for name, text in texts.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        if name.endswith(".sh"):
            file.chmod(0o755)
    return folder


class Repository:
    """A repository with a work tree in `path`; commits are what tests say they are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        git(path, "init", "--quiet")
        # What hosting services allow: partial clones.
        git(path, "config", "uploadpack.allowFilter", "true")

    def commit(self, message: str = "change") -> str:
        """Commit everything there is and return the hash."""
        git(self.path, "add", "--all")
        git(self.path, "commit", "--quiet", "--allow-empty", "-m", message)
        git(self.path, "update-server-info")
        return git(self.path, "rev-parse", "HEAD")


class _GitHandler(BaseHTTPRequestHandler):
    """Bridges to `git http-backend`, as a web server's CGI module would."""

    protocol_version = "HTTP/1.1"

    def __init__(self, root: Path, requests: list[str], newest_protocol: bool, *arguments: Any) -> None:
        self._root = root
        self._requests = requests
        self._newest_protocol = newest_protocol
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._serve(body)

    def _serve(self, body: bytes) -> None:
        self._requests.append(self.path)
        path, _, query = self.path.partition("?")
        environ = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self._root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }
        if self._newest_protocol:
            environ["GIT_PROTOCOL"] = self.headers.get("Git-Protocol", "")
        answer = subprocess.run(["git", "http-backend"], input=body, env=environ, capture_output=True, check=False).stdout
        head, _, content = answer.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _FileHandler(SimpleHTTPRequestHandler):
    """Plain files: git's dumb protocol."""

    def __init__(self, requests: list[str], *arguments: Any, **keywords: Any) -> None:
        self._requests = requests
        super().__init__(*arguments, **keywords)

    def do_GET(self) -> None:
        self._requests.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server:
    """A running server: its address, and the paths that were asked for."""

    def __init__(self, url: str, requests: list[str]) -> None:
        self.url = url
        self.requests = requests


@contextmanager
def served(handler: Any, requests: list[str]) -> Iterator[Server]:
    """Run an HTTP server with `handler` in a thread."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield Server(f"http://127.0.0.1:{server.server_port}", requests)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def smart_http(root: Path, *, newest_protocol: bool = True) -> Iterator[Server]:
    """Serve the repositories below `root` with git's HTTP protocol; without `newest_protocol` as servers of old did."""
    require("git-http")
    requests: list[str] = []
    with served(partial(_GitHandler, root, requests, newest_protocol), requests) as server:
        yield server


@contextmanager
def plain_http(root: Path) -> Iterator[Server]:
    """Serve the files below `root`."""
    requests: list[str] = []
    with served(partial(_FileHandler, requests, directory=str(root)), requests) as server:
        yield server
