"""What the other services of a task printed, kept in the trial's folder."""

from __future__ import annotations

from pathlib import Path

from rollout.core.files import make_folder, write_atomic
from rollout.core.protocols import Environment, ServicesEnvironment
from rollout.core.trial.paths import folder_name
from rollout.core.trial.redact import Redactor

MAX_SERVICE_OUTPUT_BYTES = 16 * 1024 * 1024
"""How much of what a service's own program printed is kept: the end."""


async def keep_service_output(environment: Environment, folder: Path, redactor: Redactor) -> None:
    """Write `<service>.log` for each of them to `folder`.

    Raises:
        StoreError, EnvironmentLostError
    """
    if not isinstance(environment, ServicesEnvironment):
        return
    for name in environment.services():
        output = await environment.service_output(name, MAX_SERVICE_OUTPUT_BYTES)
        make_folder(folder)
        write_atomic(folder / f"{folder_name(name)}.log", redactor.text(output.decode("utf-8", "replace")).encode())
