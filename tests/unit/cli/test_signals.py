"""Which signals end a job well, and which at once; each case is a process that signals itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rollout.cli.signals import EXIT_INTERRUPTED

_SCRIPT = """
import asyncio, os, signal, sys
from rollout.cli import signals

async def work():
    for number in {numbers}:
        os.kill(os.getpid(), number)
    await asyncio.sleep(60)

signals._ONE_REQUEST_SEC = {seconds}
assert signals.run_interruptible(work, print) is None
"""


def ended(*numbers: str, seconds: float = 0.5) -> subprocess.CompletedProcess[str]:
    script = _SCRIPT.format(numbers=f"({', '.join(f'signal.{name}' for name in numbers)},)", seconds=seconds)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("numbers", [("SIGINT",), ("SIGTERM",), ("SIGTERM", "SIGTERM"), ("SIGINT", "SIGINT", "SIGINT")])
def test_one_request_that_comes_several_times_at_once_ends_the_work_well(numbers: tuple[str, ...]) -> None:
    """`timeout` and `make` signal a process and then the group that it is in."""
    done = ended(*numbers)
    assert done.returncode == 0, done.stderr
    assert "interrupted: ending the trials under way" in done.stdout


@pytest.mark.parametrize(("numbers", "seconds"), [(("SIGINT", "SIGTERM"), 0.5), (("SIGINT", "SIGINT"), 0.0)])
def test_another_signal_or_the_same_one_later_ends_the_process_at_once(numbers: tuple[str, ...], seconds: float) -> None:
    done = ended(*numbers, seconds=seconds)
    assert done.returncode == EXIT_INTERRUPTED
    assert "ended at once" in done.stderr
