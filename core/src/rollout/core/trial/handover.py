"""What is kept of an agent's environment when its work is done, and brought to a verifier that works in another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rollout.core.errors import CommandTimeoutError, SandboxError, TransferError
from rollout.core.protocols import Environment
from rollout.core.records import MAIN_SERVICE, Artifact, TrialSpec
from rollout.core.trial.artifacts import KeptArtifact, bring_artifacts, keep_artifacts, programs_brought, service_of
from rollout.core.trial.deadlines import deadline, foreign
from rollout.core.trial.isolation import NOBODY
from rollout.core.trial.paths import LOGS
from rollout.core.types import Command

COLLECT_SEC = 600.0
"""How long files may take from or to an environment."""

Warn = Callable[[str], None]


async def run_collect_hooks(spec: TrialSpec, environment: Environment, warn: Warn) -> None:
    """Run the task's `[[verifier.collect]]` commands; one that fails is a warning.

    Raises:
        SandboxError and its kinds: the environment is lost.
    """
    for hook in spec.task.collect:
        command = Command(
            argv=("sh", "-c", hook.command),
            cwd=spec.environment.workdir if hook.service == MAIN_SERVICE else None,
            user=None if hook.user is None else str(hook.user),
            timeout_sec=hook.timeout_sec,
        )
        try:
            with foreign(SandboxError, f"collecting with `{hook.command}`"):
                result = await service_of(environment, hook.service).exec(command)
            if result.exit_code:
                warn(f"collecting with `{hook.command}`: exit code {result.exit_code}")
        except (CommandTimeoutError, TransferError) as error:
            warn(f"collecting with `{hook.command}`: {error}")


async def keep_declared(
    environment: Environment, artifacts: Sequence[Artifact], folder: Path, workdir: str, warn: Warn
) -> list[KeptArtifact]:
    """Copy artifacts into a folder of the host; what is missing or could not be kept is a warning, and told in the list.

    Raises:
        TransferError: nothing can be copied, or not within COLLECT_SEC.
    """
    async with deadline(COLLECT_SEC, TransferError, "keeping the artifacts"):
        with foreign(TransferError, "keeping the artifacts"):
            kept = await keep_artifacts(environment, artifacts, folder, workdir)
    for item in kept:
        if item.status == "failed":
            warn(f"artifact {item.source} could not be kept: {item.error}")
        elif item.status == "missing":
            warn(f"artifact {item.source} is not in the agent's environment")
        elif item.skipped_count:
            path, reason = item.skipped[0]
            more = f" and {item.skipped_count - 1} more" if item.skipped_count > 1 else ""
            warn(f"artifact {item.source}: {path}{more} left out: {reason}")
    return kept


async def bring_work(
    environment: Environment, kept: Sequence[KeptArtifact], folder: Path, logs: Path, *, root: str | None, warn: Warn
) -> None:
    """Bring what was kept of the agent's environment to the verifier's: its logs, and the artifacts in `folder`.

    Raises:
        SandboxError and its kinds
    """
    owner = None if root is None else NOBODY
    for name in ("agent", "artifacts"):
        source = logs / name
        if source.is_dir() and not source.is_symlink():
            await environment.upload(source, f"{LOGS}/{name}", owner=owner)
    await bring_artifacts(environment, kept, folder, root=root, owner=owner)
    for path in await programs_brought(environment, kept):
        warn(f"{path}, where the verifier looks for programs, came from the agent")
