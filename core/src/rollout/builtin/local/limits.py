"""Resource limits of a sandbox: what is asked for, what this machine can enforce, and whether memory ran out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollout.core.types import Resources

_NAMES = {"memory": "memory", "cpu": "cpus", "pids": "pids"}


def group_limits(resources: Resources, pids: int | None) -> dict[str, Any]:
    """Limits by controller of control groups."""
    wanted = {"memory": resources.memory_bytes, "cpu": resources.cpus, "pids": pids}
    return {controller: value for controller, value in wanted.items() if value is not None}


def unenforced(resources: Resources, pids: int | None, groups: dict[str, list[str]], *, tmpfs: bool) -> str | None:
    """A line that names the limits which are asked for and not enforced here, or None."""
    missing = [_NAMES[name] for name in group_limits(resources, pids) if name not in groups]
    parts = []
    if missing:
        why = "this user may not make control groups here"
        parts.append(f"{', '.join(missing)} (not at all: {why})")
    if resources.storage_bytes is not None and not tmpfs:
        parts.append("storage (for each file, not for all together; `environment.options.tmpfs: true` limits the sum)")
    return f"type: local does not fully enforce these limits: {'; '.join(parts)}" if parts else None


class OomCounter:
    """How many processes of one sandbox the kernel has killed for memory."""

    def __init__(self, groups: dict[str, list[str]], name: str) -> None:
        self._path: Path | None = None
        if "memory" in groups:
            generation, parent = groups["memory"]
            self._path = Path(parent, name, "memory.events" if generation == "v2" else "memory.oom_control")

    def read(self) -> int:
        """0 where it cannot be told."""
        if self._path is None:
            return 0
        try:
            lines = self._path.read_text().splitlines()
        except OSError:
            return 0
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
