"""The `apptainer` environment keeps the contract of environments, on a real Apptainer, as root and as an ordinary user."""

from __future__ import annotations

from typing import Any

import pytest

from require import APPTAINER, require
from rollout.core.protocols import DOCKER_IMAGE, EXEC_USER, LIVE_STDIO, NETWORK_NONE, BackendContext
from rollout.core.types import EnvironmentSpec
from rollout.testing.environment import EnvironmentSuite
from rollout_apptainer.backend import ApptainerBackend
from rollout_apptainer.options import ApptainerOptions


@pytest.fixture(autouse=True, scope="module")
def _apptainer() -> None:
    require("apptainer")


class TestApptainer(EnvironmentSuite):
    """As whoever runs the tests: root here and in CI; `test_apptainer_user.py` runs it as ordinary users."""

    capabilities = frozenset({EXEC_USER, LIVE_STDIO, NETWORK_NONE, DOCKER_IMAGE})

    def make(self, context: BackendContext) -> ApptainerBackend:
        return ApptainerBackend(ApptainerOptions(program=str(APPTAINER / "usr/bin/apptainer")), context)

    def spec(self, **changes: Any) -> EnvironmentSpec:
        return super().spec(**{"docker_image": str(APPTAINER / "base.sif"), **changes})
