"""One command in a container: its streams, how it ended, and how its process tree is killed.

A command is started by a small shell that leads a session of its own (the engine gives every exec one). The shell says on the
command's streams, in lines that begin with a random mark, its process id and in the end the exit code. So the end of a command
is known even while something it left behind holds its output, and the session can be killed from another exec: the engine
itself cannot signal one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

from rollout.core.aio import run_shielded
from rollout.core.capture import OutputCapture
from rollout.core.errors import EnvironmentLostError, OutOfMemoryError, SandboxError
from rollout.core.notes import Notes
from rollout.core.types import Command, Stream
from rollout_docker.engine import Engine, Refused, Unreachable, checked, encode
from rollout_docker.http import Connection
from rollout_docker.stream import Frames

_CHUNK = 256 * 1024
_KILL_TIMEOUT_SEC = 30.0
_MAX_HELD_BYTES = 64 * 1024
_CANNOT_EXECUTE = 126
_INPUT_REFUSED = b"write unixpacket"
"""Podman's complaint, in place of all else that it still had to pass on, when a program ends without reading its input."""

_SHELL = """
n=$ROLLOUT_MARK; unset ROLLOUT_MARK; exec 3>&2 2>/dev/null
echo "$n$$" >&3
(exec "$@" 2>&3 3>&-); c=$?
echo "$n$c"; echo "$n$c" >&3
exit $c
"""

# Kills every process of session $1 until a look at all processes finds none.
_KILL = """
exec 2>/dev/null
while :; do
    left=
    for d in /proc/[0-9]*; do
        state=Z sid=
        while read -r key value rest; do
            case $key in State:) state=$value;; NSsid:) sid=$value; break;; esac
        done < "$d/status"
        case $state in Z|X|x) continue;; esac
        if [ "$sid" = "$1" ]; then kill -9 "${d#/proc/}"; left=1; fi
    done
    [ -z "$left" ] && exit 0
    sleep 0.01 || sleep 1
done
"""


class Container:
    """A started container: what commands need to know of it."""

    def __init__(self, engine: Engine, id: str, name: str, workdir: str) -> None:
        self.engine = engine
        self.id = id
        self.name = name
        self.workdir = workdir
        self.gone: str | None = None
        self.unreachable: Callable[[str], EnvironmentLostError] = EnvironmentLostError
        """Makes the error for what was in it when its engine stopped answering."""
        self.running: set[RunningCommand] = set()

    async def lost(self) -> EnvironmentLostError | OutOfMemoryError | None:
        """Why the container is gone; None while it runs."""
        if self.gone is not None:
            return EnvironmentLostError(f"the environment is gone: {self.gone}")
        try:
            state = (await self.engine.call("GET", f"/containers/{self.id}/json"))["State"]
        except Refused as error:
            return EnvironmentLostError(f"the container is gone: {error}")
        except Unreachable as error:
            return self.unreachable(str(error))
        if state.get("Running") and not state.get("Dead"):
            return None
        if state.get("OOMKilled"):
            return OutOfMemoryError("the container ran out of memory and the kernel ended it")
        reason = f"exit code {state.get('ExitCode')}" + (f", {state['Error']}" if state.get("Error") else "")
        return EnvironmentLostError(f"the container ended unexpectedly ({reason})")

    async def probe(self) -> None:
        """Run nothing, to see that commands can run.

        Raises:
            SandboxError: they cannot; the text says why.
        """
        said = OutputCapture(1000)
        nothing = RunningCommand(self, said.feed)
        await nothing.start(Command(argv=("/bin/sh", "-c", ":"), user="0", cwd="/"))
        code = await nothing.done
        if code != 0:
            text = said.result(code).stderr.decode("utf-8", "replace").strip()
            raise SandboxError(f"a container of the image cannot run /bin/sh: {text}")

    async def kill(self) -> None:
        """End the container: the last resort."""
        try:
            await self.engine.call("POST", f"/containers/{self.id}/kill")
        except Refused as error:
            if error.status not in (404, 409):
                raise


