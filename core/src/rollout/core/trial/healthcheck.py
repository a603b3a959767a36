"""Waiting until an environment says that it is ready."""

from __future__ import annotations

import asyncio
import time

from rollout.core.errors import CommandTimeoutError, StartError
from rollout.core.protocols import Environment
from rollout.core.records import Healthcheck
from rollout.core.types import Command

_MAX_SHOWN = 300


async def wait_until_healthy(environment: Environment, check: Healthcheck) -> None:
    """Run the check until it succeeds, as Docker does: `retries` failures in a row after the start period are too many.

    Raises:
        StartError: too many failures; the text has the end of what the last check printed.
    """
    began = time.monotonic()
    failures = 0
    while True:
        started = time.monotonic()
        failure = await _failure(environment, check)
        if failure is None:
            return
        starting = started - began < check.start_period_sec
        failures += not starting
        if failures >= check.retries:
            raise StartError(f"the healthcheck failed {failures} times, the last time {failure}")
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)


async def _failure(environment: Environment, check: Healthcheck) -> str | None:
    """How the check failed, or None when it did not."""
    try:
        result = await environment.exec(Command(argv=("sh", "-c", check.command), timeout_sec=check.timeout_sec))
    except CommandTimeoutError:
        return f"because it took longer than {check.timeout_sec:g} s"
    if result.exit_code == 0:
        return None
    said = (result.stderr.strip() or result.stdout.strip()).decode("utf-8", "replace").splitlines()
    return f"with exit code {result.exit_code}{f': {said[-1][-_MAX_SHOWN:]}' if said else ''}"
