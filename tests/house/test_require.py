"""A test that needs something of the machine is skipped with a reason, and never where the machine must have it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import require as requirement

CI = Path(__file__).parents[2] / ".ci" / "run"


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(requirement.COMPONENTS, "unicorn", lambda: "no horn")
    requirement.missing.cache_clear()
    return "unicorn"


def test_a_missing_component_skips_with_the_reason(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_REQUIRE", "local")
    with pytest.raises(pytest.skip.Exception, match="needs unicorn: no horn"):
        requirement.require(absent)


def test_a_missing_component_that_is_required_fails(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_REQUIRE", "local, unicorn")
    with pytest.raises(pytest.fail.Exception, match="no horn"):
        requirement.require(absent)


def test_a_component_that_is_there_lets_the_test_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(requirement.COMPONENTS, "present", lambda: None)
    requirement.missing.cache_clear()
    requirement.require("present")


def test_a_probe_says_what_a_command_printed() -> None:
    reason = requirement._run("sh", "-c", "echo not permitted >&2; exit 3")
    assert reason is not None and reason.endswith("not permitted")
    assert requirement._run("no-such-program-here") == "no-such-program-here is not installed"
    assert requirement._run("true") is None


def test_ci_requires_components_that_there_are() -> None:
    wanted = re.search(r"ROLLOUT_REQUIRE-([\w,-]+)\}", CI.read_text())
    assert wanted is not None
    assert set(wanted[1].split(",")) <= set(requirement.COMPONENTS)
