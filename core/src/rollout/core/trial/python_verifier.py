"""What a Python verifier is told about a trial, as plain data for the process that calls it."""

from __future__ import annotations

from typing import Any

from rollout.core.protocols import TrialView
from rollout.core.trial.answer import told


async def call_arguments(
    trial: TrialView, *, file: str | None, module: str | None, function: str, sandbox: bool
) -> dict[str, Any]:
    """The arguments of `verify_function.evaluate`."""
    return {
        "file": file,
        "module": module,
        "function": function,
        "task": trial.task,
        "episode": await told(trial),
        "sandbox": sandbox,
    }
