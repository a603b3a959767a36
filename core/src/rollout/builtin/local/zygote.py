"""Rollout's side of the zygote: starting it, and asking it for sandboxes."""

from __future__ import annotations

import asyncio
import itertools
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from rollout.core.aio import Blocking
from rollout.core.errors import SandboxError, StartError, TeardownError
from rollout.core.sandbox.config import EMPTY_CONFIG
from rollout.core.sandbox.diagnosis import explain
from rollout.core.sandbox.inside import channel
from rollout.core.sandbox.launch import launch_inside
from rollout.core.sandbox.link import Link

_START_SEC = 60.0
_EXIT_SEC = 10.0


class Zygote:
    """A running zygote. `launch` blocks and needs no event loop; the rest belongs to the loop that uses it first."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, hello: dict[str, Any], log: Path) -> None:
        self._process = process
        self._control = control
        self._log = log
        self._link: Link | None = None
        self._tokens = itertools.count(1)
        self._gone: dict[int, asyncio.Future[bool]] = {}
        self.ids: str = hello["ids"]
        """Which user ids a sandbox has: `all`, `ranges`, `one`."""
        self.groups: dict[str, list[str]] = hello["groups"]
        """Controller to generation and parent folder, for the limits that can be set."""
        self.shown: list[str] = hello["shown"]
        self.scratch = Path(hello["scratch"])
        self.base = Path(hello["base"])
        self.cache = Path(hello["cache"])

    @classmethod
    def launch(cls, config: dict[str, Any], log: Path) -> Zygote:
        """Start a zygote and one sandbox, to see that this machine lets us.

        Raises:
            SandboxError: it does not; the text says why and what to do.
        """
        if not sys.platform.startswith("linux"):
            raise SandboxError("type: local needs Linux namespaces; on this system use `type: docker`")
        if not sys.executable:
            raise SandboxError(
                "type: local starts a second Python, and this one does not know its own program (sys.executable is empty)"
            )
        log.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_START_SEC)
        process = None
        try:
            with theirs, log.open("ab") as errors:
                process = launch_inside("zygote", theirs, errors)
            channel.send(ours, config)
            received = channel.receive(ours)
            answer = received[0] if received else {"error": _last_line(log), "errno": 0}
            if "error" in answer:
                raise SandboxError(explain(answer))
            zygote = cls(process, ours, answer, log)
            zygote._try_one()
        except OSError as error:
            _abandon(process, ours)
            raise SandboxError(explain({"error": str(error), "errno": error.errno})) from error
        except BaseException:
            _abandon(process, ours)
            raise
        return zygote

    def _try_one(self) -> None:
        """Start and stop a sandbox without the help of an event loop."""
        token = next(self._tokens)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            ours.settimeout(_START_SEC)
            scratch = str(self.scratch / f"{self._process.pid}-{token}")
            config = {**EMPTY_CONFIG, "scratch": scratch, "name": f"rollout-{self._process.pid}-{token}"}
            channel.send(self._control, {"op": "start", "token": token, "config": config}, [theirs.fileno()])
            theirs.close()
            received = channel.receive(ours)
        channel.send(self._control, {"op": "stop", "token": token})
        channel.receive(self._control)
        answer = received[0] if received else {"error": _last_line(self._log), "errno": 0}
        if "error" in answer:
            raise SandboxError(explain(answer))

    @property
    def alive(self) -> bool:
        return (self._link is None or not self._link.closed) and self._process.poll() is None

    def start(self, config: dict[str, Any]) -> tuple[int, socket.socket]:
        """Have a sandbox started. Returns its token and its control socket, on which it will say `ready` or `error`."""
        token = next(self._tokens)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        scratch = str(self.scratch / f"{self._process.pid}-{token}")
        config = {**EMPTY_CONFIG, **config, "scratch": scratch}
        self._attached().send({"op": "start", "token": token, "config": config}, [theirs.detach()])
        return token, ours

    async def stop(self, token: int) -> None:
        """Kill a sandbox and wait until its processes, files and control groups are gone.

        Raises:
            TeardownError
        """
        await self._finish({"op": "stop", "token": token}, token)

    async def remove(self, *paths: Path) -> None:
        """Remove folders that may hold files of a sandbox's users.

        Raises:
            TeardownError
        """
        token = next(self._tokens)
        await self._finish({"op": "remove", "token": token, "paths": [str(path) for path in paths]}, token)

    def leftovers(self) -> list[Path]:
        """Folders that a zygote which died has left behind."""
        return [self.base, *self.scratch.glob(f"{self._process.pid}-*")]

    async def aclose(self, blocking: Blocking) -> None:
        """Remove what the zygote made for itself, and end it and every sandbox that is left."""
        if self.alive:
            await self.remove(self.base)
        if self._link is not None:
            self._link.close()
        self._control.close()
        await blocking(self._wait)

    def _wait(self) -> None:
        try:
            self._process.wait(_EXIT_SEC)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _attached(self) -> Link:
        if self._link is None:
            self._link = Link(self._control, self._on_message, self._on_close)
        return self._link

    async def _finish(self, request: dict[str, Any], token: int) -> None:
        link = self._attached()
        if link.closed:
            raise TeardownError("the process that makes sandboxes has ended")
        gone = self._gone[token] = asyncio.get_running_loop().create_future()
        link.send(request)
        if await gone:
            raise TeardownError(f"cannot remove what a sandbox left in {self.scratch}: {_last_line(self._log)}")

    def _on_message(self, message: dict[str, Any]) -> None:
        future = self._gone.pop(message["gone"], None)
        if future is not None and not future.done():
            future.set_result(message.get("failed", False))

    def _on_close(self) -> None:
        for future in self._gone.values():
            if not future.done():
                future.set_exception(TeardownError("the process that makes sandboxes has ended"))
        self._gone.clear()


def _abandon(process: subprocess.Popen[bytes] | None, control: socket.socket) -> None:
    control.close()
    if process is not None:
        process.kill()
        process.wait()


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "it ended without a word"


def start_error(answer: dict[str, Any]) -> StartError:
    return StartError(explain(answer))
