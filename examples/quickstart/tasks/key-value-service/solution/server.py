"""A key-value store: a file per key in /app/data, written beside its place and renamed."""

import json
import os
import re
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

DATA = Path("/app/data")
NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
lock = threading.Lock()


def file_of(name):
    return DATA / f"={name}"  # a prefix, so that `.` and `..` are names like any other


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=b""):
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status != 204:
            self.wfile.write(body)

    def key(self):
        """The file of the key in the path, or None after an answer was sent."""
        path = self.path.split("?", 1)[0]
        if not path.startswith("/keys/"):
            self.answer(404)
        elif not NAME.fullmatch(path[len("/keys/") :]):
            self.answer(400)
        else:
            return file_of(path[len("/keys/") :])
        return None

    def do_GET(self):
        if self.path == "/health":
            return self.answer(200, b"ok")
        if self.path == "/keys":
            return self.answer(200, json.dumps(sorted(path.name[1:] for path in DATA.glob("=*"))).encode())
        file = self.key()
        if file is not None:
            try:
                self.answer(200, file.read_bytes())
            except FileNotFoundError:
                self.answer(404)

    def do_PUT(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        file = self.key()
        if file is not None:
            handle, scratch = tempfile.mkstemp(dir=DATA)
            with os.fdopen(handle, "wb") as output:
                output.write(body)
            with lock:
                is_new = not file.exists()
                os.replace(scratch, file)
            self.answer(201 if is_new else 204)

    def do_DELETE(self):
        file = self.key()
        if file is not None:
            try:
                file.unlink()
                self.answer(204)
            except FileNotFoundError:
                self.answer(404)


class Server(ThreadingHTTPServer):
    request_queue_size = 128


DATA.mkdir(exist_ok=True)
Server(("127.0.0.1", 8080), Handler).serve_forever()
