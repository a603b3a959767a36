"""Inspect's sandbox interface over any `Environment` of ours, so that Inspect's own checks can be run against it.

Files are read and written by commands, as the sandbox's user, so that permissions count.
"""

from __future__ import annotations

from typing import Any, Literal, overload

from inspect_ai.util import ExecResult, OutputLimitExceededError, SandboxEnvironment, SandboxEnvironmentLimits

from rollout.core.errors import CommandTimeoutError
from rollout.core.protocols import Environment
from rollout.core.types import Command

# $1 is the file. The exit code says what is wrong with it.
_WRITE = """
mkdir -p -- "$(dirname -- "$1")" || exit 22
[ ! -d "$1" ] || exit 21
[ ! -e "$1" ] || [ -w "$1" ] || exit 22
cat > "$1" || exit 22
"""
_READ = """
[ ! -d "$1" ] || exit 21
[ -e "$1" ] || exit 20
[ -r "$1" ] || exit 22
[ "$(stat -c %s -- "$1")" -le "$2" ] || exit 23
cat -- "$1"
"""
_NOT_EXECUTABLE = 126


class RolloutSandbox(SandboxEnvironment):
    """One started environment. `user` is whom commands run as that name nobody; None is the environment's own user."""

    def __init__(self, environment: Environment, user: str | None) -> None:
        super().__init__()
        self._environment = environment
        self._user = user

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        command = Command(
            argv=tuple(cmd),
            stdin=input.encode() if isinstance(input, str) else input,
            cwd=cwd,
            env=env or {},
            user=user or self._user,
            timeout_sec=timeout,
        )
        try:
            done = await self._environment.exec(command)
        except CommandTimeoutError as error:
            raise TimeoutError(str(error)) from error
        if done.exit_code == _NOT_EXECUTABLE and user is None:  # with a user it may be the user that there is not
            raise PermissionError(f"{cmd[0]}: {done.stderr.decode()}")
        return ExecResult(done.exit_code == 0, done.exit_code, done.stdout.decode(), done.stderr.decode())

    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode() if isinstance(contents, str) else contents
        done = await self._environment.exec(Command(argv=("sh", "-c", _WRITE, "sh", file), stdin=data, user=self._user))
        _check(file, done.exit_code, done.stderr)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        done = await self._environment.exec(
            Command(argv=("sh", "-c", _READ, "sh", file, str(limit)), user=self._user, max_output_bytes=limit)
        )
        _check(file, done.exit_code, done.stderr)
        return done.stdout.decode() if text else done.stdout

    @classmethod
    async def sample_cleanup(cls, *arguments: Any) -> None:
        """Environments are stopped by whoever started them."""


def _check(file: str, exit_code: int, stderr: bytes) -> None:
    if exit_code == 23:
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
    faults = {
        20: FileNotFoundError(f"{file} is not there"),
        21: IsADirectoryError(f"{file} is a directory"),
        22: PermissionError(file),
    }
    if fault := faults.get(exit_code):
        raise fault
    assert exit_code == 0, stderr.decode()
