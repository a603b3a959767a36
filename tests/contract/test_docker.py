"""The `docker` environment keeps the contract of environments, on a real engine."""

from __future__ import annotations

from typing import Any

import pytest

from require import require
from rollout.core.protocols import (
    BESIDE,
    DOCKER_IMAGE,
    EXEC_USER,
    LIVE_STDIO,
    NETWORK_ALLOWLIST,
    NETWORK_NONE,
    NETWORK_SWITCH,
    SERVICES,
    SNAPSHOT,
    BackendContext,
)
from rollout.core.types import EnvironmentSpec
from rollout.testing.environment import EnvironmentSuite
from rollout_docker.backend import DockerBackend
from rollout_docker.options import DockerOptions

IMAGE = "debian:trixie-slim"


@pytest.fixture(autouse=True, scope="module")
def _docker() -> None:
    require("docker")


class TestDocker(EnvironmentSuite):
    capabilities = frozenset(
        {
            BESIDE,
            EXEC_USER,
            LIVE_STDIO,
            NETWORK_ALLOWLIST,
            NETWORK_NONE,
            NETWORK_SWITCH,
            DOCKER_IMAGE,
            SERVICES,
            SNAPSHOT,
        }
    )

    def make(self, context: BackendContext) -> DockerBackend:
        return DockerBackend(DockerOptions(pull="never"), context)

    def spec(self, **changes: Any) -> EnvironmentSpec:
        return super().spec(**{"docker_image": IMAGE, **changes})
