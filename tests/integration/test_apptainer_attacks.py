"""Agents that try to forge their reward under `type: apptainer`, where none may."""

from __future__ import annotations

import pytest

from require import APPTAINER, require
from rollout.testing.attack_suite import AttackSuite
from rollout.testing.attacks import DEPENDS_ON_BACKEND

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True, scope="module")
def _apptainer() -> None:
    require("apptainer")


class TestAttacks(AttackSuite):
    environment = {
        "type": "apptainer",
        "options": {
            "program": str(APPTAINER / "usr/bin/apptainer"),
            "bases": {"debian:trixie-slim": str(APPTAINER / "base.sif")},
        },
    }
    levels = ("strict", "separate")
    attacks = DEPENDS_ON_BACKEND
