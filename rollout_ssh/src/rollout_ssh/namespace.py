"""`mode: namespace`: one started sandbox of another machine. Commands, files, the end."""

from __future__ import annotations

import asyncio
import errno
import posixpath
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from rollout.core.aio import Blocking, joined, run_shielded
from rollout.core.archive import pack, unpack
from rollout.core.archive.transfer import Inflow, Outflow, both_sides, check_path, said
from rollout.core.capture import OutputCapture
from rollout.core.errors import EnvironmentLostError, HostLostError, SandboxError, StartError, TransferError
from rollout.core.live import LiveOutput, in_time
from rollout.core.sandbox.inside.transfer import MISSING
from rollout.core.types import DEFAULT_TRANSFER_LIMITS, Command, ExecResult, OutputSink, Stream, TransferLimits, TransferReport
from rollout_ssh.running import Feed, RunningCommand
from rollout_ssh.session import Session

_ROOT = (None, "root", "0", "0:0", "root:root")


class NamespaceEnvironment:
    """The Environment of `type: ssh`, `mode: namespace`."""

    def __init__(self, session: Session, blocking: Blocking, ended: Callable[[bool], None]) -> None:
        self._session = session
        self._blocking = blocking
        self._ended = ended
        self._running: set[RunningCommand] = set()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._token = 0
        self._gone: EnvironmentLostError | None = None
        self._stopping: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, session: Session, blocking: Blocking, config: dict[str, Any], ended: Callable[[bool], None] = lambda worked: None
    ) -> NamespaceEnvironment:
        """`ended` is called once, when it has stopped: whether the machine did well.

        Raises StartError, HostLostError. Leaves nothing behind when it fails or is cancelled.
        """
        environment = cls(session, blocking, ended)
        environment._token = session.start_sandbox(config, environment._on_message)
        try:
            await environment._ready
        except BaseException:
            await run_shielded(environment.stop())
            raise
        return environment

    async def exec(self, command: Command, sink: OutputSink | None = None) -> ExecResult:
        capture = OutputCapture(command.max_output_bytes, sink)
        running = self._launch(_feeding(capture), self._request(command), stdin=bool(command.stdin))
        writing = asyncio.ensure_future(_write(running, command.stdin)) if command.stdin else None
        try:
            async with in_time(command, lambda: self._kill(running)):
                code = await asyncio.shield(running.done)
        finally:
            if writing is not None:
                writing.cancel()
        return capture.result(code, out_of_memory=running.out_of_memory)

    async def open(self, command: Command, sink: OutputSink | None = None) -> NamespaceProcess:
        return NamespaceProcess(self, command, sink)

    async def upload(self, source: Path, target: str, *, owner: str | None = None) -> None:
        await self.send(source, target, owner=owner)

    async def send(
        self,
        source: Path,
        target: str,
        *,
        owner: str | None = None,
        mode: int | None = None,
        keep: Callable[[str], bool] = lambda path: True,
    ) -> None:
        """`upload`, with the modes replaced and files left out as `rollout.core.archive.pack` has it."""
        check_path(target)
        self._check_user(owner)
        complaint = OutputCapture(4096)
        arguments = {"target": posixpath.normpath(target), "owner": owner or "0"}
        request = {"transfer": "unpack", "arguments": arguments}
        running = self._launch(_feeding(complaint), request, stdin=True)
        loop = asyncio.get_running_loop()

        def work() -> None:
            out = Outflow(lambda data: asyncio.run_coroutine_threadsafe(running.write(data), loop).result())
            try:
                pack(source, out, mode=mode, keep=keep)
                out.flush()
            except BrokenPipeError:
                return  # the other side has stopped and says why
            finally:
                loop.call_soon_threadsafe(running.close_stdin)

        code, _ = await self._transfer(running, work)
        if code != 0:
            raise TransferError(f"cannot copy {source} to {target}: {said(complaint)}")

    async def download(self, source: str, target: Path, limits: TransferLimits = DEFAULT_TRANSFER_LIMITS) -> TransferReport:
        check_path(source)
        arguments = {
            "source": posixpath.normpath(source),
            "max_file_bytes": limits.max_file_bytes,
            "max_files": limits.max_files,
        }
        complaint = OutputCapture(4096)
        loop = asyncio.get_running_loop()
        stream: Inflow

        def feed(kind: Stream, chunk: bytes) -> bool:
            if kind == "stdout":
                stream.feed(chunk)
                return False
            complaint.feed(kind, chunk)
            return True

        running = self._launch(feed, {"transfer": "pack", "arguments": arguments}, stdin=False)
        stream = Inflow(lambda size: loop.call_soon_threadsafe(running.took, size))
        running.done.add_done_callback(lambda done: stream.end())

        def work() -> TransferReport | TransferError:
            try:
                return unpack(stream, target, limits)
            except TransferError as error:
                return error
            finally:
                stream.discard()

        code, outcome = await self._transfer(running, work)
        if code == MISSING:
            raise FileNotFoundError(errno.ENOENT, "no such file or folder in the environment", source)
        if isinstance(outcome, TransferReport):
            return outcome
        why = said(complaint) if code else str(outcome)
        raise TransferError(f"cannot copy {source} out of the environment: {why}") from outcome

    async def stop(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await run_shielded(joined(self._stopping))

    async def _stop(self) -> None:
        lost = isinstance(self._gone, HostLostError)
        self._lose(EnvironmentLostError("the environment was stopped"))
        try:
            if not lost:
                await self._session.stop_sandbox(self._token)
        except EnvironmentLostError:
            lost = self._session.lost  # the machine hears of it from the end of the connection, or from our silence
        finally:
            self._ended(not lost)

    def _request(self, command: Command) -> dict[str, Any]:
        if not command.argv:
            raise ValueError("a command needs at least a program")
        self._check_user(command.user)
        return {"argv": list(command.argv), "env": dict(command.env), "cwd": command.cwd, "user": command.user}

    def _check_user(self, user: str | None) -> None:
        if self._session.ids == "one" and user not in _ROOT:
            needs = "to log in as root, or subordinate ids (/etc/subuid, /etc/subgid and newuidmap)"
            raise SandboxError(f"{self._session.name} cannot run as user {user}: that takes {needs}")

    def _launch(self, feed: Feed, request: dict[str, Any], *, stdin: bool, live: bool = False) -> RunningCommand:
        if self._gone is not None:
            raise self._gone
        running = RunningCommand(feed, live=live)
        self._session.launch_command(running, self._token, {**request, "stdin": stdin, "live": live})
        self._running.add(running)
        running.done.add_done_callback(lambda done: self._running.discard(running))
        return running

    async def _transfer(self, running: RunningCommand, work: Callable[[], Any]) -> tuple[int, Any]:
        """Run one side of a transfer in a thread and the other in the sandbox; the exit code there, the outcome here."""
        thread = asyncio.ensure_future(self._blocking(work))
        return await both_sides(thread, lambda outcome: asyncio.shield(running.done), lambda: self._kill(running))

    async def _kill(self, running: RunningCommand) -> None:
        await self._session.kill(running, self._token)

    def _on_message(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            if not self._ready.done():
                self._ready.set_result(None)
        elif "error" in message:
            if not self._ready.done():
                self._ready.set_exception(StartError(f"{self._session.name}: {message['error']}"))
        elif "host" in message:
            self._lose(HostLostError(f"{self._session.name} is lost: {message['host']}"))
        else:
            killed = "; the kernel killed it for memory" if message.get("oom") else ""
            self._lose(EnvironmentLostError(f"the sandbox on {self._session.name} ended unexpectedly{killed}"))

    def _lose(self, error: EnvironmentLostError) -> None:
        self._gone = self._gone or error
        if not self._ready.done():
            failure = error if isinstance(error, HostLostError) else StartError(f"starting the sandbox: {error}")
            self._ready.set_exception(failure)
            self._ready.exception()
        for running in list(self._running):
            self._session.forget(running, error)
        self._running.clear()


class NamespaceProcess:
    """A command with live standard streams."""

    def __init__(self, environment: NamespaceEnvironment, command: Command, sink: OutputSink | None) -> None:
        self._environment = environment
        self._live = LiveOutput(sink, lambda size: self._running.took(size))
        self._running = environment._launch(self._take, environment._request(command), stdin=True, live=True)
        self._running.on_end_of_output = self._live.end

    async def write(self, data: bytes) -> None:
        """Raises BrokenPipeError when the program no longer reads."""
        await self._running.write(data)

    async def close_stdin(self) -> None:
        self._running.close_stdin()

    def output(self) -> AsyncIterator[bytes]:
        return self._live.chunks()

    async def wait(self) -> int:
        return await asyncio.shield(self._running.done)

    async def kill(self) -> None:
        await run_shielded(self._environment._kill(self._running))

    def _take(self, stream: Stream, chunk: bytes) -> bool:
        self._live.feed(stream, chunk)
        return stream == "stderr"


def _feeding(capture: OutputCapture) -> Feed:
    def feed(stream: Stream, chunk: bytes) -> bool:
        capture.feed(stream, chunk)
        return True

    return feed


async def _write(running: RunningCommand, data: bytes) -> None:
    try:
        await running.write(data)
        running.close_stdin()
    except BrokenPipeError:
        return  # what the program does not want to read is not an error
