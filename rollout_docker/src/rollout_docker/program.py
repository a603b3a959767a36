"""The docker command, for the two things that the engine's API alone cannot do: compose, and builds by BuildKit."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence

from rollout.core.aio import run_shielded
from rollout.core.capture import OutputCapture
from rollout.core.types import OutputSink, Stream
from rollout_docker.engine import Engine

_PASSED_ON = ("PATH", "HOME", "DOCKER_CONFIG", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_QUOTED_LINES = 20


def client_environ(engine: Engine) -> dict[str, str]:
    """Variables of the docker command: none of the user's own but those that it needs."""
    return {**{name: os.environ[name] for name in _PASSED_ON if name in os.environ}, **engine.client_environ}


async def run_program(argv: Sequence[str], environ: Mapping[str, str], *, sink: OutputSink | None = None) -> tuple[int, str]:
    """Run a program to its end: its exit code, and its output or the end of what it complained about.

    Cancelling the call kills it and its children.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=environ,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    capture = OutputCapture(sink=sink)
    try:
        await asyncio.gather(_feed(capture, "stdout", process.stdout), _feed(capture, "stderr", process.stderr))
        code = await process.wait()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)  # what the docker command runs is a child of it
            await run_shielded(process.wait())
    result = capture.result(code)
    text = (result.stdout if code == 0 else result.stderr or result.stdout).decode("utf-8", "replace").strip()
    return code, text if code == 0 else "\n    ".join(["", *text.splitlines()[-_QUOTED_LINES:]])


async def _feed(capture: OutputCapture, stream: Stream, reader: asyncio.StreamReader) -> None:
    while chunk := await reader.read(65536):
        capture.feed(stream, chunk)
