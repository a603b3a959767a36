"""Timeouts: how the effective ones are computed, and how a phase is held to its own and to its class of error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from rollout.core.errors import RolloutError, boundary


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


@contextmanager
def foreign(error_type: type[RolloutError], doing: str, timeout_type: type[RolloutError] | None = None) -> Iterator[None]:
    """`errors.boundary` for calls that are awaited: a CancelledError that nobody asked for is foreign code's error too.

    Libraries raise it when something of their own was cancelled; taken for an interruption it would end the whole job.
    """
    with boundary(error_type, doing, timeout_type):
        try:
            yield
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise error_type(f"{doing}: cancelled from within") from error
