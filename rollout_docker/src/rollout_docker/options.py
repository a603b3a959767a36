"""`environment.options` of `type: docker`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from rollout.core.quantity import Quantity, parse_bytes
from rollout.core.types import Struct

_SCHEMES = ("unix://", "tcp://", "ssh://")


class TlsOptions(Struct, frozen=True, kw_only=True):
    """`tls:` the files that prove who is who to an engine at `tcp://`. Relative paths start from the job file."""

    ca_file: str | None = None
    """Certificate of the authority that signed the engine's. Unset: the machine's own authorities."""
    cert_file: str | None = None
    """Our certificate."""
    key_file: str | None = None
    """The key of `cert_file`, without a passphrase."""

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("`cert_file` and `key_file` go together")


class HostOptions(Struct, frozen=True, kw_only=True):
    """An item of `hosts:`."""

    host: str
    """The engine's address, as in `options.host`."""
    slots: Annotated[int, Meta(ge=1)] | None = None
    """How many trials run there at once; unset is no limit but the job's own."""
    tls: TlsOptions | None = None

    def __post_init__(self) -> None:
        _check_address(self.host, self.tls)


class DockerOptions(Struct, frozen=True, kw_only=True):
    """`environment.options` of `type: docker`."""

    host: str | None = None
    """The engine's address: `unix:///path`, `tcp://host:port` or `ssh://user@host[:port][/path]`. Unset: DOCKER_HOST, else the
    current docker context, else an engine of this machine (Docker, or Podman)."""
    context: str | None = None
    """A docker context, instead of `host`; `docker context ls` lists them."""
    tls: TlsOptions | None = None
    """For `host: tcp://...`. Unset: DOCKER_TLS_VERIFY and DOCKER_CERT_PATH say."""
    hosts: list[str | HostOptions] = []
    """Several engines instead of one `host`: addresses, or `{host, slots, tls}`. A trial goes to the least loaded."""
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
    egress_image: str = "python:3.13-alpine"
    """An image with Python 3.11 or later, for the container that relays what tasks with a list of allowed hosts may reach."""
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
        given = [name for name in ("host", "context", "hosts") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"give one of host, context and hosts (there is {', '.join(given)})")
        if self.host is not None:
            _check_address(self.host, self.tls)
        elif self.tls is not None:
            raise ValueError("`tls` goes with `host`; an item of `hosts` has a `tls` of its own")
        addresses = [item if isinstance(item, str) else item.host for item in self.hosts]
        for item in self.hosts:
            if isinstance(item, str):
                _check_address(item, None)
        twice = sorted({address for address in addresses if addresses.count(address) > 1})
        if twice:
            raise ValueError(f"`hosts` has {twice[0]} twice; how many trials a host takes is its `slots`")


def _check_address(address: str, tls: TlsOptions | None) -> None:
    if not address.startswith(_SCHEMES):
        raise ValueError(
            f"{address!r} is no address that can be used; write unix:///path, tcp://host:port or ssh://user@host[:port]"
        )
    if tls is not None and not address.startswith("tcp://"):
        raise ValueError(f"`tls` goes with tcp://host:port, not with {address}")
