"""Running a script inside an environment: copied as a file, started with its own shebang, bash without one."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from pathlib import Path

from rollout.core.files import write_atomic
from rollout.core.protocols import Environment
from rollout.core.trial.paths import SCRIPTS
from rollout.core.types import Command, ExecResult, OutputSink


def interpreter(script: bytes) -> tuple[str, ...]:
    """The argv that runs a script of this content: its shebang's program and single argument, as Linux reads it, or bash.

    Starting the interpreter ourselves needs no execute bit and works on a file system mounted `noexec`.
    """
    first_line = script.split(b"\n", 1)[0]
    if not first_line.startswith(b"#!"):
        return ("bash",)
    program, _, argument = first_line[2:].strip().decode("utf-8", "replace").partition(" ")
    argument = argument.strip()
    if not program:
        return ("bash",)
    return (program, argument) if argument else (program,)


async def run_script(
    environment: Environment,
    text: str,
    *,
    record: Path,
    env: Mapping[str, str],
    cwd: str | None,
    user: str | None,
    sink: OutputSink,
) -> ExecResult:
    """Keep the script at `record` on the host, copy it into the environment and run it to its end."""
    data = text.encode("utf-8", "surrogateescape")
    write_atomic(record, data)
    record.chmod(0o755)
    target = posixpath.join(SCRIPTS, record.name)
    await environment.upload(record, target, owner=user)
    command = Command(argv=(*interpreter(data), target), env=env, cwd=cwd, user=user)
    return await environment.exec(command, sink)
