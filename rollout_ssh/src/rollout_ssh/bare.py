"""`mode: host`: the bare machine, leased to one trial. Commands, files, the end."""

from __future__ import annotations

import asyncio
import errno
import posixpath
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import paramiko

from rollout.core.aio import joined, run_shielded
from rollout.core.archive import pack, unpack
from rollout.core.archive.transfer import Inflow, Outflow, Owners, both_sides, check_path, said
from rollout.core.capture import OutputCapture
from rollout.core.errors import HostLostError, TransferError
from rollout.core.live import in_time
from rollout.core.types import DEFAULT_TRANSFER_LIMITS, Command, ExecResult, OutputSink, Stream, TransferLimits, TransferReport
from rollout_ssh import scripts
from rollout_ssh.bare_command import BareCommand, BareProcess
from rollout_ssh.machine import LeasedMachine
from rollout_ssh.sending import send

_MISSING = 3


class BareEnvironment:
    """The Environment of `type: ssh`, `mode: host`."""

    def __init__(self, machine: LeasedMachine, ended: Callable[[bool], None]) -> None:
        """`ended` is called once, when it has stopped: whether the machine did well."""
        self._machine = machine
        self._ended = ended
        self._owners = Owners(self.exec)
        self._stopping: asyncio.Task[None] | None = None

    def become(self, env: Mapping[str, str], workdir: str, user: str | None, file_bytes: int | None) -> None:
        """What commands have unless they say otherwise; `file_bytes` is the largest file that they may write."""
        machine = self._machine
        machine.env, machine.workdir, machine.user, machine.file_bytes = env, workdir, user, file_bytes

    @property
    def enforced(self) -> tuple[str, ...]:
        """Of the task's limits of `memory`, `cpu` and `pids`, those that hold."""
        return self._machine.holder.enforced

    async def exec(self, command: Command, sink: OutputSink | None = None) -> ExecResult:
        capture = OutputCapture(command.max_output_bytes, sink)
        running = BareCommand(self._machine, capture.feed)
        async with in_time(command, running.kill):
            await running.run(command, stdin=command.stdin or b"")
            code = await asyncio.shield(running.done)
        return capture.result(code, out_of_memory=running.out_of_memory)

    async def open(self, command: Command, sink: OutputSink | None = None) -> BareProcess:
        process = BareProcess(self._machine, sink)
        try:
            await process.running.run(command, stdin=None)
        except asyncio.CancelledError:
            await run_shielded(process.running.kill())
            raise
        return process

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
        self._machine.check()
        ids = await self._owners.ids(owner)
        name = posixpath.normpath(target).strip("/") or "."
        complaint = OutputCapture(4096)
        running = BareCommand(self._machine, complaint.feed)

        def work(channel: paramiko.Channel) -> None:
            out = Outflow(lambda data: send(channel, data))
            try:
                pack(source, out, name=name, owner=ids, mode=mode, keep=keep)
                out.flush()
                channel.shutdown_write()
            except OSError:
                return  # the other side has stopped and says why

        code, _ = await self._transfer(running, scripts.tar_in(), work)
        if code != 0:
            raise TransferError(f"cannot copy {source} to {target}: {said(complaint)}")

    async def download(self, source: str, target: Path, limits: TransferLimits = DEFAULT_TRANSFER_LIMITS) -> TransferReport:
        check_path(source)
        source = posixpath.normpath(source)
        folder, name = posixpath.split(source)
        complaint = OutputCapture(1 << 20)
        loop = asyncio.get_running_loop()
        stream = Inflow(lambda size: loop.call_soon_threadsafe(running.resume))

        def feed(kind: Stream, chunk: bytes) -> None:
            if kind == "stdout":
                stream.feed(chunk)
            else:
                complaint.feed(kind, chunk)

        running = BareCommand(self._machine, feed)
        running.has_room = lambda: stream.has_room
        running.done.add_done_callback(lambda done: stream.end())

        def work(channel: paramiko.Channel) -> TransferReport | TransferError:
            try:
                return unpack(stream, target, limits)
            except TransferError as error:
                return error
            finally:
                stream.discard()

        argv = scripts.tar_out(folder or "/", name or ".", limits.max_file_bytes)
        code, outcome = await self._transfer(running, argv, work)
        if code == _MISSING:
            raise FileNotFoundError(errno.ENOENT, "no such file or folder in the environment", source)
        *large, words = complaint.result(0).stderr.split(b"\0")
        if isinstance(outcome, TransferReport):
            left_out = [
                (path.decode("utf-8", "backslashreplace").removeprefix("./"), f"larger than {limits.max_file_bytes} bytes")
                for path in large
            ]
            skipped = (*outcome.skipped, *left_out)
            return msgspec.structs.replace(outcome, skipped=skipped[:100], skipped_count=outcome.skipped_count + len(left_out))
        why = words.decode("utf-8", "replace").strip() if code and words.strip() else str(outcome)
        raise TransferError(f"cannot copy {source} out of the environment: {why}") from outcome

    async def kill_everything(self) -> None:
        """Every process that was started here; not those of the machine, which `kill -9 -1` would reach."""
        machine = self._machine
        if machine.gone is None:
            await machine.shell(scripts.kill_all(machine.holder.token, machine.holder.groups), "rollout-kill")

    def disown(self) -> None:
        """Whoever made it gives its slot back himself."""
        self._ended = lambda worked: None

    async def stop(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await run_shielded(joined(self._stopping))

    async def _stop(self) -> None:
        worked = False
        try:
            await self._machine.close()
            worked = True
        except HostLostError:
            return  # the machine hears of it from the end of the connection, or from our silence
        finally:
            self._ended(worked)

    async def _transfer(self, running: BareCommand, argv: list[str], work: Callable[[paramiko.Channel], Any]) -> tuple[int, Any]:
        """Run one side of a transfer in a thread and the other on the host; the exit code there, the outcome here."""

        async def end(outcome: Any) -> int:
            if isinstance(outcome, TransferReport) and not running.done.done():
                running.close_soon()  # all that is wanted has come
                await asyncio.wait([running.done], timeout=1.0)
                if not running.done.done():
                    await running.kill()
                    return 0
            return await asyncio.shield(running.done)

        await running.run_to_carry(argv)
        thread = asyncio.ensure_future(self._machine.blocking(work, running.channel))
        return await both_sides(thread, end, running.kill)
