"""The sandboxes of one machine: made by its zygote, or kept in a container of its own engine."""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from rollout.core.sandbox.inside import cgroups, channel
from rollout_ssh.remote import container
from rollout_ssh.remote.loop import Loop
from rollout_ssh.remote.outlet import Outlet

_KILLED = 137


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


class Sandboxes:
    """Every sandbox that runs, by its token."""

    def __init__(
        self,
        loop: Loop,
        outlet: Outlet,
        groups: dict[str, list[str]],
        ask_zygote: Callable[[dict[str, Any], list[int]], None],
    ) -> None:
        self.loop = loop
        self.outlet = outlet
        self.groups = groups
        self.ask_zygote = ask_zygote
        self.running: dict[int, Sandbox] = {}
        self.keepers: dict[int, Keeper] = {}
        self.on_end_of_command: Callable[[int, int, str | None], None] = lambda number, code, error: None
        """Hears the number, the exit code, and why it could not be started."""
        self.on_end: Callable[[int], None] = lambda token: None

    def __contains__(self, token: int) -> bool:
        return token in self.running

    def oom_kills(self, token: int) -> int:
        return cgroups.oom_kills(self.running[token].oom_file)

    def start(self, token: int, config: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.running[token] = Sandbox(ours, cgroups.oom_file(self.groups, config["name"]))
        self.loop.watch(ours.fileno(), select.EPOLLIN, lambda events: self.on_sandbox(token, events))
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
        self.loop.watch(keeper.descriptor, select.EPOLLIN, lambda events: self.on_keeper(token))

    def on_keeper(self, token: int) -> None:
        keeper = self.keepers[token]
        if keeper.descriptor is not None:
            os.waitpid(keeper.pid, 0)
            self.loop.forget(keeper.descriptor)
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
        sandbox = self.running[token]
        sandbox.waiting.append((request, descriptors))
        if len(sandbox.waiting) == 1:
            self.flush(token)

    def flush(self, token: int) -> None:
        sandbox = self.running[token]
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
        self.loop.watch(sandbox.control.fileno(), events, lambda events: self.on_sandbox(token, events))

    def on_sandbox(self, token: int, events: int) -> None:
        sandbox = self.running[token]
        if events & select.EPOLLOUT:
            self.flush(token)
        if not events & ~select.EPOLLOUT:
            return
        try:
            received = channel.receive(sandbox.control)
        except BlockingIOError:
            return
        if received is None:
            kills = cgroups.oom_kills(sandbox.oom_file)
            self.end(token)
            self.outlet.reply({"lost": token, "oom": kills})
            return
        answer = received[0]
        if "exit" in answer:
            self.on_end_of_command(answer["exit"], answer["code"], answer.get("error"))
        elif "killed" in answer:
            self.on_end_of_command(answer["killed"], _KILLED, None)
            self.outlet.reply(answer)
        else:
            self.outlet.reply({**answer, "token": token})

    def end(self, token: int) -> None:
        sandbox = self.running.pop(token, None)
        if sandbox is None:
            return
        self.loop.forget(sandbox.control.fileno())
        sandbox.control.close()
        for _, descriptors in sandbox.waiting:
            for descriptor in descriptors:
                os.close(descriptor)
        self.on_end(token)

    def stop(self, token: int) -> None:
        """End one and remove what it wrote; the zygote tells when it is gone."""
        self.end(token)
        if token in self.keepers:
            self.keepers[token].unwanted = True
            self.remove_left(token)
        else:
            self.ask_zygote({"op": "stop", "token": token}, [])

    def end_containers(self) -> None:
        """End those that are left, and wait for it."""
        for token in list(self.keepers):
            self.end(token)
        for token, keeper in list(self.keepers.items()):
            if keeper.descriptor is not None:
                os.waitpid(keeper.pid, 0)
            self.ask_zygote({"op": "remove", "token": token, **keeper.left}, [])
