"""Plugins: what is installed, the one that a name means, and its options decoded. Listing reads metadata and imports nothing."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import EntryPoint, distributions, entry_points
from typing import Any, NamedTuple

from rollout.core.errors import ConfigError, PluginError, boundary, describe

CORE = "rollout-core"

KINDS: dict[str, str] = {
    "environments": "rollout.environments",
    "agents": "rollout.agents",
    "verifiers": "rollout.verifiers",
    "rewards": "rollout.rewards",
    "metrics": "rollout.metrics",
    "registries": "rollout.registries",
    "readers": "rollout.readers",
    "executors": "rollout.executors",
    "exporters": "rollout.exporters",
    "commands": "rollout.commands",
    "hooks": "rollout.hooks",
}
"""Kind of plugin to its entry-point group."""

_SINGULAR = {kind: kind.removesuffix("s") for kind in KINDS} | {"registries": "registry"}
_CALLABLE_KINDS = ("rewards", "readers", "exporters", "commands")
_GROUPS = {group: kind for kind, group in KINDS.items()}
_ALLOWED_VARIABLE = "ROLLOUT_PLUGINS"


class PluginInfo(NamedTuple):
    """What an installed distribution says about one of its plugins.

    Not a Struct: this module is imported by every command, and msgspec only by those that need it.
    """

    kind: str
    name: str
    dist: str
    version: str
    target: str
    """`module:attribute`."""

    def __str__(self) -> str:
        return f"{_SINGULAR[self.kind]} {self.name!r} ({self.target} from {self.dist} {self.version})"


class Plugin(NamedTuple):
    """A plugin that is loaded and fulfils the contract of its kind."""

    info: PluginInfo
    cls: Any
    """The class (or factory) that was registered."""


def list_plugins(kind: str | None = None) -> list[PluginInfo]:
    """The installed plugins of one kind, or of all kinds, by kind and name; what ROLLOUT_PLUGINS leaves out is not among them.

    Raises:
        PluginError: there is no such kind.
    """
    kinds = list(KINDS) if kind is None else [_known(kind)]
    found = [info for info, _ in _installed() if info.kind in kinds]
    found += [plugin.info for plugin in _overrides.values() if plugin.info.kind in kinds]
    return sorted(found, key=lambda info: (kinds.index(info.kind), info.name, info.dist))


def find(kind: str, name: str) -> Plugin:
    """Load the plugin that `name` (or `distribution:name`) means.

    Raises:
        PluginError: no such plugin, several of that name, it cannot be imported, or it does not fulfil its contract.
    """
    override = _overrides.get((_known(kind), name))
    if override is not None:
        return override
    dist, _, bare = name.rpartition(":")
    candidates = [
        (info, entry_point)
        for info, entry_point in _installed()
        if info.kind == kind and info.name == bare and (not dist or _normal(info.dist) == _normal(dist))
    ]
    if not candidates:
        raise PluginError(_unknown(kind, name))
    if len(candidates) > 1:
        offers = " and by ".join(f"{info.dist} {info.version}" for info, _ in candidates)
        names = " or ".join(dict.fromkeys(f"{info.dist}:{info.name}" for info, _ in candidates))
        what = f"{_SINGULAR[kind]} {bare!r} is provided by {offers}"
        raise PluginError(f"{what}; write {names}, or leave one out with {_ALLOWED_VARIABLE}")
    info, entry_point = candidates[0]
    return Plugin(info, _load(info, entry_point))


def named(kind: str, name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The plugin and the options that a job file means: `NAME:REST` and `NAME/REST` are plugin NAME with options made of REST,
    if that plugin knows such names.

    Raises:
        PluginError: the plugin cannot be imported.
        ConfigError: an option is given twice.
    """
    match = re.match(r"([\w.-]+)[:/](.+)", name, re.DOTALL)
    bare = name.rpartition(":")[2]
    if match is None or (kind, name) in _overrides or any(info.name in (name, bare) for info in list_plugins(kind)):
        return name, dict(options)
    if not any(info.name == match[1] for info in list_plugins(kind)):
        return name, dict(options)
    options_of_name = getattr(find(kind, match[1]).cls, "options_of_name", None)
    if options_of_name is None:
        return name, dict(options)
    made: dict[str, Any] = options_of_name(match[2])
    for key in made:
        if key in options:
            raise ConfigError(f"{_SINGULAR[kind]} {name!r} says already what option {key!r} is; leave the option out")
    return match[1], {**options, **made}


