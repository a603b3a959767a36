"""Starting one sandbox of this machine."""

from __future__ import annotations

from typing import Any

from rollout.builtin.local.zygote import Zygote, start_error
from rollout.core.aio import Blocking
from rollout.core.sandbox.environment import SandboxEnvironment
from rollout.core.sandbox.oom import OomCounter
from rollout.core.types import NetworkAccess

_OTHER_USERS = "type: local needs root for that, or subordinate ids (/etc/subuid, /etc/subgid and newuidmap)"


async def start_environment(
    zygote: Zygote, blocking: Blocking, config: dict[str, Any], access: NetworkAccess | None = None
) -> SandboxEnvironment:
    """Start it. `access`: what it may reach, when its network is `relay`.

    Raises:
        StartError: leaves nothing behind, also when it is cancelled.
    """
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
    if access is not None:
        await environment.open_relay(access)
    return environment
