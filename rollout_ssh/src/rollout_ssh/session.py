"""Rollout's side of a relay: starting it, sandboxes and commands on it, and noticing that it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import time
from collections.abc import Callable
from typing import Any

from rollout.core.errors import EnvironmentLostError, HostLostError, SandboxError, TeardownError
from rollout.core.sandbox.config import EMPTY_CONFIG
from rollout.core.sandbox.diagnosis import TELLING, explain
from rollout_ssh.remote import frames
from rollout_ssh.running import RunningCommand
from rollout_ssh.shipping import program
from rollout_ssh.wire import Pump, Wire

logger = logging.getLogger(__name__)

_PING_SEC = 5.0
_CLOSE_SEC = 30.0
_INSTEAD = "use `mode: host` (the bare machine), or another machine"

OnSandbox = Callable[[dict[str, Any]], None]


class Session:
    """A running relay. `launch` blocks and needs no event loop; the rest belongs to the loop that uses it first."""

    def __init__(self, name: str, wire: Wire, hello: dict[str, Any], rest: bytes, lost_after_sec: float) -> None:
        self.name = name
        self._wire = wire
        self._rest = rest
        self._lost_after_sec = lost_after_sec
        self._splitter = frames.Splitter()
        self._pump: Pump | None = None
        self._numbers = itertools.count(1)
        self._tokens = itertools.count(2)
        self._sandboxes: dict[int, OnSandbox] = {}
        self._running: dict[int, RunningCommand] = {}
        self._gone: dict[int, asyncio.Future[bool]] = {}
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._heard = 0.0
        self._pinging: asyncio.Task[None] | None = None
        self._ending: asyncio.Future[None] | None = None
        self._hello = hello
        self.ended: str | None = None
        """Why the relay is gone."""
        self.lost = False
        """It went without being asked to: the machine is to blame."""
        self.ids: str = hello["ids"]
        self.groups: dict[str, list[str]] = hello["groups"]
        self.shown: list[str] = hello["shown"]
        self.scratch: str = hello["scratch"]
        self.base: str = hello["base"]
        self.cache: str = hello["cache"]
        self.machine: str = hello["machine"]
        self.identity: str = hello["identity"]
        self.folder: str = hello["folder"]
        self.program: str | None = hello["program"]
        self.image: str | None = hello["image"]

    @classmethod
    def launch(cls, name: str, wire: Wire, config: dict[str, Any], lost_after_sec: float) -> Session:
        """Start a relay and one sandbox at the other end of a wire that leads to the loader, to see that the machine lets us.

        Raises:
            SandboxError: it does not; the text says why and what to do.
            OSError: the wire broke.
        """
        what = f"{name} does not allow sandboxes"
        with contextlib.suppress(OSError):  # a program that is not there reads nothing; what it said is read below
            wire.send(program() + frames.message({**config, "tell": TELLING}))
        splitter = frames.Splitter()
        arrived: list[dict[str, Any]] = []
        hello = _next(wire, splitter, arrived, name)
        if "errno" not in hello and "error" in hello:
            raise SandboxError(f"{name}: {hello['error']}")
        tell = hello["files"]
        if "error" in hello:
            raise SandboxError(explain(hello, tell.get, what=what, instead=_INSTEAD))
        session = cls(name, wire, hello, b"", lost_after_sec)
        probe = {**EMPTY_CONFIG, "scratch": session._scratch(1), "name": f"rollout-{config['job']}-probe"}
        wire.send(frames.message({"op": "start", "token": 1, "config": probe}))
        answer = _next(wire, splitter, arrived, name)
        wire.send(frames.message({"op": "stop", "token": 1}))
        gone = _next(wire, splitter, arrived, name)
        if "lost" in gone:
            _next(wire, splitter, arrived, name)
        if "ready" not in answer:
            known = {"error": "a sandbox ended at once", "errno": 0, **answer}
            raise SandboxError(explain(known, tell.get, what=what, instead=_INSTEAD))
        return session

    # --- what environments ask for ---

    def attach(self) -> None:
        """Begin to serve the running event loop."""
        if self._pump is None:
            self._heard = time.monotonic()
            self._pump = Pump(self._wire, self._on_data, self._on_wire_closed, self.name)
            self._pinging = asyncio.ensure_future(self._ping())

    def start_sandbox(self, config: dict[str, Any], on_message: OnSandbox) -> int:
        """Have a sandbox started; `on_message` hears `ready`, `error` or `lost`. Returns its token."""
        token = next(self._tokens)
        self._sandboxes[token] = on_message
        self.send({"op": "start", "token": token, "config": {**EMPTY_CONFIG, **config, "scratch": self._scratch(token)}})
        return token

    async def stop_sandbox(self, token: int) -> None:
        """Kill a sandbox and wait until its processes, files and control groups are gone.

        Raises:
            TeardownError
        """
        self._sandboxes.pop(token, None)
        await self._finish({"op": "stop", "token": token}, token)

    async def remove(self, *paths: str) -> None:
        """Remove folders that may hold files of a sandbox's users.

        Raises:
            TeardownError
        """
        token = next(self._tokens)
        await self._finish({"op": "remove", "token": token, "paths": list(paths)}, token)

    async def file(self, what: str, path: str, **more: Any) -> dict[str, Any]:
        """One request about the machine's own files, see `remote.files`.

        Raises:
            SandboxError: it cannot be done; EnvironmentLostError: the machine is lost.
        """
        self.attach()
        number = next(self._numbers)
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            self.send({"op": "file", "id": number, "what": what, "path": path, **more})
            answer = await future
        finally:
            self._answers.pop(number, None)
        if "error" in answer:
            raise SandboxError(f"{self.name}: {answer['error']}")
        return dict(answer)

    def launch_command(self, running: RunningCommand, token: int, request: dict[str, Any]) -> None:
        """Have a sandbox run a command, whose streams go to and come from `running` from then on."""
        running.begin(next(self._numbers), self._send_frame)
        self._running[running.number] = running
        self.send({"op": "exec", "id": running.number, "token": token, **request})

    async def kill(self, running: RunningCommand, token: int) -> None:
        """Kill everything in the command's session and wait until it is gone. A sandbox that is gone has nothing to kill."""
        if running.number not in self._running:
            return
        if running.killed is None:
            running.killed = asyncio.get_running_loop().create_future()
            self.send({"op": "kill", "token": token, "id": running.number})
        try:
            await asyncio.shield(running.killed)
        except EnvironmentLostError:
            return

    def forget(self, running: RunningCommand, error: Exception) -> None:
        """The sandbox of a command is gone."""
        self._running.pop(running.number, None)
        running.lost(error)

    def send(self, message: dict[str, Any]) -> None:
        """Raises EnvironmentLostError, HostLostError."""
        if self.ended is not None:
            raise self._error()
        self.attach()
        assert self._pump is not None
        self._pump.send(frames.message(message))

    async def aclose(self) -> None:
        """End the relay and what is left on it."""
        if self.ended is None and self._pump is not None:
            try:
                async with asyncio.timeout(_CLOSE_SEC):
                    await self.remove(self.base)
                    self._ending = asyncio.get_running_loop().create_future()
                    self._pump.end()
                    await self._ending
            except (TeardownError, EnvironmentLostError, TimeoutError) as error:
                logger.warning("%s: %s", self.name, error)
        self._end("the job has ended", lost=False)

    # --- how ---

    def _scratch(self, token: int) -> str:
        return f"{self.scratch}/{self.base.rpartition('-')[2]}-{token}"

    def _send_frame(self, data: bytes) -> None:
        if self._pump is not None and self.ended is None:
            self._pump.send(data)

    async def _finish(self, request: dict[str, Any], token: int) -> None:
        gone = self._gone[token] = asyncio.get_running_loop().create_future()
        self.send(request)
        if await asyncio.shield(gone):
            raise TeardownError(f"{self.name}: cannot remove what a sandbox left in {self.scratch}: {self._wire.said()}")

    async def _ping(self) -> None:
        """Tell the relay that we are there, and notice that it is not."""
        while self.ended is None:
            silence = time.monotonic() - self._heard
            if silence > self._lost_after_sec:
                self._lose(f"no answer for {silence:.0f} s")
                return
            # the relay gives up later than we do, so that it never ends what we still wait for
            self.send({"op": "ping", "silence_sec": 2 * self._lost_after_sec})
            await asyncio.sleep(min(_PING_SEC, self._lost_after_sec / 4))

    def _on_data(self, data: bytes) -> None:
        self._heard = time.monotonic()
        try:
            for kind, number, payload in self._splitter.feed(data):
                if kind == frames.MESSAGE:
                    self._on_message(_decoded(payload))
                elif (running := self._running.get(number)) is not None:
                    running.on_frame(kind, payload)
                    if kind == frames.END and running.done.done() and running.killed is None:
                        del self._running[number]
        except ValueError as error:
            self._lose(f"it does not speak our language: {error}")

    def _on_message(self, message: dict[str, Any]) -> None:
        if "exit" in message:
            running = self._running.get(message["exit"])
            if running is not None:
                running.ended(message["code"], message["oom"])
                if running.killed is None and not running.reading:
                    del self._running[running.number]
        elif "killed" in message:
            running = self._running.pop(message["killed"], None)
            if running is not None and running.killed is not None and not running.killed.done():
                running.ended(137, False)
                running.close()
                running.killed.set_result(None)
        elif "file" in message:
            answer = self._answers.get(message["file"])
            if answer is not None and not answer.done():
                answer.set_result(message)
        elif "gone" in message:
            gone = self._gone.pop(message["gone"], None)
            if gone is not None and not gone.done():
                gone.set_result(message.get("failed", False))
        elif "dead" in message:
            self._lose(message["dead"])
        elif "token" in message or "lost" in message:
            heard = self._sandboxes.get(message["token"] if "token" in message else message["lost"])
            if heard is not None:
                heard(message)

    def _on_wire_closed(self, why: str) -> None:
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(None)
        else:
            self._lose(why)

    def _lose(self, why: str) -> None:
        if self.ended is None:
            said = self._wire.said()
            self._end(f"{why} ({said})" if said else why, lost=True)

    def _error(self) -> EnvironmentLostError:
        return HostLostError(f"{self.name} is lost: {self.ended}") if self.lost else EnvironmentLostError(f"{self.ended}")

    def _end(self, why: str, *, lost: bool) -> None:
        if self.ended is not None:
            return
        self.ended, self.lost = why, lost
        error = self._error()
        if self._pump is not None:
            self._pump.close()
        if self._pinging is not None and self._pinging is not asyncio.current_task():
            self._pinging.cancel()
        self._wire.close()
        for heard in list(self._sandboxes.values()):
            heard({"lost": 0, "host": why})
        self._sandboxes.clear()
        for running in list(self._running.values()):
            running.lost(error)
        self._running.clear()
        waiting: list[asyncio.Future[Any]] = [*self._gone.values(), *self._answers.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # seen: nobody may be waiting for it any more
        self._gone.clear()


def _next(wire: Wire, splitter: frames.Splitter, arrived: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The next message, before there is an event loop to serve."""
    while not arrived:
        data = wire.receive()
        if not data:
            raise SandboxError(f"{name}: {wire.said() or 'the program that was sent there ended without a word'}")
        try:
            arrived += [_decoded(payload) for _, _, payload in splitter.feed(data)]
        except ValueError as error:
            raise SandboxError(f"{name}: what its shell prints at the start is in the way: {error}") from error
    return arrived.pop(0)


def _decoded(payload: bytes) -> dict[str, Any]:
    return dict(json.loads(payload))
