"""The relay as a program of its own, in a container beside a sandbox; told over a socket which rules hold."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from typing import Any

from .relay import DNS_PORT, PROXY_PORT, Relay
from .rules import Rules

CONTROL = "/tmp/rollout-egress.sock"
_WAIT_SEC = 20.0


def sockets(address: str, ports: list[int]) -> tuple[list[socket.socket], socket.socket]:
    """The sockets of a relay at an address: TCP listeners, and the name server's.

    Raises:
        OSError
    """
    listeners = []
    for port in dict.fromkeys([*ports, PROXY_PORT]):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(128)
        listeners.append(listener)
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind((address, DNS_PORT))
    return listeners, names


def main() -> None:
    """Serve. The first argument is JSON: `towards`, an address of the sandbox's network, and the `ports`."""
    asyncio.run(_serve(json.loads(sys.argv[1])))


async def _serve(config: dict[str, Any]) -> None:
    address = _own_address(config["towards"])
    relay = Relay(Rules([]), address)
    await relay.serve(*sockets(address, config["ports"]))

    async def told(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = json.loads(await reader.read())
        await relay.change(Rules(said["hosts"], said["everything"]))
        writer.write(b"done")
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(told, CONTROL) as server:
        os.chmod(CONTROL, 0o600)
        await server.serve_forever()


def tell() -> None:
    """Pass what is on standard input (JSON: `hosts`, `everything`) to the program that serves here, once it does."""
    message = sys.stdin.buffer.read()
    deadline = time.monotonic() + _WAIT_SEC
    with socket.socket(socket.AF_UNIX) as control:
        while True:
            try:
                control.connect(CONTROL)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        control.sendall(message)
        control.shutdown(socket.SHUT_WR)
        if control.recv(16) != b"done":
            sys.exit("the relay did not take the rules")


def _own_address(towards: str) -> str:
    """Which of our addresses is on the network of another."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 1))
        return str(probe.getsockname()[0])
