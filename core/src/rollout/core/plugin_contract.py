"""Whether what a plugin registered is what its kind needs: the API version it was written for, its attributes and methods."""

from __future__ import annotations

from typing import Any

import msgspec

from rollout.core.errors import PluginError
from rollout.core.protocols import (
    API_VERSION,
    Agent,
    EnvironmentBackend,
    Executor,
    Metric,
    RegistrySource,
    RewardFunc,
    Verifier,
)

_PROTOCOLS: dict[str, type] = {
    "environments": EnvironmentBackend,
    "agents": Agent,
    "verifiers": Verifier,
    "rewards": RewardFunc,
    "metrics": Metric,
    "registries": RegistrySource,
    "executors": Executor,
}


def check_contract(kind: str, cls: Any, who: str) -> None:
    """Check what can be checked without constructing anything. `who` begins every message.

    Raises:
        PluginError: another API version, or attributes or methods that the kind needs are missing.
    """
    protocol = _PROTOCOLS.get(kind)
    if protocol is None:
        return
    if not callable(cls):
        raise PluginError(f"{who} is a {type(cls).__name__}; register a class")
    check_api_version(getattr(cls, "api_version", None), who)
    options_type = getattr(cls, "options_type", None)
    if not (isinstance(options_type, type) and issubclass(options_type, msgspec.Struct)):
        raise PluginError(f"{who} has no `options_type`; name a Struct in it, or `NoOptions`")
    if isinstance(cls, type):
        missing = [name for name in _methods(protocol) if not callable(getattr(cls, name, None))]
        if missing:
            raise PluginError(f"{who} lacks {', '.join(f'`{name}`' for name in missing)} of {protocol.__name__}")


def check_api_version(version: Any, who: str) -> None:
    """Raises PluginError: written for an API that this Rollout does not offer; the text says which side to upgrade."""
    if version is None:
        raise PluginError(f"{who} has no `api_version`; write `api_version = {API_VERSION}`")
    if not (isinstance(version, tuple) and len(version) == 2 and all(type(part) is int for part in version)):
        raise PluginError(f"{who} has api_version {version!r}; it is a pair of numbers like {API_VERSION}")
    ours = ".".join(map(str, API_VERSION))
    wanted = ".".join(map(str, version))
    if version[0] < API_VERSION[0]:
        raise PluginError(f"{who} was written for plugin API {wanted}, this Rollout offers {ours}; upgrade the plugin")
    if version > API_VERSION:
        raise PluginError(f"{who} needs plugin API {wanted}, this Rollout offers {ours}; upgrade rollout-core")


def _methods(protocol: type) -> list[str]:
    return [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]
