"""The `local` environment keeps the contract of environments, as root and as an ordinary user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ordinary_user import run_as_ordinary_user
from rollout.builtin.local import LocalBackend, LocalOptions
from rollout.core.protocols import (
    BESIDE,
    EXEC_USER,
    LIVE_STDIO,
    NETWORK_ALLOWLIST,
    NETWORK_NONE,
    NETWORK_SWITCH,
    SNAPSHOT,
    BackendContext,
)
from rollout.testing.environment import EnvironmentSuite


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
class TestLocalAsRoot(EnvironmentSuite):
    capabilities = frozenset({BESIDE, EXEC_USER, LIVE_STDIO, NETWORK_ALLOWLIST, NETWORK_NONE, NETWORK_SWITCH, SNAPSHOT})

    def make(self, context: BackendContext) -> LocalBackend:
        return LocalBackend(LocalOptions(), context)


@pytest.mark.skipif(os.geteuid() == 0, reason="needs an ordinary user")
class TestLocalAsUser(EnvironmentSuite):
    capabilities = LocalBackend(
        LocalOptions(), BackendContext(job_id="x", work_dir=Path("/nowhere"), cache_dir=Path("/nowhere"), concurrency=1)
    ).capabilities

    def make(self, context: BackendContext) -> LocalBackend:
        return LocalBackend(LocalOptions(), context)


@pytest.mark.skipif(os.geteuid() != 0, reason="the suite runs as an ordinary user already")
def test_an_ordinary_user_passes_the_same_suite() -> None:
    run_as_ordinary_user(Path(__file__), "TestLocalAsUser")
