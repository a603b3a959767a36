"""The sandbox of a trial as a synchronous flow sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any, TypeVar

from rollout.core.errors import SandboxError
from rollout.core.protocols import AgentContext
from rollout.core.types import Command, ExecResult

T = TypeVar("T")


class FlowSandbox:
    """rLLM's sandbox protocol over a trial's environment; for threads other than the event loop's."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()

    def exec(self, command: str, timeout: float | None = None, user: str | None = None) -> str:
        """Run a shell command and return what it printed.

        Raises:
            SandboxError: it exited with another code than 0, ran into `timeout` (seconds), or the sandbox is gone.
        """
        context = self._context
        asked = Command(
            argv=("sh", "-c", command), env=context.env, cwd=context.workdir, user=user or context.user, timeout_sec=timeout
        )
        done: ExecResult = self._wait(context.environment.exec(asked, context.sink))
        if done.exit_code != 0:
            said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-2000:]
            raise SandboxError(f"exit code {done.exit_code}: {said}")
        return done.stdout.decode("utf-8", "replace")

    def upload_file(self, local_path: str, remote_path: str) -> None:
        self._wait(self._context.environment.upload(Path(local_path), remote_path, owner=self._context.user))

    def upload_dir(self, local_path: str, remote_path: str) -> None:
        self._wait(self._context.environment.upload(Path(local_path), remote_path, owner=self._context.user))

    def download(self, remote_path: str, local_path: str) -> None:
        self._wait(self._context.environment.download(remote_path, Path(local_path)))

    def is_alive(self) -> bool:
        """Whether a command can be run."""
        try:
            self.exec("true", timeout=30)
        except (SandboxError, FutureTimeoutError):
            return False
        return True

    def close(self) -> None:
        """Nothing: the trial stops what it started."""

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
