"""The process on the other machine: it starts a zygote there, and carries all commands of all sandboxes over one channel.

    Rollout ══ ssh channel ══ relay (standard input and output)
                                ├─ zygote, which makes sandboxes
                                ├─ keepers, one for each container of the machine's own engine
                                └─ one control socket per sandbox, pipes per command

It ends when its standard input ends, or when Rollout has been silent for too long (a machine that is cut off hears of nothing);
the zygote then ends every sandbox and removes what they wrote.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rollout.core.sandbox.inside import cgroups, channel, zygote
from rollout_ssh.remote import container, files, frames

_CHUNK = 1 << 16
_MAX_DRAIN_READS = 64
_PAUSE_BYTES = 2 << 20
_RESUME_BYTES = 256 << 10
_EXIT_SEC = 30.0


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


class Sandbox:
    def __init__(self, control: socket.socket, oom_file: str | None) -> None:
        self.control = control
        self.oom_file = oom_file
        self.waiting: deque[tuple[Any, list[int]]] = deque()


class Keeper:
    """The process that keeps a container, and what is to be removed when it has ended."""

    def __init__(self, pid: int, left: dict[str, Any]) -> None:
        self.pid = pid
        self.descriptor: int | None = os.pidfd_open(pid)
        self.left = left
        self.unwanted = False


class Relay:
    """Single-threaded; waits in one place, for everything at once."""

    def __init__(self, zygote_control: socket.socket, hello: dict[str, Any], rest: bytes) -> None:
        self.poll = select.epoll()
        self.handlers: dict[int, Callable[[int], None]] = {}
        self.splitter = frames.Splitter()
        self.groups: dict[str, list[str]] = hello["groups"]
        self.out: deque[bytes] = deque()
        self.out_bytes = 0
        self.paused: set[int] | None = None
        self.sandboxes: dict[int, Sandbox] = {}
        self.keepers: dict[int, Keeper] = {}
        self.running: dict[int, Running] = {}
        self.locks: dict[str, int] = {}
        self.open = True
        self.silence_sec: float | None = None
        self.heard = time.monotonic()
        self.zygote = zygote_control
        self.early = rest
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        self.zygote.setblocking(False)
        self.watch(0, select.EPOLLIN, self.on_stdin)
        self.watch(self.zygote.fileno(), select.EPOLLIN, self.on_zygote)

    def serve(self) -> None:
        self.take(self.early)
        while self.open:
            if self.silence_sec is not None and time.monotonic() - self.heard > self.silence_sec:
                return
            for descriptor, events in self.poll.poll(None if self.silence_sec is None else 1.0):
                handler = self.handlers.get(descriptor)
                if handler is not None:
                    handler(events)

    def watch(self, descriptor: int, events: int, handler: Callable[[int], None]) -> None:
        if descriptor in self.handlers:
            self.poll.modify(descriptor, events)
        else:
            self.poll.register(descriptor, events)
        self.handlers[descriptor] = handler

    def forget(self, descriptor: int) -> None:
        if self.handlers.pop(descriptor, None) is not None:
            self.poll.unregister(descriptor)

    # --- the channel to Rollout ---

    def send(self, data: bytes) -> None:
        self.out.append(data)
        self.out_bytes += len(data)
        if len(self.out) == 1:
            self.flush(0)
        if self.out_bytes > _PAUSE_BYTES and self.paused is None:
            self.paused = set()
            for running in self.running.values():
                for descriptor in running.outputs:
                    self.quiet(descriptor)

    def reply(self, content: Any) -> None:
        self.send(frames.message(content))

    def flush(self, events: int) -> None:
        while self.out:
            data = self.out[0] if len(self.out) == 1 else b"".join(self.out)
            try:
                written = os.write(1, data)
            except BlockingIOError:
                written = 0
            except OSError:
                self.open = False
                return
            self.out_bytes -= written
            self.out.clear()
            if written < len(data):
                self.out.append(data[written:])
                self.watch(1, select.EPOLLOUT, self.flush)
                break
        else:
            self.forget(1)
        if self.paused is not None and self.out_bytes < _RESUME_BYTES:
            waiting, self.paused = self.paused, None
            for running in list(self.running.values()):
                for descriptor in running.outputs:
                    if descriptor in waiting:
                        self.listen(running, descriptor)

    def on_stdin(self, events: int) -> None:
        try:
            data = os.read(0, 4 * _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.open = False
            return
        self.heard = time.monotonic()
        self.take(data)

    def take(self, data: bytes) -> None:
        for kind, number, payload in self.splitter.feed(data):
            if kind == frames.MESSAGE:
                self.handle(json.loads(payload))
                continue
            running = self.running.get(number)
            if running is None:
                continue  # it has ended meanwhile
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

    def handle(self, request: dict[str, Any]) -> None:
        op = request["op"]
        if op == "exec":
            self.execute(request)
        elif op == "kill":
            if request["token"] in self.sandboxes:
                self.order(request["token"], {"op": "kill", "id": request["id"]}, [])
        elif op == "start":
            self.start(request["token"], request["config"])
        elif op == "stop":
            self.end_sandbox(request["token"])
            if request["token"] in self.keepers:
                self.keepers[request["token"]].unwanted = True
                self.remove_left(request["token"])
            else:
                self.ask_zygote({"op": "stop", "token": request["token"]}, [])
        elif op == "remove":
            self.ask_zygote({"op": "remove", "token": request["token"], "paths": request["paths"]}, [])
        elif op == "ping":
            self.silence_sec = request["silence_sec"]
            self.reply({"pong": True})
        elif op == "file":
            self.reply({"file": request["id"], **files.serve(request, self.locks)})

    # --- sandboxes ---

    def ask_zygote(self, request: dict[str, Any], descriptors: list[int]) -> None:
        self.zygote.setblocking(True)  # it reads at once
        try:
            channel.send(self.zygote, request, descriptors)
        except OSError:
            self.open = False
        finally:
            self.zygote.setblocking(False)

    def on_zygote(self, events: int) -> None:
        try:
            received = channel.receive(self.zygote)
        except BlockingIOError:
            return
        if received is None:
            self.reply({"dead": "the process that makes sandboxes has ended"})
            self.open = False
        else:
            self.reply(received[0])

    def start(self, token: int, config: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.sandboxes[token] = Sandbox(ours, cgroups.oom_file(self.groups, config["name"]))
        self.watch(ours.fileno(), select.EPOLLIN, lambda events: self.on_sandbox(token, events))
        if config.get("container") is None:
            self.ask_zygote({"op": "start", "token": token, "config": config}, [theirs.fileno()])
        else:
            self.start_keeper(token, {**config, "groups": self.groups}, theirs)
        theirs.close()

    def start_keeper(self, token: int, config: dict[str, Any], control: socket.socket) -> None:
        pid = os.fork()
        if pid == 0:
            container.keep(control, config)
        groups = cgroups.folders(self.groups, config["name"]) if self.groups else []
        keeper = self.keepers[token] = Keeper(pid, {"paths": [config["scratch"]], "groups": groups})
        assert keeper.descriptor is not None
        self.watch(keeper.descriptor, select.EPOLLIN, lambda events: self.on_keeper(token))

    def on_keeper(self, token: int) -> None:
        keeper = self.keepers[token]
        if keeper.descriptor is not None:
            os.waitpid(keeper.pid, 0)
            self.forget(keeper.descriptor)
            os.close(keeper.descriptor)
            keeper.descriptor = None
        self.remove_left(token)

    def remove_left(self, token: int) -> None:
        """When a container that nobody wants any more has ended, the zygote removes its files: it may remove other users'."""
        keeper = self.keepers[token]
        if keeper.unwanted and keeper.descriptor is None:
            del self.keepers[token]
            self.ask_zygote({"op": "remove", "token": token, **keeper.left}, [])

    def order(self, token: int, request: dict[str, Any], descriptors: list[int]) -> None:
        """Send to a sandbox's init, now or when it listens. Takes over the descriptors."""
        sandbox = self.sandboxes[token]
        sandbox.waiting.append((request, descriptors))
        if len(sandbox.waiting) == 1:
            self.flush_sandbox(token)

    def flush_sandbox(self, token: int) -> None:
        sandbox = self.sandboxes[token]
        events = select.EPOLLIN
        while sandbox.waiting:
            request, descriptors = sandbox.waiting[0]
            try:
                channel.send(sandbox.control, request, descriptors)
            except BlockingIOError:
                events |= select.EPOLLOUT
                break
            except OSError:
                break  # it is gone, as reading from it will tell
            sandbox.waiting.popleft()
            for descriptor in descriptors:
                os.close(descriptor)
        self.watch(sandbox.control.fileno(), events, lambda events: self.on_sandbox(token, events))

    def on_sandbox(self, token: int, events: int) -> None:
        sandbox = self.sandboxes[token]
        if events & select.EPOLLOUT:
            self.flush_sandbox(token)
        if not events & ~select.EPOLLOUT:
            return
        try:
            received = channel.receive(sandbox.control)
        except BlockingIOError:
            return
        if received is None:
            kills = cgroups.oom_kills(sandbox.oom_file)
            self.end_sandbox(token)
            self.reply({"lost": token, "oom": kills})
            return
        answer = received[0]
        if "exit" in answer:
            running = self.running.get(answer["exit"])
            if running is not None:
                if "error" in answer:
                    self.send(frames.pack(frames.STDERR, running.number, f"rollout: {answer['error']}\n".encode()))
                self.finish(running, answer["code"])
        elif "killed" in answer:
            running = self.running.get(answer["killed"])
            if running is not None:
                self.finish(running, 137)
            self.reply(answer)
        else:
            self.reply({**answer, "token": token})

    def end_sandbox(self, token: int) -> None:
        sandbox = self.sandboxes.pop(token, None)
        if sandbox is None:
            return
        self.forget(sandbox.control.fileno())
        sandbox.control.close()
        for _, descriptors in sandbox.waiting:
            for descriptor in descriptors:
                os.close(descriptor)
        for running in [running for running in self.running.values() if running.token == token]:
            for descriptor in list(running.outputs):
                self.drain(running, descriptor)
            self.drop(running)

    def end_containers(self) -> None:
        """End those that are left, and wait for it."""
        for token in list(self.keepers):
            self.end_sandbox(token)
        for token, keeper in list(self.keepers.items()):
            if keeper.descriptor is not None:
                os.waitpid(keeper.pid, 0)
            self.ask_zygote({"op": "remove", "token": token, **keeper.left}, [])

    # --- commands ---

    def execute(self, request: dict[str, Any]) -> None:
        number, token = request["id"], request["token"]
        sandbox = self.sandboxes.get(token)
        if sandbox is None:
            return  # its end is on the way to Rollout
        running = self.running[number] = Running(number, token, request["live"])
        running.oom_kills = cgroups.oom_kills(sandbox.oom_file)
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
        self.order(token, wanted, [stdin, *ends])

    def listen(self, running: Running, descriptor: int) -> None:
        if running.window <= 0:
            self.quiet(descriptor)
        elif self.paused is not None:
            self.paused.add(descriptor)
        else:
            self.watch(descriptor, select.EPOLLIN, lambda events: self.on_output(running, descriptor))

    def quiet(self, descriptor: int) -> None:
        if self.paused is not None:
            self.paused.add(descriptor)
        self.forget(descriptor)

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
                self.send(frames.pack(frames.END, running.number))
            if running.ended and not running.outputs:
                self.drop(running)
            return False
        running.window -= len(chunk)
        self.send(frames.pack(kind, running.number, chunk))
        return True

    def close_output(self, running: Running, descriptor: int) -> None:
        del running.outputs[descriptor]
        self.forget(descriptor)
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
                self.forget(descriptor)
                left.append(descriptor)
        if left:
            self.order(running.token, {"op": "drain"}, left)
        oom = cgroups.oom_kills(self.sandboxes[running.token].oom_file) > running.oom_kills
        self.reply({"exit": running.number, "code": code, "oom": oom})
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
                self.send(frames.pack(frames.UNREAD, running.number))
                break
            taken += written
            if written == len(chunk):
                running.pending.popleft()
            else:
                running.pending[0] = chunk[written:]
        if taken:
            self.send(frames.credit(running.number, taken))
        if running.stdin is None:
            running.pending.clear()
        elif running.pending:
            self.watch(running.stdin, select.EPOLLOUT, lambda events: self.feed(running))
        elif running.closing:
            self.close_stdin(running)
        else:
            self.forget(running.stdin)

    def close_stdin(self, running: Running) -> None:
        if running.stdin is not None:
            self.forget(running.stdin)
            os.close(running.stdin)
            running.stdin = None


