"""What a zygote is told of a sandbox that it is to start: the same for this machine and for others."""

from __future__ import annotations

from typing import Any

from rollout.core.egress.access import DNS_PORT, PROXY_PORT, RELAY_ADDRESS, proxy_env, relay_ports
from rollout.core.sandbox.layers import ImageConfig
from rollout.core.sandbox.limits import group_limits
from rollout.core.types import EnvironmentSpec

DEFAULT_WORKDIR = "/app"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHM_BYTES = 2 * 1024**3

EMPTY_CONFIG: dict[str, Any] = {
    "layers": [],
    "upper": None,
    "limits": {},
    "network": "none",
    "relay": {},
    "env": {},
    "user": None,
    "workdir": "/",
    "tmpfs_bytes": 0,
    "shm_bytes": 1 << 20,
    "max_file_bytes": 0,
}


def sandbox_config(
    spec: EnvironmentSpec,
    image: ImageConfig,
    *,
    name: str,
    network: str,
    groups: dict[str, list[str]],
    pids: int | None,
    tmpfs: bool,
    upper: str | None = None,
) -> dict[str, Any]:
    """The sandbox of one trial, or of one build when it writes to the folder `upper`.

    `network`: `host`, `none`, or `relay`: nothing but sockets that are served outside (SandboxEnvironment.open_relay).

    `groups`: which limits can be enforced there. `name`: of its control group, with the job's id.
    """
    resources = spec.resources
    storage = resources.storage_bytes or 0
    relayed = network == "relay"
    return {
        "name": name,
        "layers": image.layers,
        "upper": upper,
        "limits": {limit: value for limit, value in group_limits(resources, pids).items() if limit in groups},
        "network": network,
        "relay": {"address": RELAY_ADDRESS, "ports": [*relay_ports(spec), PROXY_PORT], "names": DNS_PORT} if relayed else {},
        "env": {"PATH": _PATH, "LANG": "C.UTF-8", **image.env, **(proxy_env(RELAY_ADDRESS) if relayed else {}), **spec.env},
        "user": image.user,
        "workdir": spec.workdir or image.workdir or DEFAULT_WORKDIR,
        "tmpfs_bytes": (storage or resources.memory_bytes or _SHM_BYTES) if tmpfs and upper is None else 0,
        "shm_bytes": min(resources.memory_bytes or _SHM_BYTES, _SHM_BYTES),
        "max_file_bytes": storage,
    }
