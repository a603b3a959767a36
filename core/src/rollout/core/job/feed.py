"""The lazy source that executors pull trials from: planned ones first come, retries when their time has come."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Iterator

from rollout.core.records import TrialSpec


class TrialFeed:
    """An async iterator over trials, safe for many workers at once.

    It ends when every planned trial was handed out, nothing handed out is unsettled, and no retry waits. Each trial that was
    handed out has to be settled: by `finished`, or by `retry`.
    """

    def __init__(self, planned: Iterator[TrialSpec]) -> None:
        self._planned = planned
        self._retries: list[tuple[float, int, TrialSpec]] = []
        self._order = itertools.count()
        self._unsettled = 0
        self._exhausted = False
        self._changed = asyncio.Event()

    def __aiter__(self) -> TrialFeed:
        return self

    async def __anext__(self) -> TrialSpec:
        while True:
            wait = None
            if self._retries:
                wait = self._retries[0][0] - asyncio.get_running_loop().time()
                if wait <= 0:
                    return self._hand_out(heapq.heappop(self._retries)[2])
            if not self._exhausted:
                spec = next(self._planned, None)
                if spec is not None:
                    return self._hand_out(spec)
                self._exhausted = True
            if not self._retries and not self._unsettled:
                self._changed.set()
                raise StopAsyncIteration
            self._changed.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def finished(self) -> None:
        """One trial that was handed out is done with."""
        self._unsettled -= 1
        if self._exhausted and not self._unsettled and not self._retries:
            self._changed.set()

    def retry(self, spec: TrialSpec, wait_sec: float) -> None:
        """One trial that was handed out is to be handed out again, as `spec`, in `wait_sec` seconds."""
        self._unsettled -= 1
        due = asyncio.get_running_loop().time() + wait_sec
        heapq.heappush(self._retries, (due, next(self._order), spec))
        self._changed.set()

    def stop(self) -> None:
        """Hand out nothing more."""
        self._planned = iter(())
        self._retries.clear()
        self._exhausted = True
        self._changed.set()

    def _hand_out(self, spec: TrialSpec) -> TrialSpec:
        self._unsettled += 1
        return spec
