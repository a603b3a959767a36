"""An HTTP proxy for tests: machines that reach nothing but this one get at package indexes through it (CONNECT alone)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress


@asynccontextmanager
async def connect_proxy(host: str) -> AsyncIterator[str]:
    """The address of a proxy that listens at `host`, while the context lasts."""
    tunnels: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tunnels.add(task)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await _tunnel(reader, writer)
        tunnels.discard(task)
        writer.close()

    server = await asyncio.start_server(serve, host, 0)
    try:
        yield f"http://{host}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tunnels):
            task.cancel()
        await asyncio.gather(*tunnels, return_exceptions=True)


async def _tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    method, target, _ = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode().split()
    if method != "CONNECT":
        writer.write(b"HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\n\r\n")
        return
    host, _, port = target.rpartition(":")
    async with AsyncExitStack() as stack:
        there, back = await asyncio.open_connection(host, int(port))
        stack.callback(back.close)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(reader, back))
            group.create_task(_copy(there, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()
