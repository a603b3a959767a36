"""Agents that try to forge their reward under `type: ssh`, in namespaces of another machine, where none may."""

from __future__ import annotations

import pytest

from require import require
from rollout.testing.attack_suite import AttackSuite
from rollout.testing.attacks import DEPENDS_ON_BACKEND
from ssh_machines import options

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True, scope="module")
def _machines() -> None:
    require("ssh")


class TestAttacks(AttackSuite):
    environment = {"type": "ssh", "options": options(6, 7)}
    levels = ("strict", "separate")
    attacks = DEPENDS_ON_BACKEND
