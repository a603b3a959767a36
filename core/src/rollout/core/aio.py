"""Concurrency pieces that core and backends share: a sized thread pool, shielded teardown, single flight."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Blocking:
    """A thread pool of its own size for a synchronous SDK.

    `asyncio.to_thread` shares min(32, cpus + 4) threads with everything else in the process: a few hundred waits in it
    queue for minutes. A backend owns one of these, sized to its concurrency, and closes it in `aclose`.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function` in the pool. Cancelling the await does not stop the thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


async def in_own_thread(function: Callable[[], T]) -> T:
    """Run `function` in a thread of its own, for code of others that may never end: the process does not wait for it.

    Cancelling the await does not stop the thread.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not result.done():
            result.set_exception(error) if error is not None else result.set_result(value)

    def work() -> None:
        value, error = None, None
        try:
            value = function()
        except BaseException as raised:  # noqa: BLE001 - it goes to whoever awaits
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name=getattr(function, "__name__", "foreign"), daemon=True).start()
    returned: T = await result
    return returned


async def run_shielded(work: Coroutine[Any, Any, T]) -> T:
    """Finish `work` even when the caller is cancelled meanwhile; the cancellation is delivered afterwards.

    For teardown only: a second cancellation does not interrupt it either, so `work` needs a deadline of its own.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:
            if cancelled is None:
                raise
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # marked as seen: the cancellation takes precedence over a failed teardown
        raise cancelled
    return task.result()


running_limit: ContextVar[asyncio.Timeout | None] = ContextVar("running_limit", default=None)
"""The deadline of the phase that a trial is in."""


@asynccontextmanager
async def off_the_clock() -> AsyncIterator[None]:
    """What is spent in the block does not count towards the deadline of the phase: for waiting until it is a trial's turn."""
    limit = running_limit.get()
    due = limit.when() if limit is not None else None
    if limit is None or due is None or limit.expired():
        yield
        return
    loop = asyncio.get_running_loop()
    began = loop.time()
    limit.reschedule(None)
    try:
        yield
    finally:
        if not limit.expired():
            limit.reschedule(due + loop.time() - began)


class _Flight(Generic[T]):
    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiting = 0


class Once(Generic[T]):
    """Single flight: concurrent calls with one key share one run, and its result (or error) is kept.

    The run belongs to no caller: when all callers are cancelled it is cancelled too, and the last of them waits until it has
    ended; while one still waits it goes on. A cancelled run is forgotten, a failed one if `keep_errors` is False, so that a
    later call tries again.
    """

    def __init__(self, *, keep_errors: bool = True) -> None:
        self._flights: dict[Hashable, _Flight[T]] = {}
        self._keep_errors = keep_errors

    async def __call__(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.ensure_future(_await(make)))
        task = flight.task
        if task.done():
            return task.result()
        flight.waiting += 1
        try:
            return await asyncio.shield(task)
        except BaseException:
            abandoned = not task.done() and flight.waiting == 1
            if abandoned or (task.done() and (task.cancelled() or not self._keep_errors)):
                self._drop(key, flight)
            if abandoned:
                task.cancel()
                await run_shielded(settled(task))
            raise
        finally:
            flight.waiting -= 1

    def forget(self, key: Hashable) -> None:
        """Let the next call with `key` run again, unless a run is under way."""
        flight = self._flights.get(key)
        if flight is not None and flight.task.done():
            del self._flights[key]

    def _drop(self, key: Hashable, flight: _Flight[T]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]


async def _await(make: Callable[[], Awaitable[T]]) -> T:
    return await make()


async def joined(task: asyncio.Future[T]) -> T:
    """What others wait for too: its end, which a caller that is cancelled leaves to them."""
    return await asyncio.shield(task)


async def settled(task: asyncio.Future[Any]) -> None:
    """Wait for the end of a task, whatever that is."""
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # marked as seen
