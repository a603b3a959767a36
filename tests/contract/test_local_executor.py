"""The built-in executor fulfils the contract of executors."""

from __future__ import annotations

from rollout.builtin.local_executor import LocalExecutor
from rollout.core.protocols import Executor, NoOptions
from rollout.testing.executor import ExecutorSuite


class TestLocalExecutor(ExecutorSuite):
    def make(self, concurrency: int) -> Executor:
        return LocalExecutor(NoOptions(), concurrency)
