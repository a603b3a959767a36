"""Agents that try to forge their reward, on the environments that can be tried here."""

from __future__ import annotations

import os

import pytest

from rollout.testing.attack_suite import AttackSuite


@pytest.mark.needs("local")
class TestAttacksOnLocal(AttackSuite):
    environment = {"type": "local"}
    # An ordinary user has one user inside, root.
    levels = ("default", "users", "strict", "separate") if os.geteuid() == 0 else ("default", "separate")


@pytest.mark.needs("docker")
class TestAttacksOnDocker(AttackSuite):
    environment = {"type": "docker", "options": {"pull": "never"}}
    concurrency = 8
