"""What a task asks for inside its environment before the agent is installed: files, a script, commands.

rLLM's order: `environment/files/` into the working directory, `environment/setup.sh`, then `setup_commands`. Where rLLM goes on
after a failure, the trial ends with a start error here: an environment that is not what the task says scores nothing.
"""

from __future__ import annotations

from pathlib import Path

from rollout.core.errors import StartError
from rollout.core.protocols import Environment
from rollout.core.records import TrialSpec
from rollout.core.trial.isolation import OWN_USER
from rollout.core.trial.script import interpreter
from rollout.core.types import Command, OutputSink

_DEFAULT_WORKDIR = "/workspace"
_QUOTED_BYTES = 2000
_SCRIPT = "/tmp/rollout/setup.sh"


async def set_up_task(environment: Environment, spec: TrialSpec, root: str | None, sink: OutputSink) -> None:
    """Copy and run what the task's spec names.

    Raises:
        StartError: a command failed; the text quotes the end of what it printed.
    """
    setup, workdir = spec.task.setup, spec.environment.workdir
    if setup.files is not None:
        # At these levels the agent's user may not be there yet, and gets the working directory afterwards.
        owner = root if spec.isolation in OWN_USER else spec.agent.user
        await environment.upload(Path(setup.files), workdir or setup.workdir or _DEFAULT_WORKDIR, owner=owner)
    if setup.script is not None:
        script = Path(setup.script)
        await environment.upload(script, _SCRIPT, owner=root)
        await _run(environment, (*interpreter(script.read_bytes()), _SCRIPT), "environment/setup.sh", workdir, root, sink)
    for number, command in enumerate(setup.commands, start=1):
        await _run(environment, ("sh", "-c", command), f"setup command {number} ({command[:80]})", workdir, root, sink)


async def _run(
    environment: Environment, argv: tuple[str, ...], what: str, workdir: str | None, root: str | None, sink: OutputSink
) -> None:
    done = await environment.exec(Command(argv=argv, cwd=workdir, user=root), sink)
    if done.exit_code != 0:
        said = (done.stderr or done.stdout)[-_QUOTED_BYTES:].decode("utf-8", "replace").strip()
        raise StartError(f"{what} exited with code {done.exit_code}{f': {said}' if said else ''}")
