"""The process that calls Python functions for verifiers: `main([SOCKET, PARENT])`, both numbers.

It says that it is there, then gets calls over a socket, one at a time, and answers each with what the function returned or
how it failed. Standard output and error are files of the parent. It holds nothing of Rollout but this module: the parent's
variables, its open files and its memory are out of reach. Frames are four bytes of length and that much msgpack.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, BinaryIO

import msgspec

_PR_SET_PDEATHSIG = 1
_MAX_TRACEBACK = 20_000
_MAX_FILE_BYTES = 2**30  # what is printed is a file too, and nobody reads it before the end of the call

_channel: socket.socket | None = None
_input: BinaryIO | None = None


class SandboxError(RuntimeError):
    """What the sandbox was asked for did not work."""


class Rejected(Exception):
    """No verdict came of a call, for a reason that a user can understand without a traceback."""


class Sandbox:
    """The live environment of a trial, as a Python verifier sees it. Every method waits for its answer."""

    def exec(self, command: str | Sequence[str], timeout: float | None = None, user: str | None = None) -> str:
        """Run a command (text goes to `sh -c`) and return what it printed.

        Raises:
            SandboxError: it exited with another code than 0, or ran into `timeout`.
        """
        done = self.run(command, timeout=timeout, user=user)
        if done["exit_code"] != 0:
            said = (done["stderr"] or done["stdout"]).strip()[-2000:]
            raise SandboxError(f"exit code {done['exit_code']}: {said}")
        return str(done["stdout"])

    def run(
        self,
        command: str | Sequence[str],
        *,
        timeout: float | None = None,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
    ) -> dict[str, Any]:
        """Run a command to its end: `{"exit_code": 0, "stdout": "...", "stderr": "..."}`, whatever the code is."""
        argv = ["sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
        data = stdin.encode() if isinstance(stdin, str) else stdin
        answer = _ask("exec", argv=argv, timeout=timeout, user=user, cwd=cwd, env=dict(env or {}), stdin=data)
        return {
            "exit_code": answer["exit_code"],
            "stdout": answer["stdout"].decode("utf-8", "replace"),
            "stderr": answer["stderr"].decode("utf-8", "replace"),
        }

    def read_file(self, path: str) -> bytes:
        """The content of a file, at most 64 MiB."""
        content: bytes = _ask("read", path=path)
        return content

    def write_file(self, path: str, content: bytes | str) -> None:
        _ask("write", path=path, content=content.encode() if isinstance(content, str) else content)

    def upload(self, source: str | os.PathLike[str], target: str) -> None:
        """Copy a file or a folder from this machine to `target`."""
        _ask("upload", source=os.path.abspath(source), target=target)

    upload_file = upload_dir = upload

    def download(self, source: str, target: str | os.PathLike[str]) -> None:
        """Copy a file or a folder to `target` on this machine."""
        _ask("download", source=source, target=os.path.abspath(target))

    def is_alive(self) -> bool:
        return bool(_ask("alive"))

    def close(self) -> None:
        """Nothing: the trial stops its environment itself."""


def main(arguments: list[str]) -> None:
    """Answer calls until the parent closes the socket."""
    global _channel, _input
    number, parent = map(int, arguments)
    # The parent may be killed at any time; nothing of a verifier must go on after it.
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    sys.dont_write_bytecode = True  # a task's folder stays as it is: its digest says whether a trial still counts
    _channel = socket.socket(fileno=number)
    _channel.set_inheritable(False)
    _input = _channel.makefile("rb")
    calls = _Calls()
    _send(msgspec.msgpack.encode({"ready": True}))
    while True:
        request = _receive()
        if request is None:
            break
        _send(calls.answer(request))
    os._exit(0)  # threads that a verifier left behind do not matter


class _Calls:
    """The calls of this process, one after the other."""

    def __init__(self) -> None:
        self._search: list[str] = []
        self._start_bytes = _address_space()
        self._memory_bytes: int | None = -1
        self._functions: dict[str, Any] = {}

    def answer(self, request: dict[str, Any]) -> bytes:
        """The frame that answers a call."""
        try:
            self._limit(request["memory_bytes"])
            self._look_in(request["search"])
            target = request["target"]
            function = self._functions.get(target)
            if function is None:
                function = _find(target)
                if target.startswith("rollout"):  # what others bring may change with the folders of the search
                    self._functions[target] = function
            value = function(**request["arguments"])
            answer = msgspec.msgpack.encode({"value": value})
        except MemoryError:
            self._limit(None)
            answer = _failure("memory", "ran out of memory", traceback.format_exc())
        except (KeyboardInterrupt, SystemExit) as error:
            answer = _failure("exit", f"ended its process: {type(error).__name__} {error}", traceback.format_exc())
        except Exception as error:  # noqa: BLE001 - the outermost boundary of somebody else's function
            answer = _failure("rejected" if isinstance(error, Rejected) else "raised", _described(error), traceback.format_exc())
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                continue  # closed, or the disk is full: what was printed is lost, the answer is not
        return _with_printed(answer)

    def _limit(self, memory_bytes: int | None) -> None:
        if memory_bytes == self._memory_bytes:
            return
        self._memory_bytes = memory_bytes
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        soft = hard if memory_bytes is None else self._start_bytes + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))

    def _look_in(self, search: list[str]) -> None:
        """Put other folders first in `sys.path`; what was imported from those before is forgotten, for names repeat."""
        if search == self._search:
            return
        old = tuple(f"{folder}/" for folder in self._search)
        sys.path[:] = [*search, *(path for path in sys.path if path not in self._search)]
        if old:
            for name, module in list(sys.modules.items()):
                if (getattr(module, "__file__", None) or "").startswith(old):
                    del sys.modules[name]
        self._search = search
        importlib.invalidate_caches()


def _with_printed(answer: bytes) -> bytes:
    """The answer with how much was printed when it was given: what is printed after that is another call's."""
    try:
        printed = [os.fstat(1).st_size, os.fstat(2).st_size]
    except OSError:
        return answer  # a verifier has closed them
    return msgspec.msgpack.encode({**msgspec.msgpack.decode(answer), "printed": printed}) if any(printed) else answer