def main() -> None:
    """Serve standard input and output until either ends."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what ends a relay is the end of its input
    splitter, first, data = frames.Splitter(), None, b""
    while first is None:
        chunk = os.read(0, _CHUNK)
        if not chunk:
            return
        data += chunk
        first = next(iter(splitter.feed(chunk)), None)
    config = json.loads(first[2])
    rest = data[len(frames.pack(*first)) :]
    path = os.environ["PATH"] = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/local/sbin:/usr/sbin:/sbin"
    config, machine = files.resolve(config)
    os.environ.clear()  # nothing of the user's is for sandboxes
    os.environ["PATH"] = path
    if "error" in machine:
        _say(machine)
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _become_zygote(ours, theirs)
    theirs.close()
    channel.send(ours, config)
    received = channel.receive(ours)
    answer = received[0] if received else {"error": "the process that makes sandboxes ended without a word", "errno": 0}
    _say({**answer, **machine})
    if "error" in answer:
        return
    relay = Relay(ours, answer, rest)
    try:
        relay.serve()
        relay.end_containers()
    finally:
        ours.close()
        _wait(pid)
        for folder in config["scratch"]:
            try:
                os.rmdir(folder)
            except OSError:
                pass  # never made, or another relay of the job uses it


def _become_zygote(ours: socket.socket, theirs: socket.socket) -> None:
    """In the forked process: never returns."""
    code = 1
    try:
        ours.close()
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        zygote.serve(theirs)
        code = 0
    finally:
        os._exit(code)


def _say(content: Any) -> None:
    data = frames.message(content)
    while data:
        data = data[os.write(1, data) :]


def _wait(pid: int) -> None:
    """Until the zygote has tidied up, within reason."""
    deadline = time.monotonic() + _EXIT_SEC
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.01)
