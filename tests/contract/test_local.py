"""The `local` environment keeps the contract of environments."""

from __future__ import annotations

import os

import pytest

from rollout.builtin.local import LocalBackend, LocalOptions
from rollout.core.protocols import EXEC_USER, LIVE_STDIO, NETWORK_NONE, BackendContext
from rollout.testing.environment import EnvironmentSuite


@pytest.mark.skipif(os.geteuid() != 0, reason="the suite of ordinary users is below")
class TestLocalAsRoot(EnvironmentSuite):
    capabilities = frozenset({EXEC_USER, LIVE_STDIO, NETWORK_NONE})

    def make(self, context: BackendContext) -> LocalBackend:
        return LocalBackend(LocalOptions(), context)
