"""The `docker` environment keeps the contract on Podman's API, as root and as an ordinary user."""

from __future__ import annotations

from typing import Any

import pytest

from require import DOCKER_IMAGE, PODMAN_ROOT, PODMAN_USER
from rollout.core import protocols
from rollout.core.protocols import BackendContext
from rollout.core.types import EnvironmentSpec
from rollout.testing.environment import EnvironmentSuite
from rollout_docker.backend import DockerBackend
from rollout_docker.options import DockerOptions

pytestmark = pytest.mark.needs("podman")

_CAPABILITIES = frozenset(
    {
        protocols.EXEC_USER,
        protocols.LIVE_STDIO,
        protocols.BESIDE,
        protocols.NETWORK_ALLOWLIST,
        protocols.NETWORK_NONE,
        protocols.NETWORK_SWITCH,
        protocols.DOCKER_IMAGE,
        protocols.SERVICES,
        protocols.SNAPSHOT,
    }
)
_KNOWN_FAILURES = {
    "test_a_background_process_may_go_on_printing": "Podman 4.3 closes a command's output when the command itself ends",
}


class TestPodmanOfRoot(EnvironmentSuite):
    capabilities = _CAPABILITIES
    known_failures = _KNOWN_FAILURES

    def make(self, context: BackendContext) -> DockerBackend:
        return DockerBackend(DockerOptions(host=PODMAN_ROOT, pull="never"), context)

    def spec(self, **changes: Any) -> EnvironmentSpec:
        return super().spec(**{"docker_image": DOCKER_IMAGE, **changes})


class TestPodmanOfAnOrdinaryUser(EnvironmentSuite):
    capabilities = _CAPABILITIES
    known_failures = _KNOWN_FAILURES

    def make(self, context: BackendContext) -> DockerBackend:
        return DockerBackend(DockerOptions(host=PODMAN_USER, pull="never"), context)

    def spec(self, **changes: Any) -> EnvironmentSpec:
        return super().spec(**{"docker_image": DOCKER_IMAGE, **changes})