class RunningCommand:
    """A command that was asked for; `start` it, then wait for `done`."""

    def __init__(self, container: Container, feed: Callable[[Stream, bytes], None]) -> None:
        self._container = container
        self._feed = feed
        mark = f"\x1erollout-{secrets.token_hex(16)} "
        self._mark = mark
        self._frames = Frames()
        self._notes: dict[Stream, Notes] = {"stdout": Notes(mark.encode()), "stderr": Notes(mark.encode())}
        self._ended: dict[Stream, int] = {}
        self._before: list[bytes] = []  # of stdout, until it is known that the shell runs
        self._exec_id: str | None = None
        self._connection: Connection | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._pid: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.killed = False
        self._shell_ran = False
        self.room = asyncio.Event()
        """Cleared while whoever takes the output wants no more of it."""
        self.room.set()

    async def start(self, command: Command, *, live: bool = False) -> None:
        """Start the command; finish feeding `command.stdin` in the background.

        Raises:
            EnvironmentLostError, OutOfMemoryError: the container is gone.
            SandboxError: the engine cannot start it (no such user).
        """
        container = self._container
        if container.gone is not None:
            raise EnvironmentLostError(f"the environment is gone: {container.gone}")
        reads = live or bool(command.stdin)
        body: dict[str, Any] = {
            "AttachStdin": reads,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": False,
            "Cmd": ["/bin/sh", "-c", _SHELL, "sh", *command.argv],
            "Env": [*(f"{name}={value}" for name, value in command.env.items()), f"ROLLOUT_MARK={self._mark}"],
            "WorkingDir": container.workdir if command.cwd is None else _join(container.workdir, command.cwd),
        }
        if command.user is not None:
            body["User"] = command.user
        container.running.add(self)
        try:
            await self._start(body)
        except BaseException as error:
            self._end()
            if isinstance(error, SandboxError):
                lost = await container.lost()
                if lost is not None:
                    raise lost from error
            raise
        self._tasks.append(asyncio.ensure_future(self._pump()))
        if command.stdin:
            self._tasks.append(asyncio.ensure_future(self._send(command.stdin)))

    async def _start(self, body: dict[str, Any]) -> None:
        engine, container = self._container.engine, self._container
        connection = self._connection = await engine.connect()
        try:
            answer = await connection.request("POST", engine.path(f"/containers/{container.id}/exec"), encode(body))
            self._exec_id = (await checked(connection, answer))["Id"]
            upgrade = {"Connection": "Upgrade", "Upgrade": "tcp"}
            start = encode({"Detach": False, "Tty": False})
            answer = await connection.request("POST", engine.path(f"/exec/{self._exec_id}/start"), start, upgrade)
            if answer.status >= 400:
                await checked(connection, answer)
        except OSError as error:
            raise Unreachable(f"the Docker engine does not answer any more: {error}") from error

    async def write(self, data: bytes) -> None:
        """Raises ConnectionError when the program reads no more."""
        assert self._connection is not None
        if self.done.done():
            raise BrokenPipeError("the program has ended")
        self._connection.writer.write(data)
        await self._connection.writer.drain()

    def close_stdin(self) -> None:
        assert self._connection is not None
        writer = self._connection.writer
        if not writer.is_closing() and writer.can_write_eof():
            try:
                writer.write_eof()
            except OSError:
                return  # the other side hung up, which `_pump` sees too

    async def _send(self, data: bytes) -> None:
        try:
            rest = memoryview(data)
            while rest:
                await self.write(bytes(rest[:_CHUNK]))
                rest = rest[_CHUNK:]
            self.close_stdin()
        except ConnectionError:
            return  # a program need not read its input

    async def _pump(self) -> None:
        """Pass on output until the shell says that the command has ended, or the stream does."""
        assert self._connection is not None
        reader = self._connection.reader
        try:
            while len(self._ended) < 2:
                await self.room.wait()
                data = await reader.read(_CHUNK)
                if not data:
                    break
                for stream, payload in self._frames.feed(data):
                    self._take(stream, payload)
        except OSError:
            pass  # as good as its end: the container is asked what happened
        try:
            code = self._ended["stderr"] if len(self._ended) == 2 else await self._ended_otherwise()
        except SandboxError as error:
            self._fail(error)
        else:
            if not self.done.done():
                self.done.set_result(code)
        finally:
            self._end()

    def _take(self, stream: Stream, payload: bytes) -> None:
        if stream in self._ended:
            return  # of something that the command left behind
        output, notes = self._notes[stream].feed(payload)
        if stream == "stderr" and notes and not self._pid.done():
            self._shell_ran = True
            self._pid.set_result(int(notes.pop(0)))
            self._let_go()
        if output and stream == "stdout" and not self._shell_ran:
            self._before.append(output)
            if sum(map(len, self._before)) > _MAX_HELD_BYTES:  # no engine's message is that long: the shell's note is on its way
                self._shell_ran = True
                self._let_go()
        elif output and _INPUT_REFUSED in output and self._container.engine.podman:
            self._shell_ran = True
        elif output:
            self._feed(stream, output)
        if notes:
            self._ended[stream] = int(notes[-1])

    def _let_go(self) -> None:
        for held in self._before:
            self._feed("stdout", held)
        self._before.clear()

    async def _ended_otherwise(self) -> int:
        """The exit code when the shell could not say it: it never ran, or something killed it."""
        for stream, notes in self._notes.items():
            if stream not in self._ended and (rest := notes.rest()):
                self._feed(stream, rest)
        if self._container.gone is None:
            try:
                state = await self._container.engine.call("GET", f"/exec/{self._exec_id}/json")
                code = state.get("ExitCode")
                if self._shell_ran:
                    await self._container.probe()  # the engine learns of the container's own end a little later
            except SandboxError:
                code = None
            lost = await self._container.lost()
            if lost is None and code is not None:
                for text in self._before:  # what the engine says about a program that it could not start
                    self._feed("stderr", text)
                if not self._shell_ran and int(code) < _CANNOT_EXECUTE:
                    return _CANNOT_EXECUTE  # some engines say 1
                return int(code)
            if lost is not None:
                raise lost
            raise EnvironmentLostError("the engine ended the command's connection and does not know how the command ended")
        raise EnvironmentLostError(f"the environment is gone: {self._container.gone}")

    async def kill(self) -> None:
        """Kill everything in the command's session and wait until it is gone. A container that is gone has nothing to kill."""
        if self.done.done() or self.killed:
            return
        self.killed = True
        try:
            async with asyncio.timeout(_KILL_TIMEOUT_SEC):
                pid = await asyncio.shield(self._pid)
                if pid is not None and not await self._kill_session(pid):
                    raise TimeoutError
        except (TimeoutError, SandboxError):
            await self._container.kill()  # nothing less makes sure
            self._container.gone = self._container.gone or "its processes could not be killed one by one, so it was ended"
        if not self.done.done():
            self.done.set_result(137)
        self._end()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _kill_session(self, pid: int) -> bool:
        killer = RunningCommand(self._container, lambda stream, chunk: None)
        await killer.start(Command(argv=("/bin/sh", "-c", _KILL, "sh", str(pid)), user="0", cwd="/"))
        try:
            return await killer.done == 0
        finally:
            killer._end()

    def lose(self, error: SandboxError) -> None:
        """The container is gone: nobody needs to wait for the stream's end."""
        self._fail(error)
        self._end()

    def _fail(self, error: SandboxError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # marked as seen: not everybody waits to the end

    def _end(self) -> None:
        self._container.running.discard(self)
        if not self._pid.done():
            self._pid.set_result(None)
        if self._connection is not None:
            self._connection.close()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()


async def run_command(running: RunningCommand, command: Command, *, live: bool = False) -> None:
    """Start a command; one whose start is cancelled is killed."""
    starting = asyncio.ensure_future(running.start(command, live=live))
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await run_shielded(_abandon(starting, running))
        raise


async def _abandon(starting: asyncio.Task[None], running: RunningCommand) -> None:
    try:
        await starting
    except SandboxError:
        return
    await running.kill()


def _join(workdir: str, cwd: str) -> str:
    return cwd if cwd.startswith("/") else f"{workdir.rstrip('/')}/{cwd}"
