"""Ctrl-C and its relatives: the first signal ends a job well, the second ends it at once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

EXIT_INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ONE_REQUEST_SEC = 0.5
"""`timeout`, `make` and shells signal a process and then its group: the same signal again within this time says nothing new."""

_SHOW_CURSOR = b"\x1b[?25h"


def run_interruptible(work: Callable[[], Awaitable[T]], say: Callable[[str], None]) -> T | None:
    """Run `work` in an event loop of its own; None when a signal ended it.

    SIGINT, SIGTERM and SIGHUP cancel it once; `say` gets a line about what happens. A second one, or the same
    one again later than 0.5 s, ends the process at once with exit code 130. A signal that is ignored (nohup) stays ignored.
    """

    async def whole() -> T | None:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work())
        interrupt = _Interrupt(loop, task, say)
        before = {}
        if threading.current_thread() is threading.main_thread():
            # Not loop.add_signal_handler: the second signal has to work when the loop is stuck, too.
            before = {number: signal.getsignal(number) for number in _SIGNALS}
            for number, handler in before.items():
                if handler is not signal.SIG_IGN:
                    signal.signal(number, interrupt.on_signal)
        try:
            return await task
        except asyncio.CancelledError:
            if not interrupt.received:
                raise
            return None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    return asyncio.run(whole())


class _Interrupt:
    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Future[T], say: Callable[[str], None]) -> None:
        self._loop = loop
        self._task = task
        self._say = say
        self._first = 0
        self._first_at = 0.0
        self.received = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received:
            if number == self._first and now - self._first_at < _ONE_REQUEST_SEC:
                return
            # Nothing that takes a lock or could wait. Sandboxes end with this process; `rollout clean` removes what they leave.
            os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + b"rollout: ended at once; `rollout clean --all` tidies up\n")
            os._exit(EXIT_INTERRUPTED)
        self.received, self._first, self._first_at = True, number, now
        self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._task.cancel()
        self._say("interrupted: ending the trials under way (a second signal ends at once)")
