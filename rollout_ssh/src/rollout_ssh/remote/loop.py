"""Waiting for everything at once, in one place."""

from __future__ import annotations

import select
from collections.abc import Callable


class Loop:
    """Descriptors and who handles their events. Single-threaded."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}

    def once(self, timeout_sec: float | None) -> None:
        """Wait for events, and have them handled."""
        for descriptor, events in self._poll.poll(timeout_sec):
            handler = self._handlers.get(descriptor)
            if handler is not None:
                handler(events)

    def watch(self, descriptor: int, events: int, handler: Callable[[int], None]) -> None:
        if descriptor in self._handlers:
            self._poll.modify(descriptor, events)
        else:
            self._poll.register(descriptor, events)
        self._handlers[descriptor] = handler

    def forget(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)
