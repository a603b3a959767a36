"""The agents that come along. `rollout_agents.manifests:NAME` is the class of NAME.toml, read when it is first asked for."""

from __future__ import annotations

from importlib.resources import files
from typing import Any


def names() -> list[str]:
    """The manifests that are here."""
    found = (entry.name for entry in files(__name__).iterdir())
    return sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml"))


def __getattr__(name: str) -> Any:
    file = f"{name.replace('_', '-')}.toml"
    if name.startswith("_") or not (files(__name__) / file).is_file():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rollout_agents.agent import agent_from

    value = globals()[name] = agent_from(__name__, file)
    return value
