"""What a Python verifier is told about a trial, as plain data for the process that calls it."""

from __future__ import annotations

from typing import Any

from rollout.core.errors import VerifierError
from rollout.core.protocols import TrialView


def call_arguments(trial: TrialView, *, file: str | None, module: str | None, function: str, sandbox: bool) -> dict[str, Any]:
    """The arguments of `verify_function.evaluate`.

    Raises:
        VerifierError: the task or the episode holds what is no JSON.
    """
    try:
        task, episode = trial.task.to_dict(), trial.episode.to_dict()
    except TypeError as error:
        raise VerifierError(f"what the agent told cannot be given to a verifier: {error}") from error
    return {"file": file, "module": module, "function": function, "task": task, "episode": episode, "sandbox": sandbox}
