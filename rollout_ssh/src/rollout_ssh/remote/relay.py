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
from typing import Any

from rollout.core.sandbox.inside import channel, zygote
from rollout_ssh.remote import files, frames
from rollout_ssh.remote.commands import Commands
from rollout_ssh.remote.loop import Loop
from rollout_ssh.remote.outlet import Outlet
from rollout_ssh.remote.sandboxes import Sandboxes

_CHUNK = 1 << 16
_EXIT_SEC = 30.0


class Relay:
    """Takes Rollout's requests from standard input, and tells it what came of them."""

    def __init__(self, zygote_control: socket.socket, hello: dict[str, Any], rest: bytes) -> None:
        self.loop = Loop()
        self.outlet = Outlet(self.loop)
        self.sandboxes = Sandboxes(self.loop, self.outlet, hello["groups"], self.ask_zygote)
        self.commands = Commands(self.loop, self.outlet, self.sandboxes)
        self.splitter = frames.Splitter()
        self.locks: dict[str, int] = {}
        self.open = True
        self.silence_sec: float | None = None
        self.heard = time.monotonic()
        self.zygote = zygote_control
        self.early = rest
        os.set_blocking(0, False)
        self.zygote.setblocking(False)
        self.loop.watch(0, select.EPOLLIN, self.on_stdin)
        self.loop.watch(self.zygote.fileno(), select.EPOLLIN, self.on_zygote)

    def serve(self) -> None:
        self.take(self.early)
        while self.open and self.outlet.open:
            if self.silence_sec is not None and time.monotonic() - self.heard > self.silence_sec:
                return
            self.loop.once(None if self.silence_sec is None else 1.0)

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
            else:
                self.commands.on_frame(kind, number, payload)

    def handle(self, request: dict[str, Any]) -> None:
        op = request["op"]
        if op == "exec":
            self.commands.execute(request)
        elif op == "kill":
            if request["token"] in self.sandboxes:
                self.sandboxes.order(request["token"], {"op": "kill", "id": request["id"]}, [])
        elif op == "start":
            self.sandboxes.start(request["token"], request["config"])
        elif op == "stop":
            self.sandboxes.stop(request["token"])
        elif op == "remove":
            self.ask_zygote({"op": "remove", "token": request["token"], "paths": request["paths"]}, [])
        elif op == "ping":
            self.silence_sec = request["silence_sec"]
            self.outlet.reply({"pong": True})
        elif op == "file":
            self.outlet.reply({"file": request["id"], **files.serve(request, self.locks)})

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
            self.outlet.reply({"dead": "the process that makes sandboxes has ended"})
            self.open = False
        else:
            self.outlet.reply(received[0])


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
        relay.sandboxes.end_containers()
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
