"""The `ssh` environment keeps the contract of environments, on real machines with a real sshd."""

from __future__ import annotations

import msgspec
import pytest

from require import require
from rollout.core.protocols import EXEC_USER, LIVE_STDIO, NETWORK_NONE, SNAPSHOT, BackendContext
from rollout.testing.environment import EnvironmentSuite
from rollout_ssh.backend import SshBackend
from rollout_ssh.options import SshOptions
from ssh_machines import options


@pytest.fixture(autouse=True, scope="module")
def _ssh() -> None:
    require("ssh")


def backend(context: BackendContext, **changes: object) -> SshBackend:
    return SshBackend(msgspec.convert({**options(1, 2), **changes}, SshOptions), context)


class TestNamespace(EnvironmentSuite):
    capabilities = frozenset({EXEC_USER, LIVE_STDIO, NETWORK_NONE, SNAPSHOT})

    def make(self, context: BackendContext) -> SshBackend:
        return backend(context)


class TestNamespaceOfAnOrdinaryUser(EnvironmentSuite):
    """Who has one id: nobody else can be told from root."""

    capabilities = frozenset({LIVE_STDIO, NETWORK_NONE, SNAPSHOT})

    def make(self, context: BackendContext) -> SshBackend:
        return backend(context, **options(3, user="lab"))


class TestHost(EnvironmentSuite):
    """Bare machines, each leased to one trial at a time."""

    capabilities = frozenset({EXEC_USER, LIVE_STDIO, NETWORK_NONE})

    def make(self, context: BackendContext) -> SshBackend:
        return backend(context, **options(*range(9, 17)), mode="host")
