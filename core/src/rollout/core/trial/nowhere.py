"""The environment of a trial that has none."""

from __future__ import annotations

from pathlib import Path
from typing import Never

from rollout.core.errors import SandboxError
from rollout.core.protocols import Process
from rollout.core.types import DEFAULT_TRANSFER_LIMITS, Command, ExecResult, OutputSink, TransferLimits, TransferReport


class NoEnvironment:
    """Stands where an agent or a verifier expects a sandbox; whoever uses it learns that there is none."""

    async def exec(self, command: Command, sink: OutputSink | None = None) -> ExecResult:
        _refuse(f"run {command.argv[0]}")

    async def open(self, command: Command, sink: OutputSink | None = None) -> Process:
        _refuse(f"run {command.argv[0]}")

    async def upload(self, source: Path, target: str, *, owner: str | None = None) -> None:
        _refuse(f"upload {target}")

    async def download(self, source: str, target: Path, limits: TransferLimits = DEFAULT_TRANSFER_LIMITS) -> TransferReport:
        _refuse(f"download {source}")

    async def stop(self) -> None:
        pass


def _refuse(what: str) -> Never:
    raise SandboxError(f"cannot {what}: this trial has no environment; name one in the job's `environment: {{type: ...}}`")
