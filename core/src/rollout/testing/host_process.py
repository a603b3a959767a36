"""A program on this machine as a Process, for fake sandboxes: what speaks over standard streams needs no more."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping

from rollout.core.types import Command, OutputSink


class HostProcess:
    """Started by `start_on_host`, in a session of its own."""

    def __init__(self, process: asyncio.subprocess.Process, sink: OutputSink | None) -> None:
        self._process = process
        self._stderr = asyncio.ensure_future(self._read_stderr(sink))

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except ConnectionError:
            pass  # it has closed its input; its end is seen on its output

    async def close_stdin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def output(self) -> AsyncIterator[bytes]:
        assert self._process.stdout is not None
        while chunk := await self._process.stdout.read(1 << 16):
            yield chunk

    async def wait(self) -> int:
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    async def kill(self) -> None:
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._stderr
        self._process._transport.close()  # type: ignore[attr-defined]  # pipes that a surviving child holds open

    async def _read_stderr(self, sink: OutputSink | None) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(1 << 16):
            if sink is not None:
                sink("stderr", chunk)


async def start_on_host(command: Command, sink: OutputSink | None, environ: Mapping[str, str]) -> HostProcess:
    """Start the command here, as this user; of its working directory only one that exists is used."""
    pipe = asyncio.subprocess.PIPE
    cwd = command.cwd if command.cwd is not None and os.path.isdir(command.cwd) else None
    env = {**environ, **command.env}
    process = await asyncio.create_subprocess_exec(
        *command.argv, stdin=pipe, stdout=pipe, stderr=pipe, cwd=cwd, env=env, start_new_session=True
    )
    return HostProcess(process, sink)
