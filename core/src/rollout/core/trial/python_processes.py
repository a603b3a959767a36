"""The processes that call Python functions for verifiers: kept warm, one call each at a time, killed when a call must end.

A process sees a few harmless variables and those of its call, never Rollout's own. One that timed out, ran out of memory, died
or was given up is killed with everything in its session and replaced when the next call needs it.

While all are busy, one whose calls are quick is sent its next call ahead, so that it does not wait for this process between two.
The function of that call starts when the one before it is done; where that one ended the process, the call is made in another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rollout.core.aio import off_the_clock, run_shielded
from rollout.core.errors import CommandTimeoutError, RolloutError, VerifierError, VerifierTimeoutError
from rollout.core.protocols import Environment, PythonCall
from rollout.core.types import Command, OutputSink, Stream

VERIFIERS = "verifiers"
"""Where they work, below a job's scratch folder."""
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LANGUAGE", "TMPDIR", "TZ", "PYTHONPATH", "PYTHONHASHSEED", "SSL_CERT_FILE")
_MAX_PRINTED = 16 * 1024 * 1024
_MAX_FRAME = 256 * 1024 * 1024
_MAX_READ = 64 * 1024 * 1024
_WORKER = "import sys; from rollout.core.trial.python_worker import main; main(sys.argv[1:])"
_QUICK_SEC = 0.1
_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be given to another process")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_decoder = msgspec.msgpack.Decoder(dict[str, Any])


