"""Timeouts: how the effective ones are computed, and how a phase is held to its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollout.core.errors import RolloutError


def effective_timeout(task_sec: float, *, override_sec: float = 0, max_sec: float = 0, multiplier: float = 1) -> float:
    """`min(override or task, max) x multiplier`, where 0 is unset; the ceiling is multiplied too.

    The rule and its eleven golden rows come from the Go program's `computeVerifierTimeout`; fractions of a second count.
    """
    seconds = override_sec or task_sec
    if max_sec:
        seconds = min(seconds, max_sec)
    return seconds * multiplier


@asynccontextmanager
async def deadline(seconds: float | None, error_type: type[RolloutError], what: str) -> AsyncIterator[None]:
    """Cancel the block after `seconds` and raise `error_type`. A TimeoutError of the block's own passes through."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise error_type(f"{what} was still running after {seconds:g} s") from error
