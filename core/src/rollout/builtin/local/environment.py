"""Starting one sandbox of this machine."""

from __future__ import annotations

from typing import Any

from rollout.builtin.local.zygote import Zygote, start_error
from rollout.core.aio import Blocking
from rollout.core.sandbox.environment import SandboxEnvironment
from rollout.core.sandbox.oom import OomCounter

_OTHER_USERS = "type: local needs root for that, or subordinate ids (/etc/subuid, /etc/subgid and newuidmap)"


async def start_environment(zygote: Zygote, blocking: Blocking, config: dict[str, Any]) -> SandboxEnvironment:
    """Raises StartError. Leaves nothing behind when it fails or is cancelled."""
    token, control = zygote.start(config)
    environment = SandboxEnvironment(
        control,
        blocking,
        OomCounter(zygote.groups, config["name"]),
        lambda: zygote.stop(token),
        refused=start_error,
        only_root=_OTHER_USERS if zygote.ids == "one" else None,
    )
    await environment.ready()
    return environment