class PythonProcesses:
    """A pool of worker processes. Made without starting any; `aclose` ends them."""

    def __init__(self, folder: Path, limit: int | None = None, environ: Mapping[str, str] = os.environ) -> None:
        """`folder`: where they work; made when the first one starts, removed with the last. Should this process be killed,
        `rollout clean` is to find it, so it lies below the scratch folders of jobs.

        `limit`: how many run at once; by default four for each processor, for verifiers may wait for the network.
        """
        self._folder = folder
        self._limit = limit or 4 * (os.cpu_count() or 1)
        self._environ = {name: value for name, value in environ.items() if name in _KEPT_VARIABLES or name.startswith("LC_")}
        self._idle: dict[tuple[tuple[str, str], ...], list[_Worker]] = {}
        self._sharing: dict[tuple[tuple[str, str], ...], list[_Worker]] = {}
        """Those that run one quick call, and may be sent another."""
        self._quick: set[str] = set()
        """Functions whose last call took less than _QUICK_SEC."""
        self._running: set[_Worker] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._started = False
        self._closed = False

    async def __call__(self, call: PythonCall) -> Any:
        """Call the function in a process and return what it returns, as plain data.

        Raises:
            VerifierError: see `TrialView.run_python`.
            VerifierTimeoutError
        """
        try:
            request = _encoder.encode(
                {"target": call.target, "arguments": call.arguments, "search": call.search, "memory_bytes": call.memory_bytes}
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise VerifierError(f"{call.name or call.target}: its arguments are not plain data: {error}") from error
        while (answer := await self._call(await self._take(call), request, call)) is None:
            pass
        if "failure" in answer:
            raise _error(answer, call)
        return answer["value"]

    async def _call(self, worker: _Worker, request: bytes, call: PythonCall) -> dict[str, Any] | None:
        """The answer of this process; None when it was not this call's turn before the process ended."""
        turn = _Turn()
        answer: dict[str, Any] | None = None
        try:
            answer = await worker.call(request, call, turn)
        except _DisplacedError:
            pass
        finally:
            worker.calls -= 1
            reusable = answer is not None and not call.fresh and answer.get("failure") not in ("memory", "exit")
            if turn.began_at is None:
                worker.given_up = True  # what it was sent is still to come out of it
            else:
                self._remember(call, turn.began_at)
                worker.hand_over_output(call.sink, answer)
            if reusable and not worker.given_up:
                self._give_back(worker)
            elif turn.began_at is not None or not worker.calls:
                await run_shielded(self._discard(worker))
        return answer

    async def aclose(self) -> None:
        """Kill every process and remove their folder. Idempotent."""
        self._closed = True
        workers = [*self._running]
        self._idle.clear()
        for worker in workers:
            await self._discard(worker)
        if self._started:
            self._started = False
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _take(self, call: PythonCall) -> _Worker:
        """An idle process with the call's variables, or a new one, as soon as there is room."""
        key = tuple(sorted(call.env.items()))
        while True:
            if self._closed:
                raise VerifierError("the job is over")
            idle = self._idle.get(key)
            if idle and not call.fresh:
                return self._taken(idle.pop(), call)
            if len(self._running) >= self._limit and (other := self._any_idle()) is not None:
                await self._discard(other)
            if len(self._running) < self._limit:
                return self._taken(await self._start(key), call)
            if self._is_quick(call) and (sharing := self._sharing.get(key)):
                worker = sharing.pop()
                worker.calls += 1
                return worker
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                async with off_the_clock():
                    await turn
            except asyncio.CancelledError:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                else:
                    self._wake()  # it was this one's turn: let the next have it
                raise

    def _taken(self, worker: _Worker, call: PythonCall) -> _Worker:
        worker.calls += 1
        if self._is_quick(call):
            self._share(worker)
        return worker

    def _is_quick(self, call: PythonCall) -> bool:
        """Whether it may share a process: it is done soon, and asks for nothing meanwhile."""
        return not call.fresh and call.environment is None and (call.name or call.target) in self._quick

    def _remember(self, call: PythonCall, began_at: float) -> None:
        quick = time.monotonic() - began_at < _QUICK_SEC
        (self._quick.add if quick else self._quick.discard)(call.name or call.target)

    def _share(self, worker: _Worker) -> None:
        self._sharing.setdefault(worker.key, []).append(worker)
        self._wake()

    def _unshare(self, worker: _Worker) -> None:
        sharing = self._sharing.get(worker.key)
        if sharing and worker in sharing:
            sharing.remove(worker)

    def _any_idle(self) -> _Worker | None:
        return next((idle.pop() for idle in self._idle.values() if idle), None)

    async def _start(self, key: tuple[tuple[str, str], ...]) -> _Worker:
        self._started = True
        worker = _Worker(key, self._folder)
        self._running.add(worker)
        try:
            await worker.start({**self._environ, **dict(key)})
        except BaseException:
            await run_shielded(self._discard(worker))
            raise
        return worker

    def _give_back(self, worker: _Worker) -> None:
        if self._closed:
            return
        self._unshare(worker)
        if worker.calls:
            self._share(worker)
            return
        self._idle.setdefault(worker.key, []).append(worker)
        self._wake()

    async def _discard(self, worker: _Worker) -> None:
        self._unshare(worker)
        try:
            await worker.kill()
        finally:
            self._running.discard(worker)
            self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


class _DisplacedError(Exception):
    """The process ended before it was this call's turn."""


@dataclass
class _Turn:
    """When a call's function began to run, if it did."""

    began_at: float | None = None


@dataclass(eq=False)
class _Worker:
    """One process and the socket to it."""

    key: tuple[tuple[str, str], ...]
    folder: Path
    calls: int = 0
    """How many it was sent, or is about to be, and has not answered."""
    given_up: bool = False
    """It is to end with the call that it runs."""
    _ended: bool = False
    _last: asyncio.Future[dict[str, Any]] | None = None
    _process: asyncio.subprocess.Process | None = None
    _channel: _Channel | None = None
    _output: dict[Stream, int] = field(default_factory=dict)
    _directory: str | None = None
    """Where it runs; what it prints is beside it."""
    _told: list[int] = field(default_factory=lambda: [0, 0])
    """How much of stdout and stderr was handed over."""

    async def start(self, env: dict[str, str]) -> None:
        """Start the process and wait until it takes calls: their time is not that of Python's start.

        Raises:
            VerifierError: no process can be started.
        """
        ours, theirs = socket.socketpair()
        try:
            os.makedirs(self.folder, 0o700, exist_ok=True)
            directory = self._directory = tempfile.mkdtemp(dir=self.folder)
            for stream in ("stdout", "stderr"):
                self._output[stream] = os.open(f"{directory}.{stream}", _APPEND, 0o600)
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-c", _WORKER, str(theirs.fileno()), str(os.getpid())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=self._output["stdout"],
                stderr=self._output["stderr"],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                cwd=directory,
                env={"PYTHONUNBUFFERED": "1", **env},
            )
            ours.setblocking(False)
            _, self._channel = await asyncio.get_running_loop().create_connection(_Channel, sock=ours)
            theirs.close()  # else its end would not be seen
            await self._channel.opened()
        except EOFError as error:
            raise VerifierError(f"the process for a Python verifier died as it started{await self._death()}") from error
        except OSError as error:
            ours.close()
            raise VerifierError(f"no process for a Python verifier can be started: {error}") from error
        finally:
            theirs.close()

    async def call(self, request: bytes, call: PythonCall, turn: _Turn) -> dict[str, Any]:
        """The answer to one call; what the function asks of the sandbox meanwhile is done.

        Raises:
            VerifierError and its kinds
            _DisplacedError
        """
        assert self._channel is not None
        before = self._last
        answer = self._last = self._channel.send(request)
        if before is not None and not before.done():
            async with off_the_clock():
                await asyncio.wait([before])
        if self._ended or (before is not None and not before.cancelled() and before.exception() is not None):
            raise _DisplacedError
        turn.began_at = time.monotonic()
        try:
            async with asyncio.timeout(call.timeout_sec):
                frame = await answer
                while "ask" in frame:
                    reply = await self._serve(frame, call)
                    frame = await self._channel.send(msgspec.msgpack.encode(reply))
                return frame
        except TimeoutError as error:
            raise VerifierTimeoutError(f"{call.name or call.target} was still running after {call.timeout_sec:g} s") from error
        except EOFError as error:
            if self._ended:
                turn.began_at = None
                raise _DisplacedError from error
            raise VerifierError(f"the process of {call.name or call.target} died{await self._death()}") from error

    async def _death(self) -> str:
        assert self._process is not None
        code = await self._process.wait()
        return f" of signal {signal.Signals(-code).name}" if code < 0 else f" with exit code {code}"

    async def _serve(self, frame: dict[str, Any], call: PythonCall) -> dict[str, Any]:
        environment = call.environment
        if environment is None:
            return {"failure": "there is no sandbox"}
        try:
            return {"value": await _in_sandbox(environment, call, str(frame["ask"]), frame["arguments"], self.folder)}
        except (CommandTimeoutError, FileNotFoundError) as error:
            return {"failure": str(error)}

    def hand_over_output(self, sink: OutputSink, answer: dict[str, Any] | None) -> None:
        """What was printed since the last call, and the traceback of an answer that has one."""
        for index, (stream, file) in enumerate(self._output.items()):
            begin = self._told[index]
            end = os.fstat(file).st_size if answer is None else answer.get("printed", self._told)[index]
            if end <= begin:
                continue
            self._told[index] = end
            sink(stream, os.pread(file, min(end - begin, _MAX_PRINTED), begin))
            if end - begin > _MAX_PRINTED:
                sink(stream, f"\n[rollout: cut here, {end - begin - _MAX_PRINTED} bytes more]\n".encode())
            if not self.calls:
                os.ftruncate(file, 0)
                self._told[index] = 0
        if answer is not None and answer.get("failure") == "raised":
            sink("stderr", str(answer["traceback"]).encode("utf-8", "surrogateescape"))

    async def kill(self) -> None:
        """Kill the process and what it started. Idempotent."""
        self._ended = True
        if self._channel is not None:
            self._channel.close()
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        for file in self._output.values():
            os.close(file)
        self._output.clear()
        if self._directory is not None:
            directory, self._directory = self._directory, None
            await asyncio.to_thread(_remove, directory)


