"""Process 1 of a sandbox: runs commands on request, reaps, kills sessions, and takes everything with it when it ends."""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from . import channel, kernel, transfer
from .accounts import find_account

_LINGER_SEC = 10.0
_DRAIN_BYTES = 1 << 16


class Init:
    """Serves one control socket. Single-threaded: nothing here waits for anything but the kernel."""

    def __init__(
        self,
        control: socket.socket,
        config: dict[str, Any],
        *,
        proc: int,
        kill_all: Callable[[], None],
        until: int | None = None,
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """`proc`: a descriptor of the /proc that knows the ids which `fork` returns. `kill_all`: the last resort against a
        session that forks too fast. `until`: a descriptor that can be read when there is nothing left to serve.
        `ending`: whether everything is just being killed, so that a command's end says nothing about the command."""
        self.control = control
        self.config = config
        self.proc = proc
        self.kill_all = kill_all
        self.until = until
        self.ending = ending
        self.commands: dict[int, int] = {}  # process of a command (also its session) -> the request's id
        self.drains: set[int] = set()
        self.wakeup, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the kernel keeps unhandled signals from inside away from process 1
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        self.wakeup_write = wakeup_write

    def serve(self) -> None:
        """Until the other end of the control socket is closed or asks for the end."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.wakeup, select.POLLIN)
        if self.until is not None:
            poll.register(self.until, select.POLLIN)
        self.poll = poll
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self.until:
                    return
                if descriptor == self.wakeup:
                    os.read(self.wakeup, 4096)
                    if not self.reap():
                        return
                elif descriptor == self.control.fileno():
                    received = channel.receive(self.control)
                    if received is None:
                        return
                    request, descriptors = received
                    if request["op"] == "stop":
                        return
                    self.handle(request, descriptors)
                elif descriptor in self.drains:
                    self.drain(descriptor)

    def handle(self, request: dict[str, Any], descriptors: list[int]) -> None:
        if request["op"] == "exec":
            try:
                pid = os.fork()
            except OSError as error:
                self.reply({"exit": request["id"], "code": 126, "error": f"cannot start a process: {error.strerror}"})
            else:
                if pid == 0:
                    self.child(request, descriptors)
                self.commands[pid] = request["id"]
            for descriptor in descriptors:
                os.close(descriptor)
        elif request["op"] == "kill":
            self.kill(request["id"])
        elif request["op"] == "drain":
            # what a service that outlives its command still prints: read and thrown away, so that it does not die of SIGPIPE
            for descriptor in descriptors:
                os.set_blocking(descriptor, False)
                self.drains.add(descriptor)
                self.poll.register(descriptor, select.POLLIN)

    def drain(self, descriptor: int) -> None:
        try:
            if os.read(descriptor, _DRAIN_BYTES):
                return
        except BlockingIOError:
            return
        self.poll.unregister(descriptor)
        self.drains.discard(descriptor)
        os.close(descriptor)

    def reap(self) -> bool:
        """Tell of the commands that have ended. False when they were killed with everything else, which says nothing of them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return True
            # Asked after the command's end was seen: what kills everything begins before it kills the first.
            if os.WIFSIGNALED(status) and self.ending():
                return False
            request = self.commands.pop(pid, None)
            if request is not None:
                code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
                self.reply({"exit": request, "code": code})

    def kill(self, request: int) -> None:
        """Kill every process of a command's session and answer when they are gone."""
        session = next((pid for pid, known in self.commands.items() if known == request), None)
        if session is not None:
            deadline = time.monotonic() + _LINGER_SEC
            while True:
                members = _session_members(session, self.proc)
                if not members:
                    break
                if time.monotonic() > deadline:  # a session that forks faster than it can be looked at leaves no choice
                    self.kill_all()
                for pid in members:
                    _signal(pid)
                time.sleep(0.001)
                self.reap()
        self.reply({"killed": request})

    def reply(self, message: dict[str, Any]) -> None:
        try:
            channel.send(self.control, message)
        except ConnectionError:
            os._exit(0)

    def child(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """In the forked process: become the command. Never returns."""
        code = 126
        try:
            signal.set_wakeup_fd(-1)
            os.setsid()
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
            os.closerange(3, max(64, max([self.wakeup_write, self.proc, *descriptors, *self.drains]) + 1))
            _reset_signals()
            os.umask(0o022)
            code = transfer.run(request["transfer"], request["arguments"]) if "transfer" in request else self.execute(request)
        except (OSError, ValueError) as error:
            _complain(str(error))
        finally:
            os._exit(code)

    def execute(self, request: dict[str, Any]) -> int:
        argv, env = request["argv"], {**self.config["env"]}
        account = find_account(request["user"] or self.config["user"])
        if account is None:
            _complain(f"no user {request['user']!r} in this environment")
            return 126
        env["HOME"] = account.home
        env.update(request["env"])
        limit = self.config.get("max_file_bytes")
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if account.uid != 0:
            for number in (0, 1, 2):
                try:
                    os.fchown(number, account.uid, account.gid)  # so that /dev/stderr can be opened, as in Docker
                except OSError:
                    pass
        account.become()
        try:
            os.chdir(self.config["workdir"])
            os.chdir(request["cwd"] or ".")
        except OSError as error:
            _complain(f"working directory {request['cwd'] or self.config['workdir']}: {error.strerror}")
            return 126
        return _execute(argv, env)


def _execute(argv: list[str], env: dict[str, str]) -> int:
    """Replace the process, looking the program up in the command's own PATH as a shell does."""
    program = argv[0]
    paths = [program] if "/" in program else [os.path.join(folder or ".", program) for folder in env.get("PATH", "").split(":")]
    denied: OSError | None = None
    for path in paths:
        try:
            os.execve(path, argv, env)
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                return _execute(["/bin/sh", path, *argv[1:]], env)
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                denied = denied or error
                if error.errno != errno.EACCES:
                    break
        except ValueError:
            _complain("an argument or a variable holds a NUL byte")
            return 126
    if denied is not None:
        _complain(f"{program}: {denied.strerror}")
        return 126
    if "/" in program and os.path.lexists(program):
        _complain(f"{program}: its interpreter was not found")
    else:
        _complain(f"{program}: not found")
    return 127


def _session_members(session: int, proc: int) -> list[int]:
    members = []
    for name in os.listdir(proc):
        if not name.isdigit():
            continue
        try:
            descriptor = os.open(f"{name}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
        except OSError:
            continue  # it has just ended
        try:
            fields = os.read(descriptor, 4096).rpartition(b")")[2].split()
        except OSError:
            continue
        finally:
            os.close(descriptor)
        if int(fields[3]) == session and fields[0] not in (b"Z", b"X"):
            members.append(int(name))
    return members


def _signal(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has just ended


def _reset_signals() -> None:
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def _complain(message: str) -> None:
    try:
        os.write(2, f"rollout: {message}\n".encode("utf-8", "surrogateescape"))
    except OSError:
        pass  # nobody listens


def run(control: socket.socket, config: dict[str, Any]) -> None:
    """Serve as process 1. Never returns: the end of process 1 is the end of every process of the namespace."""
    code = 1
    try:
        kernel.forbid_tracing()
        os.closerange(3, control.fileno())
        os.closerange(control.fileno() + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        init = Init(control, config, proc=proc, kill_all=lambda: _signal(-1))
        channel.send(control, {"ready": True})
        init.serve()
        code = 0
    except OSError as error:
        sys.stderr.write(f"init: {error}\n")
    finally:
        os._exit(code)
