"""Running the `git` program: no prompts, no hooks, no shell, killed when nobody waits for it any more."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rollout.core.aio import run_shielded
from rollout.core.errors import TaskError

# Variables that tie git to one repository: a hook that runs Rollout has them set. The list is `git rev-parse --local-env-vars`
# without the two that carry a user's own settings.
_LOCAL_VARIABLES = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_CONFIG",
        "GIT_OBJECT_DIRECTORY",
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_GRAFT_FILE",
        "GIT_INDEX_FILE",
        "GIT_NO_REPLACE_OBJECTS",
        "GIT_REPLACE_REF_BASE",
        "GIT_PREFIX",
        "GIT_SHALLOW_FILE",
        "GIT_COMMON_DIR",
        "GIT_NAMESPACE",
    }
)

PROTOCOLS = ("https", "http", "ssh", "file")
"""What git may talk. Never `ext`, which runs commands."""

_SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.autocrlf": "false",
    "core.symlinks": "true",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "fetch.writeCommitGraph": "false",
    # A server that sends nothing for two minutes is given up; git itself waits for ever.
    "http.lowSpeedLimit": "1",
    "http.lowSpeedTime": "120",
}
_TOLD_BY = re.compile(r"^(fatal|error|ERROR|remote|ssh|Permission denied|Host key)\b")


# Notes which process it is (the line has its number and when it started), then becomes git: there is no moment at which git
# runs and nobody could find it.
_NOTE_AND_EXECUTE = 'read -r line < /proc/$$/stat && echo "$line" > "$1"; shift; exec "$@"'


class GitFailed(Exception):
    """git ended with an error; the text is the line of it that says why."""


def git_environment(environ: Mapping[str, str], *, offline: bool = False) -> dict[str, str]:
    """The user's variables (proxies, credentials helpers, ssh agent), without prompts or ties to a repository."""
    kept = {name: value for name, value in environ.items() if name not in _LOCAL_VARIABLES}
    return kept | {
        "GIT_TERMINAL_PROMPT": "0",
        "SSH_ASKPASS_REQUIRE": "never",
        "GIT_ALLOW_PROTOCOL": "none" if offline else ":".join(PROTOCOLS),
        "LC_ALL": "C",
    }


async def run_git(
    arguments: Sequence[str],
    *,
    offline: bool = False,
    environ: Mapping[str, str] = {},
    pid_file: Path | None = None,
) -> bytes:
    """Run git and return what it printed.

    Cancelling the call kills git and what it started. `pid_file` holds its process group while it runs, so that
    `kill_orphan` can end it after our own death.

    Raises:
        GitFailed: it ended with an error.
        TaskError: there is no git on this machine.
    """
    if shutil.which("git") is None:
        raise TaskError("git is not installed on this machine; tasks of a registry are fetched with it")
    settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
    noting = ("sh", "-c", _NOTE_AND_EXECUTE, "sh", str(pid_file)) if pid_file else ()
    # Files, not pipes: what git leaves running (the master of shared ssh connections) would keep a pipe open for ever.
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *noting,
                "git",
                *settings,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=git_environment(os.environ, offline=offline) | dict(environ),
                start_new_session=True,
            )
        )
        try:
            code = await (await asyncio.shield(starting)).wait()
        finally:
            await run_shielded(_end(starting))
            if pid_file is not None:
                pid_file.unlink(missing_ok=True)
        for file in (stdout, stderr):
            file.seek(0)
        if code:
            raise GitFailed(_reason(stderr.read()) or f"git {arguments[0]} ended with exit code {code}")
        return stdout.read()


async def _end(starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
    """Wait until the process is there if it is being started, and until it is gone if it is there."""
    process = await starting
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def kill_orphan(pid_file: Path) -> None:
    """End the git that a dead process of ours left running. Call it while holding the lock that git ran under."""
    try:
        noted = pid_file.read_text()
        pid, started = int(noted.partition(" ")[0]), _started(noted)
    except (OSError, ValueError):
        return
    if started and _started_now(pid) == started:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        while _started_now(pid) == started:  # noqa: ASYNC110 - it is not our child: nothing would wake us
            await asyncio.sleep(0.01)
    pid_file.unlink(missing_ok=True)


def _started_now(pid: int) -> str:
    try:
        return _started(Path(f"/proc/{pid}/stat").read_text())
    except OSError:
        return ""


def _started(stat: str) -> str:
    """When a process started, in clock ticks since boot, from its /proc/PID/stat: with the pid it names one process.

    Empty when it is dead.
    """
    fields = stat.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def _reason(stderr: bytes) -> str:
    """git's last line that says what went wrong, without `fatal:` and without credentials."""
    lines = [line.strip() for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    lines = [line for line in lines if "Could not read from remote repository" not in line] or lines
    telling = [line for line in lines if _TOLD_BY.match(line)] or lines
    if not telling:
        return ""
    return re.sub(r"://[^/@\s]+@", "://***@", re.sub(r"^(fatal|error): ", "", telling[-1]))
