"""HTTP/1.1 to the engine over one asyncio connection: small calls, streamed answers, and streams that are taken over.

The engine's command streams are HTTP connections that turn into raw ones, which no HTTP library of the event loop offers; a
thread per running command is what the alternative costs.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

from rollout_docker.tls import TlsStream

_CHUNK = 256 * 1024
_MAX_LINE_BYTES = 64 * 1024
_QUIET_SEC = 15
_UNANSWERED = 4


class ProtocolError(OSError):
    """The other side does not speak HTTP, or hung up in the middle of an answer."""


class Address(NamedTuple):
    """Where an engine listens: a socket's path, or a host and a port."""

    path: str | None
    host: str = "localhost"
    port: int = 2375
    tls: ssl.SSLContext | None = None

    @classmethod
    def parse(cls, url: str, tls: ssl.SSLContext | None = None) -> Address:
        """Raises ValueError for what is neither `unix:///path` nor `tcp://host:port`."""
        parts = urlsplit(url)
        if parts.scheme == "unix" and parts.path:
            return cls(parts.netloc + parts.path)
        if parts.scheme in ("tcp", "http") and parts.hostname:
            return cls(None, parts.hostname, parts.port or (2375 if tls is None else 2376), tls)
        raise ValueError(f"{url!r} is neither unix:///path nor tcp://host:port")


def probe(address: Address, timeout_sec: float) -> None:
    """Connect and hang up. Raises OSError."""
    if address.path is None:
        socket.create_connection((address.host, address.port), timeout_sec).close()
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix:
        unix.settimeout(timeout_sec)
        unix.connect(address.path)


async def _open_tls(address: Address, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_CHUNK)
    inner = asyncio.StreamReaderProtocol(reader)
    stream = TlsStream(context, address.host, inner)
    transport, _ = await loop.create_connection(lambda: stream, address.host, address.port)
    try:
        _keep_alive(transport.get_extra_info("socket"))
        await stream.ready
    except BaseException:
        transport.abort()
        raise
    return reader, asyncio.StreamWriter(stream, inner, reader, loop)


def _keep_alive(connection: socket.socket) -> None:
    """Let the kernel find out that the other machine is gone while nothing is said for hours."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", _QUIET_SEC), ("TCP_KEEPINTVL", _QUIET_SEC), ("TCP_KEEPCNT", _UNANSWERED)):
        if hasattr(socket, name):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Response(NamedTuple):
    status: int
    headers: dict[str, str]


class Connection:
    """One connection; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, address: Address) -> Connection:
        """Raises OSError."""
        if address.path is not None:
            return cls(*await asyncio.open_unix_connection(address.path, limit=_CHUNK))
        if address.tls is not None:
            return cls(*await _open_tls(address, address.tls))
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=_CHUNK)
        _keep_alive(writer.get_extra_info("socket"))
        return cls(reader, writer)

    def close(self) -> None:
        self.writer.transport.abort()  # what was not sent yet, nobody wants any more

    async def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, file: IO[bytes] | None = None
    ) -> Response:
        """Send a request (its body from `file` when one is given) and read the answer's head."""
        size = len(body)
        if file is not None:
            size = file.seek(0, 2)
            file.seek(0)
        fields = {"Host": "docker", "Content-Length": str(size), "Content-Type": "application/json", **(headers or {})}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items()) + "\r\n"
        self.writer.write(head.encode() + body)
        while file is not None and (chunk := file.read(_CHUNK)):
            self.writer.write(chunk)
            await self.writer.drain()
        await self.writer.drain()
        return await self._head()

    async def _head(self) -> Response:
        status = await self._line()
        parts = status.split(b" ", 2)
        if not status.startswith(b"HTTP/1.") or len(parts) < 2 or not parts[1].isdigit():
            raise ProtocolError(f"no HTTP answer: {status[:100]!r}")
        headers: dict[str, str] = {}
        while line := await self._line():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
            if len(headers) > 200:
                raise ProtocolError("the answer has too many headers")
        return Response(int(parts[1]), headers)

    async def chunks(self, response: Response) -> AsyncIterator[bytes]:
        """The answer's body as it comes."""
        if response.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := self._size(await self._line()):
                while size:
                    data = await self._read(size)
                    size -= len(data)
                    yield data
                await self._line()
            await self._line()
        elif "content-length" in response.headers:
            left = int(response.headers["content-length"])
            while left:
                data = await self._read(left)
                left -= len(data)
                yield data
        elif response.status not in (204, 304):
            while data := await self.reader.read(_CHUNK):
                yield data

    async def json(self, response: Response) -> Any:
        """The whole body; None when it is empty. What is no JSON is given as `{"message": text}`."""
        body = b"".join([chunk async for chunk in self.chunks(response)])
        try:
            return json.loads(body) if body.strip() else None
        except ValueError:
            return {"message": body.decode("utf-8", "replace").strip()}

    async def json_lines(self, response: Response) -> AsyncIterator[Any]:
        """A stream of JSON documents, one per line."""
        rest = b""
        async for chunk in self.chunks(response):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.strip():
                    yield json.loads(line)
        if rest.strip():
            yield json.loads(rest)

    async def _line(self) -> bytes:
        try:
            line = await self.reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            raise ProtocolError("the engine hung up") from error
        except asyncio.LimitOverrunError as error:
            raise ProtocolError("the answer has an endless line") from error
        if len(line) > _MAX_LINE_BYTES:
            raise ProtocolError("the answer has an endless line")
        return line.rstrip(b"\r\n")

    async def _read(self, size: int) -> bytes:
        data = await self.reader.read(min(size, _CHUNK))
        if not data:
            raise ProtocolError("the engine hung up in the middle of an answer")
        return data

    @staticmethod
    def _size(line: bytes) -> int:
        digits = line.split(b";", 1)[0].strip()
        try:
            return int(digits, 16)
        except ValueError as error:
            raise ProtocolError(f"a damaged chunk: {line[:40]!r}") from error
