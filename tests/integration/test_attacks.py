"""Agents that try to forge their reward under `type: local`, as root and as an ordinary user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ordinary_user import run_as_ordinary_user
from rollout.testing.attack_suite import AttackSuite

pytestmark = [pytest.mark.needs("local"), pytest.mark.timeout(1200)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose users")
class TestAttacksAsRoot(AttackSuite):
    environment = {"type": "local"}


@pytest.mark.skipif(os.geteuid() == 0, reason="needs an ordinary user")
class TestAttacksAsUser(AttackSuite):
    environment = {"type": "local"}
    levels = ("default", "separate")
    # Folders of the machine that belong to somebody else cannot be written to.
    but = {(name, "default"): ("held",) for name in ("sitecustomize", "pth", "pytest-plugin")}


@pytest.mark.needs("local-user")
@pytest.mark.skipif(os.geteuid() != 0, reason="the suite runs as an ordinary user already")
def test_an_ordinary_user_sees_the_same() -> None:
    run_as_ordinary_user(Path(__file__), "TestAttacksAsUser", timeout_sec=1100)
