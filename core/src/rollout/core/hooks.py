"""Hooks: what runs merely because it is installed. Each implementation is called apart, and none can break a job.

A distribution names a module (or an object) in the entry-point group `rollout.hooks`, whose functions carry `@hookimpl`:

    from rollout import hookimpl

    @hookimpl
    async def rollout_trial_finished(trial, result): ...

An implementation may be sync or async, takes any subset of its hook's arguments by name, and must not change them. What it
raises is logged and recorded, and the job goes on. A sync implementation runs on the event loop: it must not block.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollout.core.errors import PluginError, RolloutError, boundary, describe
from rollout.core.plugins import find, list_plugins, load

if TYPE_CHECKING:
    from pluggy import HookImpl, PluginManager

    from rollout.core.plugins import PluginInfo

logger = logging.getLogger(__name__)

PROJECT = "rollout"
_REQUIRED_VARIABLE = "ROLLOUT_REQUIRED_HOOKS"


class HookSpecs:
    """Every hook there is, with its arguments. More arguments may come; implementations name only those they use."""

    def rollout_job_planned(self, job: Any, trials: int) -> None:
        """Everything is checked and `trials` trials are to run; nothing has started. `job` is the rollout.core.job.plan.Plan."""

    def rollout_job_started(self, job: Any) -> None:
        """The first trial is about to start."""

    def rollout_trial_started(self, trial: Any) -> None:
        """A try of a trial starts. `trial` is its TrialSpec."""

    def rollout_phase(self, trial: Any, phase: str, state: str) -> None:
        """A phase of a trial (`environment_setup`, `agent_setup`, `agent_execution`, `verifier`) has `started` or `ended`."""

    def rollout_trial_finished(self, trial: Any, result: Any) -> None:
        """A trial is done and its TrialResult stored; tries that are repeated are not reported."""

    def rollout_add_result_metadata(self, trial: Any, result: Any) -> dict[str, Any] | None:
        """Return what is to stand under `extra` of the trial's result (JSON values); `result` is the TrialResult so far."""

    def rollout_job_finished(self, job: Any, result: Any) -> None:
        """The job is over, interrupted ones too. `result` is the JobResult that was written."""


HOOKS: dict[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(function).parameters)[1:]
    for name, function in vars(HookSpecs).items()
    if name.startswith("rollout_")
}
"""Hook to the names of its arguments."""


class HookBus:
    """The installed hooks of one job (or of one `rollout trial run`)."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        """Hook plugins that were left out, with the reason, a line each."""
        self.failures: Counter[str] = Counter()
        """What implementations raised: one line per implementation and exception, and how often."""
        self._implementations: dict[str, list[HookImpl]] = {}
        self._manager: PluginManager | None = None

    @classmethod
    def load(cls, environ: Mapping[str, str] = os.environ) -> HookBus:
        """Load every installed hook plugin; a broken one is left out and reported in `problems`.

        Raises:
            PluginError: ROLLOUT_REQUIRED_HOOKS names a plugin that is missing or broken.
        """
        bus = cls()
        required = [name for name in re.split(r"[,\s]+", environ.get(_REQUIRED_VARIABLE, "")) if name]
        for name in required:
            try:
                find("hooks", name)
            except PluginError as error:
                raise PluginError(f"{error}; {_REQUIRED_VARIABLE} says the job must not run without it") from error
        for info in list_plugins("hooks"):
            try:
                bus._add(info)
            except PluginError as error:
                if info.name in required:
                    raise PluginError(f"{error}; {_REQUIRED_VARIABLE} says the job must not run without it") from error
                bus.problems.append(f"left out: {error}")
                logger.warning("%s", bus.problems[-1])
        return bus

    def register(self, plugin: Any, name: str) -> None:
        """Add a module, an object or a class (an instance of it is made) with hook implementations.

        Raises:
            PluginError: it implements no hook, one that does not exist, or one with arguments that do not exist.
        """
        manager = self._pluggy()
        from pluggy import PluginValidationError

        try:
            with boundary(PluginError, f"hook plugin {name!r}"):
                plugin = plugin() if isinstance(plugin, type) else plugin
                manager.register(plugin, name)
                _check(manager, plugin, name)
        except PluginError as error:
            if manager.get_plugin(name) is not None:
                manager.unregister(name=name)
            if isinstance(error.__cause__, PluginValidationError):
                wanted = "; ".join(f"{hook}({', '.join(arguments)})" for hook, arguments in HOOKS.items() if hook in str(error))
                raise PluginError(f"hook plugin {name!r} asks for arguments that do not exist: {wanted}") from error
            raise
        self._implementations = {
            # pluggy keeps them in reverse order of registration, those marked `trylast` first
            hook: list(reversed(getattr(manager.hook, hook).get_hookimpls()))
            for hook in HOOKS
            if getattr(manager.hook, hook).get_hookimpls()
        }

    def implemented(self, name: str) -> bool:
        """Whether anybody listens: callers spare themselves the call otherwise."""
        return name in self._implementations

    async def notify(self, name: str, **arguments: Any) -> list[Any]:
        """Call every implementation, one after the other; what those that did not fail returned, without None.

        Never raises but for cancellation.
        """
        results: list[Any] = []
        for implementation in self._implementations.get(name, ()):
            try:
                with boundary(RolloutError, f"hook {name} of {implementation.plugin_name}"):
                    returned = implementation.function(*[arguments[argument] for argument in implementation.argnames])
                    if inspect.isawaitable(returned):
                        returned = await returned
            except (RolloutError, SystemExit) as error:
                text = describe(error)
                if not text.startswith(f"hook {name} of "):
                    text = f"hook {name} of {implementation.plugin_name}: {text}"
                self.failures[text] += 1
                logger.warning("%s", text)
                continue
            if returned is not None:
                results.append(returned)
        return results

    def failure_lines(self) -> list[str]:
        """What implementations raised so far, for people: a line per implementation and exception."""
        return [text if count == 1 else f"{text} ({count} times)" for text, count in self.failures.items()]

    def _add(self, info: PluginInfo) -> None:
        self.register(load(info).cls, f"{info.dist}:{info.name}")

    def _pluggy(self) -> PluginManager:
        # Imported only where there is a hook plugin: most installations have none.
        if self._manager is None:
            import pluggy

            specification = pluggy.HookspecMarker(PROJECT)
            for hook in HOOKS:
                specification(getattr(HookSpecs, hook))
            self._manager = pluggy.PluginManager(PROJECT)
            self._manager.add_hookspecs(HookSpecs)
        return self._manager


def _check(manager: PluginManager, plugin: Any, name: str) -> None:
    callers = manager.get_hookcallers(plugin) or []
    if not callers:
        raise PluginError(f"hook plugin {name!r} implements no hook; mark its functions with `@rollout.hookimpl`")
    unknown = sorted(caller.name for caller in callers if caller.name not in HOOKS)
    if unknown:
        from difflib import get_close_matches

        close = get_close_matches(unknown[0], HOOKS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        there_are = ", ".join(HOOKS)
        raise PluginError(f"hook plugin {name!r} implements {unknown[0]!r}, which is no hook{hint}; there are {there_are}")
    for caller in callers:
        if any(own.wrapper or own.hookwrapper for own in caller.get_hookimpls() if own.plugin is plugin):
            raise PluginError(f"hook plugin {name!r} wraps {caller.name!r}: hooks are called one by one and cannot be wrapped")
