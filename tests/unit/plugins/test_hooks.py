"""Hooks: everybody who is installed is told, each apart, and nobody can break a job."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distributions import install
from rollout import hookimpl
from rollout.core.errors import PluginError
from rollout.core.hooks import HOOKS, HookBus

GOOD = """
from rollout import hookimpl

seen = []

@hookimpl
def rollout_trial_finished(result):
    seen.append(result)
"""


def install_hooks(site: Path, dist: str, source: str, name: str | None = None) -> None:
    module = dist.replace("-", "_")
    install(site, dist, {"rollout.hooks": {name or module: module}}, modules={module: source})


async def call(bus: HookBus, name: str = "rollout_trial_finished", **changes: Any) -> list[Any]:
    arguments = {argument: argument for argument in HOOKS[name]}
    return await bus.notify(name, **{**arguments, **changes})


def module(**functions: Any) -> Any:
    """A plugin object with these hook implementations."""
    return SimpleNamespace(**{name: hookimpl(function) for name, function in functions.items()})


async def test_an_installed_hook_is_called_with_what_it_asks_for(site: Path) -> None:
    install_hooks(site, "rollout-watch", GOOD)
    bus = HookBus.load({})
    assert bus.problems == []
    assert bus.implemented("rollout_trial_finished")
    assert not bus.implemented("rollout_job_started")
    await call(bus, result="the result")
    assert sys.modules["rollout_watch"].seen == ["the result"]  # type: ignore[attr-defined]


async def test_sync_and_async_ones_are_both_waited_for() -> None:
    order: list[str] = []

    async def slow(trial: Any) -> str:
        order.append("slow begins")
        await asyncio.sleep(0)
        order.append("slow ends")
        return "slow"

    def quick(result: Any, trial: Any) -> str:
        order.append("quick")
        return "quick"

    bus = HookBus()
    bus.register(module(rollout_trial_finished=quick), "second")
    bus.register(module(rollout_trial_finished=slow), "first")
    assert await call(bus) == ["slow", "quick"]
    assert order == ["slow begins", "slow ends", "quick"]


async def test_one_that_raises_stops_neither_the_others_nor_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    async def late() -> None:
        await asyncio.sleep(0)
        raise ValueError("late\nand long")

    def leave() -> None:
        sys.exit(3)

    bus = HookBus()
    bus.register(module(rollout_job_started=lambda: 1 / 0), "divides")
    bus.register(module(rollout_job_started=late), "late")
    bus.register(module(rollout_job_started=leave), "leaves")
    bus.register(module(rollout_job_started=lambda job: job), "works")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert await call(bus, "rollout_job_started") == ["job"]
    assert dict(bus.failures) == {
        "hook rollout_job_started of divides: ZeroDivisionError: division by zero": 3,
        "hook rollout_job_started of late: ValueError: late and long": 3,
        "hook rollout_job_started of leaves: SystemExit: 3": 3,
    }
    assert len(caplog.records) == 9
    assert "hook rollout_job_started of late: ValueError: late and long (3 times)" in bus.failure_lines()


async def test_cancelling_a_job_cancels_the_hook_that_it_waits_for() -> None:
    bus = HookBus()
    bus.register(module(rollout_job_started=lambda: asyncio.Event().wait()), "waits")
    waiting = asyncio.ensure_future(call(bus, "rollout_job_started"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not bus.failures


async def test_metadata_of_all_is_collected() -> None:
    bus = HookBus()
    bus.register(module(rollout_add_result_metadata=lambda trial: {"host": "a"}), "one")
    bus.register(module(rollout_add_result_metadata=lambda: None), "two")
    assert await call(bus, "rollout_add_result_metadata") == [{"host": "a"}]


async def test_a_hook_that_nobody_implements_costs_a_look_up() -> None:
    bus = HookBus()
    assert await bus.notify("rollout_job_started", job=None) == []


async def test_a_class_is_made_an_instance_of() -> None:
    class Watch:
        def __init__(self) -> None:
            self.name = "made"

        @hookimpl
        def rollout_job_started(self, job: Any) -> str:
            return self.name

    bus = HookBus()
    bus.register(Watch, "watch")
    assert await call(bus, "rollout_job_started") == ["made"]


def test_without_hook_plugins_pluggy_is_not_imported() -> None:
    code = "import sys\nfrom rollout.core.hooks import HookBus\nHookBus.load({})\nassert 'pluggy' not in sys.modules, 'imported'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"ROLLOUT_PLUGINS": ""}, check=False)
    assert done.returncode == 0, done.stderr


class TestLeftOut:
    """A hook plugin that cannot be used is reported and left out; the others work."""

    @pytest.mark.parametrize(
        ("source", "says"),
        [
            ("import nothing_like_this", "cannot be imported: ModuleNotFoundError"),
            ("raise SystemExit(1)", "cannot be imported: SystemExit: 1"),
            ("x = 1", "implements no hook; mark its functions with `@rollout.hookimpl`"),
            (
                "from rollout import hookimpl\n@hookimpl\ndef rollout_trial_finnished(trial): pass",
                "implements 'rollout_trial_finnished', which is no hook (did you mean 'rollout_trial_finished'?)",
            ),
            (
                "from rollout import hookimpl\n@hookimpl\ndef rollout_trial_finished(trial, reward): pass",
                "asks for arguments that do not exist: rollout_trial_finished(trial, result)",
            ),
            (
                "from rollout import hookimpl\n@hookimpl(wrapper=True)\ndef rollout_trial_finished(trial):\n    yield",
                "wraps 'rollout_trial_finished'",
            ),
        ],
    )
    async def test_with_a_line_that_says_why(self, source: str, says: str, site: Path) -> None:
        install_hooks(site, "rollout-bad", source)
        install_hooks(site, "rollout-watch", GOOD)
        bus = HookBus.load({})
        assert len(bus.problems) == 1
        assert bus.problems[0].startswith("left out: hook")
        assert "rollout" in bus.problems[0]
        assert says in bus.problems[0]
        assert "\n" not in bus.problems[0]
        await call(bus, result="still told")
        assert sys.modules["rollout_watch"].seen == ["still told"]  # type: ignore[attr-defined]

    async def test_a_bad_one_leaves_nothing_registered(self) -> None:
        bus = HookBus()
        bad = module(rollout_job_started=lambda: "bad", rollout_nothing=lambda: None)
        with pytest.raises(PluginError, match="rollout_nothing"):
            bus.register(bad, "bad")
        bus.register(module(rollout_job_started=lambda: "good"), "good")
        assert await call(bus, "rollout_job_started") == ["good"]

    def test_unless_it_is_required(self, site: Path) -> None:
        install_hooks(site, "rollout-bad", "raise RuntimeError('no')", name="audit")
        assert HookBus.load({}).problems
        with pytest.raises(PluginError, match=r"RuntimeError: no; ROLLOUT_REQUIRED_HOOKS says the job must not run without it"):
            HookBus.load({"ROLLOUT_REQUIRED_HOOKS": "audit"})

    def test_a_required_one_that_misses_its_hook_is_an_error(self, site: Path) -> None:
        install_hooks(site, "rollout-bad", "x = 1", name="audit")
        with pytest.raises(PluginError, match=r"implements no hook.*must not run without it"):
            HookBus.load({"ROLLOUT_REQUIRED_HOOKS": "audit"})

    def test_a_required_one_that_is_not_installed_is_an_error(self) -> None:
        with pytest.raises(PluginError, match=r"no hook 'audit' is installed.*must not run without it"):
            HookBus.load({"ROLLOUT_REQUIRED_HOOKS": "audit"})

    def test_a_required_one_that_works_is_not(self, site: Path) -> None:
        install_hooks(site, "rollout-watch", GOOD, name="watch")
        assert HookBus.load({"ROLLOUT_REQUIRED_HOOKS": "watch"}).problems == []
