"""Marks and fixtures of the whole suite."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from require import COMPONENTS, require

collect_ignore = ["example_plugin"]  # somebody else's distribution: installed and tested by integration/test_example_plugin.py


def pytest_configure(config: pytest.Config) -> None:
    # No test measures time, property tests neither: a busy machine is no bug.
    settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("suite")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what it runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "needs(*components): skip (or, under ROLLOUT_REQUIRE, fail) where one is missing")
    wanted = os.environ.get("ROLLOUT_REQUIRE", "").replace(",", " ").split()
    if unknown := sorted(set(wanted) - set(COMPONENTS)):
        raise pytest.UsageError(f"ROLLOUT_REQUIRE: no component {', '.join(unknown)}; there are {', '.join(COMPONENTS)}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for component in mark.args:
            require(component)