def _find(target: str) -> Any:
    module, _, name = target.partition(":")
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _described(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, Rejected):
        return text
    place = next((frame for frame in reversed(traceback.extract_tb(error.__traceback__)) if frame.filename != __file__), None)
    told = isinstance(error, SyntaxError)  # its text names file and line
    where = f" ({os.path.basename(place.filename)}:{place.lineno})" if place and not told else ""
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"


def _failure(kind: str, text: str, trace: str) -> bytes:
    return msgspec.msgpack.encode({"failure": kind, "text": text[:4000], "traceback": trace[-_MAX_TRACEBACK:]})


def _ask(what: str, **arguments: Any) -> Any:
    """Have the parent do something in the sandbox."""
    _send(msgspec.msgpack.encode({"ask": what, "arguments": arguments}))
    answer = _receive()
    if answer is None:
        raise SandboxError("the trial is over")
    if "failure" in answer:
        raise SandboxError(answer["failure"])
    return answer["value"]


def _send(data: bytes) -> None:
    assert _channel is not None
    _channel.sendall(len(data).to_bytes(4, "big") + data)


def _receive() -> dict[str, Any] | None:
    head = _read(4)
    if head is None:
        return None
    body = _read(int.from_bytes(head, "big"))
    if body is None:
        return None
    request: dict[str, Any] = msgspec.msgpack.decode(body)
    return request


def _read(size: int) -> bytes | None:
    assert _input is not None
    data = _input.read(size)
    return data if len(data) == size else None


def _address_space() -> int:
    """Bytes that the process has mapped; 0 where the system does not tell."""
    if not os.path.exists("/proc/self/statm"):
        return 0
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def call_by_name(function: Any, known: Mapping[str, Any]) -> Any:
    """Call a verifier with what its parameters are called after; two that are called otherwise are task and episode.

    Raises:
        Rejected: it wants something that there is not.
    """
    try:
        positionals, keywords = _parameters(function, tuple(known))
    except TypeError:  # it cannot be hashed
        positionals, keywords = _parameters.__wrapped__(function, tuple(known))
    return function(*[known[name] for name in positionals], **{name: known[name] for name in keywords})


@lru_cache(maxsize=64)
def _parameters(function: Any, known: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of what is passed by position, and by name."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return _BY_PLACE
    return parameters_of(signature, known, getattr(function, "__name__", "the verifier"))


_BY_PLACE: tuple[tuple[str, ...], tuple[str, ...]] = ("task", "episode"), ()


def parameters_of(signature: inspect.Signature, known: tuple[str, ...], called: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of what a function of that signature is passed by position, and by name.

    Raises:
        Rejected: it wants something that there is not.
    """
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = [p.name for p in parameters if p.name in known and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not named and len(positional) >= 2 and len(required) <= 2 and all(p in positional[:2] for p in required):
        return _BY_PLACE
    missing = [p.name for p in required if p.name not in known]
    if missing:
        raise Rejected(
            f"{called} wants `{'`, `'.join(missing)}`; "
            f"there are {', '.join(known)}" + ("" if "sandbox" in known else " (no environment, so no `sandbox`)")
        )
    if not named and takes_any:
        named = ["task", "episode"]
    positionals = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.name in known)
    return positionals, tuple(name for name in named if name not in positionals)
