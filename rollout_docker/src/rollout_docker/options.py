"""`environment.options` of `type: docker`."""

from __future__ import annotations

from typing import Literal

from rollout.core.quantity import Quantity, parse_bytes
from rollout.core.types import Struct


class DockerOptions(Struct, frozen=True, kw_only=True):
    """`environment.options` of `type: docker`."""

    host: str | None = None
    """The engine's address, `unix:///path` or `tcp://host:port`. Unset: DOCKER_HOST, else the current docker context."""
    pull: Literal["missing", "always", "never"] = "missing"
    """When a task's `docker_image`, and the images its Dockerfile starts from, are fetched."""
    build_args: dict[str, str] = {}
    """Arguments of every build. They stay readable in the image's history: not for secrets."""
    target: str | None = None
    """The stage of the Dockerfile to build; unset is the last."""
    platform: str | None = None
    """For instance `linux/amd64`; unset is the engine's own."""
    network: str | None = None
    """An existing network for tasks that may use one, instead of the engine's default bridge."""
    pids: int | None = 4096
    """Processes and threads of one container; null is no limit."""
    shm_size: Quantity | None = None
    """Size of /dev/shm; unset is the engine's own (64Mi)."""
    ulimits: dict[str, int] = {}
    """Name to limit, for instance `nofile: 20000`."""
    mounts: list[str] = []
    """Folders of the engine's machine as `/there:/in/container[:ro]`, in every container. Agents can read them."""

    def __post_init__(self) -> None:
        if self.pids is not None and self.pids < 1:
            raise ValueError("`pids` must be at least 1")
        if self.shm_size is not None:
            parse_bytes(self.shm_size)
        for mount in self.mounts:
            parts = mount.split(":")
            if (
                len(parts) not in (2, 3)
                or not all(part.startswith("/") for part in parts[:2])
                or parts[2:] not in ([], ["ro"], ["rw"])
            ):
                raise ValueError(f"{mount!r} is not a mount; write /there:/in/container or /there:/in/container:ro")
        if self.host is not None and not self.host.startswith(("unix://", "tcp://")):
            raise ValueError(f"{self.host!r} is no address that can be used; write unix:///path or tcp://host:port")
