"""One instance: starting it, taking the place of its init, and ending it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import socket
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollout.core.aio import Blocking, run_shielded
from rollout.core.errors import ResourceError, SandboxError, StartError, TeardownError
from rollout.core.sandbox.environment import SandboxEnvironment
from rollout.core.sandbox.inside import cgroups, channel, monitor
from rollout.core.sandbox.launch import launch_inside
from rollout.core.sandbox.oom import OomCounter
from rollout.core.types import Struct
from rollout_apptainer import namespaces
from rollout_apptainer.program import Program, complaint

_END_SEC = 30.0
_FULL = re.compile(r"no space left|cannot allocate memory|resource temporarily unavailable|disk quota", re.I)
_HINTS = (
    (re.compile(r"fuse", re.I), "a file system in user space could not be mounted: /dev/fuse must be there for every user"),
    (
        re.compile(r"squashfuse|unsquash", re.I),
        "without squashfuse a SIF file cannot be mounted: install it, or use a sandbox folder",
    ),
    (re.compile(r"newuidmap|subuid|user namespace|userns", re.I), "user namespaces are not fully set up for this user"),
)


class Wanted(Struct, frozen=True, kw_only=True):
    """What an instance is to be."""

    name: str
    image: str
    folder: Path
    """Its own folder on this machine's disk; made here, and removed when it ends."""
    record: Path | None = None
    """A file that says, while there is the instance, that and where it is."""
    about: dict[str, str] = {}
    """For `record`: which trial it is."""
    arguments: tuple[str, ...] = ()
    limits: dict[str, Any] = {}
    groups: dict[str, list[str]] = {}
    env: Mapping[str, str] = {}
    user: str | None = None
    workdir: str = "/"
    max_file_bytes: int = 0
    only_root: str | None = None


