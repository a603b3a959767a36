"""The `apptainer` (or `singularity`) command: finding it and running it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rollout.core.aio import run_shielded
from rollout.core.capture import OutputCapture
from rollout.core.errors import SandboxError
from rollout.core.types import ExecResult, OutputSink, Stream

NAMES = ("apptainer", "singularity")
_VERSION_SEC = 60.0
_END_SEC = 10.0
_CHUNK = 1 << 16
_KEPT_BYTES = 64 * 1024
_QUOTED_LINES = 12
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NOISE = re.compile(r"(INFO|VERBOSE|DEBUG): ")

# Of the user's variables: what the command needs, and none that would change what a trial sees (APPTAINER_BIND and the like).
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "XDG_RUNTIME_DIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE")
_PASSED_SETTINGS = ("CACHEDIR", "CONFIGDIR", "DISABLE_CACHE")
_FETCHING = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "DOCKER_CONFIG")
_FETCHING_SETTINGS = ("DOCKER_USERNAME", "DOCKER_PASSWORD", "DOCKER_HOST", "NOHTTPS", "NO_HTTPS", "AUTHFILE")


class Program(NamedTuple):
    """A command that answers."""

    path: str
    version: str

    async def run(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path | None = None,
        tmp: Path | None = None,
        fetching: bool = False,
        sink: OutputSink | None = None,
    ) -> ExecResult:
        """Run it to its end. Cancelling ends it and everything it started.

        `tmp`: where it keeps what it works on. `fetching`: it may need the user's credentials and proxies.
        """
        process = await asyncio.create_subprocess_exec(
            self.path,
            *arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd or "/",
            env=_environ(tmp, fetching),
            start_new_session=True,
        )
        capture = OutputCapture(_KEPT_BYTES, sink)
        assert process.stdout is not None and process.stderr is not None
        reading = [
            asyncio.ensure_future(_feed("stdout", process.stdout, capture)),
            asyncio.ensure_future(_feed("stderr", process.stderr, capture)),
        ]
        try:
            code = await process.wait()
            # an instance that it leaves running keeps none of these open; something else that does is not waited for
            await asyncio.wait(reading, timeout=_END_SEC)
        except asyncio.CancelledError:
            await run_shielded(_end(process))
            raise
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
            process._transport.close()  # type: ignore[attr-defined]
        return capture.result(code if code >= 0 else 128 - code)


def find(wanted: str | None) -> Program:
    """The command that the job names, or the first that is installed.

    Raises:
        SandboxError: there is none, or it does not run; the text says what to do.
    """
    names = (wanted,) if wanted else NAMES
    path = next((found for found in map(shutil.which, names) if found), None)
    if path is None:
        looked = f"there is no command {wanted}" if wanted else "neither apptainer nor singularity is in PATH"
        raise SandboxError(
            f"type: apptainer: {looked}; on a cluster `module load apptainer` (or singularity) may bring it, elsewhere the "
            "package apptainer does; environment.options.program names one that is not in PATH"
        )
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_VERSION_SEC, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"type: apptainer: {path} does not run: {error}") from error
    if done.returncode != 0 or not done.stdout.strip():
        raise SandboxError(f"type: apptainer: {path} --version fails: {complaint(done.stderr) or f'exit {done.returncode}'}")
    return Program(path, done.stdout.strip().splitlines()[0])


def complaint(output: bytes | str) -> str:
    """What the command complained about, on one line, without its chatter."""
    text = output.decode("utf-8", "replace") if isinstance(output, bytes) else output
    lines = [" ".join(_COLOUR.sub("", line).split()) for line in text.splitlines()]
    told = [line for line in lines if line and not _NOISE.match(line)]
    fatal = [line for line in told if line.startswith(("FATAL", "ERROR"))]
    return "; ".join((fatal or told)[-_QUOTED_LINES:])[:2000]


def _environ(tmp: Path | None, fetching: bool) -> Mapping[str, str]:
    names = [*_PASSED, *_settings(_PASSED_SETTINGS)]
    if fetching:
        names += [*_FETCHING, *(name.lower() for name in _FETCHING), *_settings(_FETCHING_SETTINGS)]
    environ = {name: os.environ[name] for name in names if name in os.environ}
    if tmp is not None:
        environ.update(TMPDIR=str(tmp), APPTAINER_TMPDIR=str(tmp), SINGULARITY_TMPDIR=str(tmp))
    return environ


def _settings(names: Sequence[str]) -> list[str]:
    return [f"{program.upper()}_{name}" for program in NAMES for name in names]


async def _feed(stream: Stream, reader: asyncio.StreamReader, capture: OutputCapture) -> None:
    while chunk := await reader.read(_CHUNK):
        capture.feed(stream, chunk)


async def _end(process: asyncio.subprocess.Process) -> None:
    """TERM first: killed outright, the command leaves file system processes behind."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            async with asyncio.timeout(_END_SEC):
                await process.wait()
        except TimeoutError:
            continue
