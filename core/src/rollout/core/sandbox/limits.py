"""Resource limits of a sandbox: what is asked for, what this machine can enforce, and whether memory ran out."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from rollout.core.types import Resources

_NAMES = {"memory": "memory", "cpu": "cpus", "pids": "pids"}


def group_limits(resources: Resources, pids: int | None) -> dict[str, Any]:
    """Limits by controller of control groups."""
    wanted = {"memory": resources.memory_bytes, "cpu": resources.cpus, "pids": pids}
    return {controller: value for controller, value in wanted.items() if value is not None}


def unenforced(
    resources: Resources,
    pids: int | None,
    groups: Container[str],
    *,
    tmpfs: bool,
    where: str = "type: local",
    instead: str | None = "environment.options.tmpfs: true",
) -> str | None:
    """A line that names the limits which are asked for and not enforced there, or None. `tmpfs`: the sum of what is written is
    limited; `instead`: what would limit it. `groups`: the controllers that there are."""
    missing = [_NAMES[name] for name in group_limits(resources, pids) if name not in groups]
    parts = []
    if missing:
        why = "this user may not make control groups here"
        parts.append(f"{', '.join(missing)} (not at all: {why})")
    if resources.storage_bytes is not None and not tmpfs:
        remedy = f"; `{instead}` limits the sum" if instead else ""
        parts.append(f"storage (for each file, not for all together{remedy})")
    return f"{where} does not fully enforce these limits: {'; '.join(parts)}" if parts else None
