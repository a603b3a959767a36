"""Whether the memory of a sandbox ran out."""

from __future__ import annotations

from rollout.core.sandbox.inside import cgroups


class OomCounter:
    """How many processes of one sandbox the kernel has killed for memory."""

    def __init__(self, groups: dict[str, list[str]], name: str) -> None:
        self._file = cgroups.oom_file(groups, name)

    def read(self) -> int:
        """0 where it cannot be told."""
        return cgroups.oom_kills(self._file)