def load(info: PluginInfo) -> Plugin:
    """Load a plugin from the list, whatever else has its name.

    Raises:
        PluginError: as `find`.
    """
    override = _overrides.get((info.kind, info.name))
    if override is not None and override.info == info:
        return override
    for other, entry_point in _installed():
        if other == info:
            return Plugin(info, _load(info, entry_point))
    raise PluginError(f"{info} is not installed")


def decode_options(plugin: Plugin, raw: Mapping[str, Any], where: str) -> Any:
    """The plugin's `options_type` made of what a job file says. `where` is the place in the job file, for messages.

    Numbers and booleans may be written as text ("7").

    Raises:
        ConfigError: an unknown, missing or wrong option; the text lists the options there are.
    """
    import msgspec

    options_type = plugin.cls.options_type
    label = f"{where} ({plugin.info.name} {plugin.info.version})"
    names = [field.encode_name for field in msgspec.structs.fields(options_type)]
    for key in raw:
        if key not in names:
            there_are = f"there are {', '.join(names)}" if names else "it has none"
            raise ConfigError(f"{label}: no option {key!r}{_did_you_mean(str(key), names)}; {there_are}")
    try:
        with boundary(ConfigError, label):
            return msgspec.convert(dict(raw), options_type, strict=False)
    except ConfigError as error:
        if isinstance(error.__cause__, msgspec.ValidationError):
            raise ConfigError(f"{label}: {_option_fault(str(error.__cause__))}") from error.__cause__
        raise


def versions(plugins: Iterable[Plugin]) -> dict[str, str]:
    """Distribution to version, for records."""
    return dict(sorted({plugin.info.dist: plugin.info.version for plugin in plugins}.items()))


def problems() -> list[str]:
    """Distributions whose list of plugins cannot be read, a line each. They are left out; nothing else suffers."""
    return list(_scan(tuple(sys.path))[1])


def refresh() -> None:
    """Forget what was found: something was installed or removed while this process runs."""
    _scan.cache_clear()


@contextmanager
def override(kind: str, name: str, cls: Any) -> Iterator[Plugin]:
    """Let `name` mean `cls` in this process, over whatever is installed: for tests, and for classes made in Python.

    Raises:
        PluginError: `cls` does not fulfil the contract of its kind.
    """
    target = f"{getattr(cls, '__module__', '?')}:{getattr(cls, '__qualname__', '?')}"
    info = PluginInfo(kind=_known(kind), name=name, dist="in-process", version="0", target=target)
    _check(info, cls)
    key = (kind, name)
    before = _overrides.get(key)
    _overrides[key] = Plugin(info, cls)
    try:
        yield _overrides[key]
    finally:
        if before is None:
            del _overrides[key]
        else:
            _overrides[key] = before


_overrides: dict[tuple[str, str], Plugin] = {}


def _installed() -> list[tuple[PluginInfo, EntryPoint]]:
    """Every plugin that ROLLOUT_PLUGINS allows: all when it is unset, core's and the distributions it lists otherwise."""
    found = _scan(tuple(sys.path))[0]
    allowed = os.environ.get(_ALLOWED_VARIABLE)
    if allowed is None:
        return found
    names = {_normal(name) for name in re.split(r"[,\s]+", allowed) if name} | {CORE}
    return [(info, entry_point) for info, entry_point in found if _normal(info.dist) in names]


