"""The GPUs of this machine, lent to trials."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Literal

from rollout.core.aio import off_the_clock

Kind = Literal["nv", "rocm"]

_VISIBLE = {"nv": "CUDA_VISIBLE_DEVICES", "rocm": "ROCR_VISIBLE_DEVICES"}


def kind_here(dev: Path = Path("/dev")) -> Kind | None:
    """Which kind of GPUs this machine has."""
    if (dev / "nvidiactl").exists():
        return "nv"
    return "rocm" if (dev / "kfd").exists() else None


def names_here(kind: Kind, dev: Path = Path("/dev")) -> list[str]:
    """The GPUs that this process may use: a batch system says which in the variable that programs look at."""
    given = os.environ.get(_VISIBLE[kind])
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip()]
    if kind == "nv":
        return sorted(path.name.removeprefix("nvidia") for path in dev.glob("nvidia[0-9]*"))
    return [str(index) for index, _ in enumerate(sorted(dev.glob("dri/renderD*")))]


class Gpus:
    """Lends GPUs; who wants some while none are free waits, and does not hold up the clock of its trial."""

    def __init__(self, kind: Kind, names: list[str]) -> None:
        self.kind = kind
        self.total = len(names)
        self._free = names
        self._changed = asyncio.Condition()

    async def lend(self, count: int) -> list[str]:
        async with off_the_clock(), self._changed:
            await self._changed.wait_for(lambda: len(self._free) >= count)
            lent, self._free = self._free[:count], self._free[count:]
            return lent

    async def give_back(self, names: list[str]) -> None:
        async with self._changed:
            self._free = [*names, *self._free]
            self._changed.notify_all()

    def variables(self, names: list[str]) -> dict[str, str]:
        """What a trial that was lent these sees."""
        return {_VISIBLE[self.kind]: ",".join(names), "LD_LIBRARY_PATH": "/.singularity.d/libs"}
