"""Agents that try to forge their reward under `type: docker`."""

from __future__ import annotations

import pytest

from rollout.testing.attack_suite import AttackSuite

pytestmark = [pytest.mark.needs("docker"), pytest.mark.timeout(1200)]


class TestAttacks(AttackSuite):
    environment = {"type": "docker", "options": {"pull": "never"}}
    concurrency = 8
