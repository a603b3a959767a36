"""Timeouts: how the effective ones are computed, and how a phase is held to its own and to its class of error."""

from __future__ import annotations

import asyncio
from contextvars import Token
from types import TracebackType

from rollout.core.aio import running_limit
from rollout.core.errors import RolloutError, boundary


def effective_timeout(task_sec: float, *, override_sec: float = 0, max_sec: float = 0, multiplier: float = 1) -> float:
    """`min(override or task, max) x multiplier`, where 0 is unset; the ceiling is multiplied too.

    The rule and its eleven golden rows come from the Go program's `computeVerifierTimeout`; fractions of a second count.
    """
    seconds = override_sec or task_sec
    if max_sec:
        seconds = min(seconds, max_sec)
    return seconds * multiplier


class deadline:
    """Cancel the block after `seconds` and raise `error_type`. A TimeoutError of the block's own passes through.

    Time that the block spends in `aio.off_the_clock` does not count.
    """

    __slots__ = ("_error_type", "_limit", "_outer", "_seconds", "_what")

    def __init__(self, seconds: float | None, error_type: type[RolloutError], what: str) -> None:
        self._seconds = seconds
        self._error_type = error_type
        self._what = what
        self._limit = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        self._outer: Token[asyncio.Timeout | None] = running_limit.set(self._limit)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        running_limit.reset(self._outer)
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError as timeout:
            raise self._error_type(f"{self._what} was still running after {self._seconds:g} s") from timeout


class foreign:
    """`errors.boundary` for calls that are awaited: a CancelledError that nobody asked for is foreign code's error too.

    Libraries raise it when something of their own was cancelled; taken for an interruption it would end the whole job.
    """

    __slots__ = ("_doing", "_error_type", "_timeout_type")

    def __init__(self, error_type: type[RolloutError], doing: str, timeout_type: type[RolloutError] | None = None) -> None:
        self._error_type = error_type
        self._doing = doing
        self._timeout_type = timeout_type

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                raise self._error_type(f"{self._doing}: cancelled from within") from error
        elif isinstance(error, Exception):
            with boundary(self._error_type, self._doing, self._timeout_type):
                raise error