@lru_cache(maxsize=16)
def _scan(path: tuple[str, ...]) -> tuple[list[tuple[PluginInfo, EntryPoint]], list[str]]:
    """The plugins of the distributions on sys.path, and what could not be read. `path` is the cache's key."""
    faults: list[str] = []
    try:
        installed = entry_points()
        ours = [entry_point for group in _GROUPS for entry_point in installed.select(group=group)]
    except (ValueError, TypeError, AttributeError, OSError):
        # One unreadable entry_points.txt, of whatever distribution, fails the call above as a whole.
        ours = [entry_point for entry_point in _entry_points_one_by_one(faults) if entry_point.group in _GROUPS]
    found = []
    for entry_point in ours:
        dist = entry_point.dist
        name, version = (dist.name, dist.version) if dist is not None else (None, None)
        info = PluginInfo(
            kind=_GROUPS[entry_point.group],
            name=entry_point.name,
            dist=str(name or "unknown"),
            version=str(version or "0"),
            target=entry_point.value,
        )
        found.append((info, entry_point))
    return found, faults


def _entry_points_one_by_one(faults: list[str]) -> Iterator[EntryPoint]:
    seen: set[str] = set()
    for dist in distributions():
        name = str(dist.name or "unknown")
        if _normal(name) in seen:
            continue  # shadowed by an earlier entry of sys.path
        seen.add(_normal(name))
        try:
            yield from dist.entry_points
        except (ValueError, TypeError, AttributeError, OSError) as error:
            faults.append(f"{name}: its entry_points.txt cannot be read: {describe(error)}")


def _load(info: PluginInfo, entry_point: EntryPoint) -> Any:
    try:
        if info.kind == "commands":
            cls = entry_point.load()  # no job file names a command, and stevedore takes its time to import
        else:
            from rollout.core.drivers import Driver

            cls = Driver(entry_point).driver
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # importing foreign code may end in anything, sys.exit() included
        raise PluginError(f"{info} cannot be imported: {describe(error)}") from error
    _check(info, cls)
    return cls


def _check(info: PluginInfo, cls: Any) -> None:
    if info.kind in _CALLABLE_KINDS:
        if not callable(cls):
            raise PluginError(f"{info} is a {type(cls).__name__}, which cannot be called")
        if not hasattr(cls, "options_type"):
            return  # a plain function
    from rollout.core.plugin_contract import check_contract

    check_contract(info.kind, cls, str(info))


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise PluginError(f"no kind of plugin is called {kind!r}{_did_you_mean(kind, KINDS)}; there are {', '.join(KINDS)}")
    return kind


def _unknown(kind: str, name: str) -> str:
    from rollout.core.plugin_hints import distribution_for, known_names

    dist, _, bare = name.rpartition(":")
    here = sorted({info.name for info in list_plugins(kind)})
    text = f"no {_SINGULAR[kind]} {name!r} is installed"
    left_out = [info for info, _ in _scan(tuple(sys.path))[0] if info.kind == kind and info.name == bare]
    left_out = [info for info in left_out if not dist or _normal(info.dist) == _normal(dist)]
    hint = distribution_for(kind, bare) or distribution_for(kind, re.split("[:/]", name)[0])
    if left_out:
        text += f"; {left_out[0].dist} has it, and {_ALLOWED_VARIABLE} leaves that out"
    elif hint is not None:
        text += f"; `pip install {hint}` brings it"
        if kind == "environments":
            text += ", and `type: local` needs nothing more"
    else:
        text += _did_you_mean(bare, {*here, *known_names(kind)} - {bare})
    text += f"; installed: {', '.join(here) or 'none'}"
    return "; ".join([text, *problems()])


def _option_fault(text: str) -> str:
    """msgspec's message with the place first: ``max_turns: expected `int` >= 1``."""
    what, _, place = text.rpartition(" - at `$")
    if not what:
        what, place = text, ""
    place = place.rstrip("`").lstrip(".")
    what = re.sub(r"^Object missing required field `(.*)`$", r"option '\1' is missing", what)
    what = re.sub(r"^Object contains unknown field `(.*)`$", r"no key '\1'", what)
    what = what[:1].lower() + what[1:]
    return f"{place}: {what}" if place else what


def _did_you_mean(word: str, names: Iterable[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word, list(names), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _normal(dist: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", dist).lower()