class Instances:
    """Starts and ends instances by one command."""

    def __init__(self, program: Program, blocking: Blocking) -> None:
        self._program = program
        self._blocking = blocking

    async def start(
        self,
        wanted: Wanted,
        released: Callable[[], Awaitable[None]] | None = None,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> SandboxEnvironment:
        """Start an instance and wait until it accepts commands. Cancelling leaves nothing behind.

        `released` is called when it has ended; `prepare` when its folder is there.

        Raises:
            StartError, ResourceError
        """
        starting = asyncio.ensure_future(self._start(wanted, released, prepare))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await run_shielded(_undo(starting))
            raise

    async def names(self) -> list[str]:
        """Of all this user's instances on this machine."""
        done = await self._program.run(["-s", "instance", "list", "--json"])
        if done.exit_code != 0:
            raise SandboxError(f"{self._program.path} instance list: {complaint(done.stderr)}")
        return [str(instance["instance"]) for instance in json.loads(done.stdout or b"{}").get("instances") or []]

    async def end(self, name: str) -> None:
        """End an instance by its name; fine when there is none."""
        for _ in range(2):
            done = await self._program.run(["-s", "instance", "stop", "--signal", "KILL", name])
            if done.exit_code == 0 or name not in await self.names():
                return
        raise TeardownError(f"the instance {name} cannot be stopped: {complaint(done.stderr)}")

    async def _start(
        self, wanted: Wanted, released: Callable[[], Awaitable[None]] | None, prepare: Callable[[], Awaitable[None]] | None
    ) -> SandboxEnvironment:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        running = _Running(self, self._blocking, wanted, released)
        try:
            with theirs:
                running.server = await self._blocking(running.open, theirs)
            if prepare is not None:
                await prepare()
            pid = await self._launch(wanted)
            running.monitor = await self._blocking(_watch_parent, pid, wanted.folder)
            channel.send(ours, running.config(pid))
        except BaseException as error:
            ours.close()
            await run_shielded(running.end())
            if isinstance(error, (OSError, json.JSONDecodeError)):
                kind = ResourceError if _FULL.search(str(error)) else StartError
                raise kind(f"the instance {wanted.name} does not start: {error}") from error
            raise
        environment = SandboxEnvironment(
            ours,
            self._blocking,
            OomCounter(wanted.groups, wanted.name),
            running.end,
            refused=lambda answer: StartError(_refusal(wanted.name, answer)),
            only_root=wanted.only_root,
        )
        await environment.ready()
        return environment

    async def _launch(self, wanted: Wanted) -> int:
        """The process that is the container's first, as this machine counts."""
        pid_file = wanted.folder / "pid"
        arguments = ["-s", "instance", "start", *wanted.arguments, "--pid-file", str(pid_file), wanted.image, wanted.name]
        done = await self._program.run(arguments, tmp=wanted.folder)
        if done.exit_code != 0:
            said = complaint(done.stderr) or complaint(done.stdout) or f"exit code {done.exit_code}"
            hint = next((f" ({hint})" for pattern, hint in _HINTS if pattern.search(said)), "")
            kind = ResourceError if _FULL.search(said) else StartError
            raise kind(f"an instance of {wanted.image} does not start: {said}{hint}")
        return int(await self._blocking(pid_file.read_text))


class _Running:
    """What there is of an instance outside it."""

    def __init__(
        self, instances: Instances, blocking: Blocking, wanted: Wanted, released: Callable[[], Awaitable[None]] | None
    ) -> None:
        self._instances = instances
        self._blocking = blocking
        self._wanted = wanted
        self._released = released
        self.server: subprocess.Popen[bytes] | None = None
        self.monitor: int | None = None

    def open(self, control: socket.socket) -> subprocess.Popen[bytes]:
        wanted = self._wanted
        (wanted.folder / "overlay").mkdir(mode=0o700, parents=True)
        if wanted.record is not None:
            wanted.record.parent.mkdir(parents=True, exist_ok=True)
            said = {**wanted.about, "host": socket.gethostname(), "folder": str(wanted.folder)}
            wanted.record.write_text(json.dumps(said))
        with (wanted.folder / "server.log").open("ab") as log:
            return launch_inside("entered", control, log)

    def config(self, pid: int) -> dict[str, Any]:
        wanted = self._wanted
        return {
            "pid": pid,
            "name": wanted.name,
            "groups": wanted.groups,
            "limits": wanted.limits,
            "env": dict(wanted.env),
            "user": wanted.user,
            "workdir": wanted.workdir,
            "max_file_bytes": wanted.max_file_bytes,
        }

    async def end(self) -> None:
        """The socket's end is closed: wait until nothing is left, and see to it otherwise.

        Raises:
            TeardownError
        """
        wanted = self._wanted
        try:
            ended = await self._blocking(self._wait)
            if not ended or wanted.name in await self._still_there():
                await self._instances.end(wanted.name)
            await self._blocking(namespaces.remove, [wanted.folder])
            if wanted.record is not None:
                await self._blocking(wanted.record.unlink, missing_ok=True)
            await self._blocking(cgroups.remove, cgroups.folders(wanted.groups, wanted.name))
        except OSError as error:
            raise TeardownError(f"the instance {wanted.name} leaves something behind: {error}") from error
        finally:
            if self.monitor is not None:
                os.close(self.monitor)
                self.monitor = None
            if self._released is not None:
                await self._released()

    async def _still_there(self) -> list[str]:
        """Asked only when it is not known that it has ended: the answer takes a while."""
        if self.monitor is not None and monitor.ended(self.monitor, 0):
            return []
        return await self._instances.names()

    def _wait(self) -> bool:
        """Whether the instance has ended by itself, once its server has."""
        if self.server is not None:
            try:
                self.server.wait(_END_SEC)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
        return self.monitor is None or monitor.ended(self.monitor, _END_SEC)


def _refusal(name: str, answer: Mapping[str, Any]) -> str:
    text = f"commands cannot be run in the instance {name}: {answer['error']}"
    if answer.get("errno") in (errno.EPERM, errno.EACCES):
        text += (
            " (this user may not enter its namespaces: a set-uid Apptainer made them, or a security module forbids it; name an "
            "Apptainer that is not set-uid in environment.options.program)"
        )
    return text


def _watch_parent(pid: int, folder: Path) -> int:
    try:
        return monitor.watch_parent(pid, str(folder))
    except (OSError, IndexError) as error:
        raise StartError(f"the instance ended at once: {error}") from error


def wait_for_end(folder: Path) -> None:
    """Wait until the instance whose folder this is has unmounted its file systems, after its first process was killed. Blocks."""
    descriptor = monitor.watched(str(folder))
    if descriptor is not None:
        monitor.ended(descriptor, _END_SEC)
        os.close(descriptor)


async def _undo(starting: asyncio.Task[SandboxEnvironment]) -> None:
    """Let a start that nobody wants any more come to its end, and remove what it made."""
    try:
        environment = await starting
    except SandboxError:
        return
    await environment.stop()


def owned(names: Sequence[str], prefix: str) -> list[str]:
    """Of these names, those that begin so and go on as names of instances do."""
    return [name for name in names if re.fullmatch(re.escape(prefix) + "[0-9a-f]{12}", name)]
