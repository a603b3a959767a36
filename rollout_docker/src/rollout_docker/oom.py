"""What the engine says about processes that the kernel killed for memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter

from rollout.core.errors import SandboxError
from rollout_docker.engine import Engine

logger = logging.getLogger(__name__)
_AGAIN_SEC = 1.0


class OomWatch:
    """Listens to the engine for one job's containers, on one connection."""

    def __init__(self, engine: Engine, job_id: str) -> None:
        self._engine = engine
        filters = {"type": ["container"], "event": ["oom"], "label": [f"rollout.job={job_id}"]}
        self._query = {"filters": json.dumps(filters)}
        self._counts: Counter[str] = Counter()
        self._task = asyncio.ensure_future(self._listen())

    def count(self, container_id: str) -> int:
        """How often it happened in a container."""
        return self._counts[container_id]

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _listen(self) -> None:
        while True:
            lines = self._engine.lines("GET", "/events", self._query)
            try:
                async with contextlib.aclosing(lines):
                    async for event in lines:
                        self._counts[event["Actor"]["ID"]] += 1
            except SandboxError as error:
                logger.debug("events of the engine: %s", error)
            await asyncio.sleep(_AGAIN_SEC)
