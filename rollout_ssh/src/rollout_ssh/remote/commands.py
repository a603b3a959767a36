"""The commands of all sandboxes: their pipes, and what each direction may still send."""

from __future__ import annotations

import os
import select
from collections import deque
from typing import Any

from rollout_ssh.remote import frames
from rollout_ssh.remote.loop import Loop
from rollout_ssh.remote.outlet import Outlet
from rollout_ssh.remote.sandboxes import Sandboxes

_CHUNK = 1 << 16
_MAX_DRAIN_READS = 64


class Running:
    """One command: its pipes, and what each direction may still send."""

    def __init__(self, number: int, token: int, live: bool) -> None:
        self.number = number
        self.token = token
        self.live = live
        self.outputs: dict[int, int] = {}
        """Read end of a pipe to the kind of its frames."""
        self.window = frames.WINDOW_BYTES
        self.stdin: int | None = None
        self.pending: deque[bytes] = deque()
        self.closing = False
        self.oom_kills = 0
        self.ended = False


class Commands:
    """Every command that runs, by its number."""

    def __init__(self, loop: Loop, outlet: Outlet, sandboxes: Sandboxes) -> None:
        self.loop = loop
        self.outlet = outlet
        self.sandboxes = sandboxes
        self.running: dict[int, Running] = {}
        self.paused: set[int] | None = None
        """While the outlet is full: the pipes to read again."""
        outlet.on_full = self.pause
        outlet.on_room = self.resume
        sandboxes.on_end_of_command = self.on_end
        sandboxes.on_end = self.end_of_sandbox

    def pause(self) -> None:
        self.paused = set()
        for running in self.running.values():
            for descriptor in running.outputs:
                self.quiet(descriptor)

    def resume(self) -> None:
        waiting, self.paused = self.paused or set(), None
        for running in list(self.running.values()):
            for descriptor in running.outputs:
                if descriptor in waiting:
                    self.listen(running, descriptor)

    def on_frame(self, kind: int, number: int, payload: bytes) -> None:
        running = self.running.get(number)
        if running is None:
            return  # it has ended meanwhile
        if kind == frames.CREDIT:
            running.window += frames.credited(payload)
            for descriptor in running.outputs:
                self.listen(running, descriptor)
        elif kind == frames.STDIN:
            running.pending.append(payload)
            self.feed(running)
        elif kind == frames.END:
            running.closing = True
            self.feed(running)

    def on_end(self, number: int, code: int, error: str | None) -> None:
        running = self.running.get(number)
        if running is not None:
            if error is not None:
                self.outlet.send(frames.pack(frames.STDERR, number, f"rollout: {error}\n".encode()))
            self.finish(running, code)

    def end_of_sandbox(self, token: int) -> None:
        for running in [running for running in self.running.values() if running.token == token]:
            for descriptor in list(running.outputs):
                self.drain(running, descriptor)
            self.drop(running)

    def execute(self, request: dict[str, Any]) -> None:
        number, token = request["id"], request["token"]
        if token not in self.sandboxes:
            return  # its end is on the way to Rollout
        running = self.running[number] = Running(number, token, request["live"])
        running.oom_kills = self.sandboxes.oom_kills(token)
        if request["stdin"]:
            stdin, running.stdin = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(running.stdin, False)
        else:
            stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        ends = []
        for kind in (frames.STDOUT, frames.STDERR):
            read_end, write_end = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(read_end, False)
            running.outputs[read_end] = kind
            ends.append(write_end)
            self.listen(running, read_end)
        wanted = {key: value for key, value in request.items() if key not in ("token", "live", "stdin")}
        self.sandboxes.order(token, wanted, [stdin, *ends])

    def listen(self, running: Running, descriptor: int) -> None:
        if running.window <= 0:
            self.quiet(descriptor)
        elif self.paused is not None:
            self.paused.add(descriptor)
        else:
            self.loop.watch(descriptor, select.EPOLLIN, lambda events: self.on_output(running, descriptor))

    def quiet(self, descriptor: int) -> None:
        if self.paused is not None:
            self.paused.add(descriptor)
        self.loop.forget(descriptor)

    def on_output(self, running: Running, descriptor: int) -> None:
        self.read_output(running, descriptor)
        if running.window <= 0:
            for other in running.outputs:
                self.quiet(other)

    def read_output(self, running: Running, descriptor: int) -> bool:
        """Read once; whether there may be more."""
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        kind = running.outputs[descriptor]
        if not chunk:
            self.close_output(running, descriptor)
            if kind == frames.STDOUT and running.live:
                self.outlet.send(frames.pack(frames.END, running.number))
            if running.ended and not running.outputs:
                self.drop(running)
            return False
        running.window -= len(chunk)
        self.outlet.send(frames.pack(kind, running.number, chunk))
        return True

    def close_output(self, running: Running, descriptor: int) -> None:
        del running.outputs[descriptor]
        self.loop.forget(descriptor)
        os.close(descriptor)

    def drain(self, running: Running, descriptor: int) -> None:
        """Take what a command that has ended left in a pipe, and no more: something else may go on writing for ever."""
        for _ in range(_MAX_DRAIN_READS):
            if not self.read_output(running, descriptor):
                return

    def finish(self, running: Running, code: int) -> None:
        """The main process has ended. What others still print is read by the sandbox's init, and thrown away."""
        if running.ended:
            return
        running.ended = True
        left = []
        for descriptor in list(running.outputs):
            if running.live and running.outputs[descriptor] == frames.STDOUT:
                continue  # read until the last of them closes it
            self.drain(running, descriptor)
            if descriptor in running.outputs:
                del running.outputs[descriptor]
                self.loop.forget(descriptor)
                left.append(descriptor)
        if left:
            self.sandboxes.order(running.token, {"op": "drain"}, left)
        oom = self.sandboxes.oom_kills(running.token) > running.oom_kills
        self.outlet.reply({"exit": running.number, "code": code, "oom": oom})
        if not running.outputs:
            self.drop(running)

    def drop(self, running: Running) -> None:
        self.running.pop(running.number, None)
        for descriptor in list(running.outputs):
            self.close_output(running, descriptor)
        self.close_stdin(running)

    def feed(self, running: Running) -> None:
        """Write to standard input what it takes."""
        taken = 0
        while running.pending and running.stdin is not None:
            chunk = running.pending[0]
            try:
                written = os.write(running.stdin, chunk)
            except BlockingIOError:
                break
            except OSError:
                self.close_stdin(running)
                self.outlet.send(frames.pack(frames.UNREAD, running.number))
                break
            taken += written
            if written == len(chunk):
                running.pending.popleft()
            else:
                running.pending[0] = chunk[written:]
        if taken:
            self.outlet.send(frames.credit(running.number, taken))
        if running.stdin is None:
            running.pending.clear()
        elif running.pending:
            self.loop.watch(running.stdin, select.EPOLLOUT, lambda events: self.feed(running))
        elif running.closing:
            self.close_stdin(running)
        else:
            self.loop.forget(running.stdin)

    def close_stdin(self, running: Running) -> None:
        if running.stdin is not None:
            self.loop.forget(running.stdin)
            os.close(running.stdin)
            running.stdin = None