class _Channel(asyncio.Protocol):
    """Frames over the socket: for each that goes out one comes back, in the same order."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._hello: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers = deque([self._hello])
        self._gone = False

    async def opened(self) -> None:
        """Wait for the first frame, which says that the process is there. Raises EOFError, as what `send` returns."""
        await self._hello

    def send(self, frame: bytes) -> asyncio.Future[dict[str, Any]]:
        """What comes back; EOFError when the process closed its end, or sent what is no frame."""
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        if self._gone or self._transport is None:
            self._fail()
        else:
            self._transport.write(len(frame).to_bytes(4, "big") + frame)
        return answer

    def close(self) -> None:
        self._gone = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if size <= _MAX_FRAME and len(self._buffer) < 4 + size:
                return
            body = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            try:
                frame = _decoder.decode(body) if size <= _MAX_FRAME and self._answers else None
            except msgspec.DecodeError:
                frame = None
            if frame is None:
                self._fail()
                return
            answer = self._answers.popleft()
            if not answer.done():
                answer.set_result(frame)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail()

    def _fail(self) -> None:
        self._gone = True
        while self._answers:
            answer = self._answers.popleft()
            if not answer.done():
                answer.set_exception(EOFError())
                answer.exception()  # it is fetched by whoever waits for it, if anybody does


async def _in_sandbox(environment: Environment, call: PythonCall, what: str, said: dict[str, Any], folder: Path) -> Any:
    """Do what a function asked of its sandbox."""
    match what:
        case "exec":
            command = Command(
                argv=tuple(said["argv"]),
                stdin=said["stdin"],
                env={**call.env, **said["env"]},
                cwd=said["cwd"] or call.workdir,
                user=said["user"] or call.user,
                timeout_sec=said["timeout"],
            )
            done = await environment.exec(command)
            return {"exit_code": done.exit_code, "stdout": done.stdout, "stderr": done.stderr}
        case "upload":
            await environment.upload(Path(said["source"]), said["target"])
        case "download":
            await environment.download(said["source"], Path(said["target"]))
        case "read" | "write":
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                copy = Path(scratch) / "file"
                if what == "write":
                    copy.write_bytes(said["content"])
                    await environment.upload(copy, said["path"])
                    return None
                await environment.download(said["path"], copy)
                with copy.open("rb") as file:
                    return file.read(_MAX_READ)
        case "alive":
            return (await environment.exec(Command(argv=("true",), user=call.user))).exit_code == 0
    return None


def _remove(directory: str) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    for stream in ("stdout", "stderr"):
        Path(f"{directory}.{stream}").unlink(missing_ok=True)


def _error(answer: dict[str, Any], call: PythonCall) -> RolloutError:
    text = str(answer["text"])
    if answer["failure"] == "memory" and call.memory_bytes is not None:
        return VerifierError(f"{call.name or call.target} ran out of memory; it may use {call.memory_bytes / 2**20:g} MiB")
    return VerifierError(text if answer["failure"] == "rejected" else f"{call.name or call.target}: {text}")
