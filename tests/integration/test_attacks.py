"""Agents that try to forge their reward, on the environments that can be tried here."""

from __future__ import annotations

import os

import pytest

from rollout.testing.attack_suite import AttackSuite


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose users")
@pytest.mark.needs("local")
class TestAttacksOnLocal(AttackSuite):
    environment = {"type": "local"}


@pytest.mark.needs("docker")
class TestAttacksOnDocker(AttackSuite):
    environment = {"type": "docker", "options": {"pull": "never"}}
