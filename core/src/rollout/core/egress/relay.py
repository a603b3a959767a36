"""The relay: a name server, an HTTP proxy, and ports that pass on whatever is for an allowed name."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

from .hello import MAX_HEAD_BYTES, answer, host_of, name_asked, refusal
from .rules import Rules

PROXY_PORT = 3128
DNS_PORT = 53

_CHUNK = 1 << 16
_CONNECT_SEC = 30.0
_GREETING_SEC = 60.0
_TIMEOUT_SEC = 5.0
_DROPPED = ("connection", "proxy-connection", "proxy-authorization", "keep-alive")


class Relay:
    """Serves the sockets of one sandbox. Everything it connects to, it looks up itself."""

    def __init__(self, rules: Rules, address: str, *, only_way: bool = False) -> None:
        """`address`: where its own ports are, as the sandbox sees it. `only_way`: also when everything is allowed nothing but the
        relay leads out, so that every name has to stand for it."""
        self._rules = rules
        self._address = ipaddress.IPv4Address(address).packed
        self._only_way = only_way
        self._servers: list[asyncio.AbstractServer] = []
        self._names: asyncio.DatagramTransport | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def serve(self, listeners: Sequence[socket.socket], names: socket.socket) -> None:
        """Start to serve TCP sockets that listen, and the name server's UDP socket; takes them over."""
        for listener in listeners:
            listener.setblocking(False)
            accepted = partial(self._accepted, listener.getsockname()[1])
            self._servers.append(await asyncio.start_server(accepted, sock=listener, limit=MAX_HEAD_BYTES))
        names.setblocking(False)
        loop = asyncio.get_running_loop()
        self._names, _ = await loop.create_datagram_endpoint(lambda: _NameServer(self._stands_for), sock=names)

    async def change(self, rules: Rules) -> None:
        """Follow other rules from now on; what is open is cut."""
        self._rules = rules
        await self._cut()

    async def aclose(self) -> None:
        for server in self._servers:
            server.close()
        if self._names is not None:
            self._names.close()
        await self._cut()

    def _stands_for(self, name: str) -> bytes | None:
        """The address that a name has in the sandbox; an empty one for the name's own, None for none."""
        if self._rules.everything and not self._only_way:
            return b""
        return self._address if self._rules.knows(name) else None

    async def _cut(self) -> None:
        tasks = [task for task in self._open if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accepted(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.TimeoutError, ValueError, EOFError, asyncio.LimitOverrunError):
                if port == PROXY_PORT:
                    await self._proxy(reader, writer)
                else:
                    await self._by_name(reader, writer, port)
        except asyncio.CancelledError:
            pass  # cut off; a task of a server has nobody to tell
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _by_name(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        """A connection to a name that the name server gave our address for."""
        host, head = self._rules.sole(port), b""
        while host is None:
            chunk = await asyncio.wait_for(reader.read(_CHUNK), _GREETING_SEC)
            if not chunk:
                return
            head += chunk
            host = host_of(head)
        if self._rules.allows(host, port):
            await self._pass_on(reader, writer, host, port, head)

    async def _proxy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client that knows of the proxy: CONNECT, or a request for `http://...`."""
        lines = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _GREETING_SEC)).decode("latin-1").split("\r\n")
        method, target, version = lines[0].split(" ", 2)
        tunnel = method == "CONNECT"
        url = urlsplit(f"//{target}" if tunnel else target)
        host, port = url.hostname or "", url.port or (443 if tunnel else 80)
        if not tunnel and url.scheme != "http":
            await _say(writer, 400, "Bad Request", "this proxy takes CONNECT, and requests for http:// addresses")
        elif not self._rules.allows(host, port):
            await _say(writer, 403, "Forbidden", f"{host}:{port} is not among the task's allowed_hosts")
        elif tunnel:
            await self._pass_on(reader, writer, host, port, b"", greeting=b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            kept = [line for line in lines[1:-2] if line.partition(":")[0].strip().lower() not in _DROPPED]
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
            head = "\r\n".join([f"{method} {path} {version}", *kept, "Connection: close", "", ""])
            await self._pass_on(reader, writer, host, port, head.encode("latin-1"), greeting=b"")

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        host: str,
        port: int,
        head: bytes,
        greeting: bytes | None = None,
    ) -> None:
        try:
            there_reader, there = await asyncio.wait_for(self._connect(host, port), _CONNECT_SEC)
        except (TimeoutError, OSError) as error:
            if greeting is not None:
                await _say(writer, 502, "Bad Gateway", f"{host}:{port} cannot be reached: {error or 'it does not answer'}")
            return
        try:
            writer.write(greeting or b"")
            there.write(head)
            ways = [asyncio.ensure_future(_copy(reader, there)), asyncio.ensure_future(_copy(there_reader, writer))]
            try:
                await asyncio.gather(*ways)
            finally:
                for way in ways:
                    way.cancel()
        finally:
            there.transport.abort()

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        trusted = self._rules.trusts(host, port) or self._rules.allows(str(found[0][4][0]), port)
        error: OSError = PermissionError(f"{host} is an address of this machine, which only a host listed as it is may be")
        for address in dict.fromkeys(str(item[4][0]) for item in found):
            if not trusted and _is_near(address):
                continue
            try:
                return await asyncio.open_connection(address, port)
            except OSError as failed:
                error = failed
        raise error


class _NameServer(asyncio.DatagramProtocol):
    """Answers with the relay's own address for every name that is allowed, and does not ask anybody about the others."""

    def __init__(self, stands_for: Callable[[str], bytes | None]) -> None:
        self._stands_for = stands_for
        self._transport: asyncio.DatagramTransport | None = None
        self._asking: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        assert self._transport is not None
        asked = name_asked(data)
        if asked is None:
            self._transport.sendto(refusal(data), addr)
            return
        name, kind, end = asked
        address = self._stands_for(name)
        if address == b"":
            task = asyncio.ensure_future(self._ask(data, addr))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        else:
            self._transport.sendto(answer(data, end, kind, address), addr)

    async def _ask(self, query: bytes, addr: tuple[Any, ...]) -> None:
        """Pass a question on as it is to this machine's own name server."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.setblocking(False)
            try:
                asking.connect((_name_server(), DNS_PORT))
                await loop.sock_sendall(asking, query)
                said = await asyncio.wait_for(loop.sock_recv(asking, _CHUNK), _TIMEOUT_SEC)
            except (TimeoutError, OSError):
                said = refusal(query)
        assert self._transport is not None
        self._transport.sendto(said, addr)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


async def _say(writer: asyncio.StreamWriter, status: int, reason: str, text: str) -> None:
    body = f"rollout: {text}\n".encode()
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    writer.write_eof()
    await writer.drain()
    await asyncio.sleep(0)
    with contextlib.suppress(OSError):
        writer.close()
        await writer.wait_closed()


def _is_near(address: str) -> bool:
    """Whether an address means the machine itself, or what only its own network knows."""
    found = ipaddress.ip_address(address.partition("%")[0])
    found = getattr(found, "ipv4_mapped", None) or found
    return found.is_loopback or found.is_link_local or found.is_unspecified or found.is_multicast


def _name_server() -> str:
    with open("/etc/resolv.conf", encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if len(words) > 1 and words[0] == "nameserver" and ":" not in words[1]:
                return words[1]
    raise OSError("/etc/resolv.conf names no server")
