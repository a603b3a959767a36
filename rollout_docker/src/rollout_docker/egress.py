"""Networks with a list of allowed hosts, or with another in each phase of a trial.

A container that may reach some hosts is on an internal network of its own, on which the engine's machine has no address. The only
other thing there is a second container, which answers questions for the allowed names and relays connections to them; it alone is
on the engine's usual network too. Nothing that root can do inside the first container leads around it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollout.core import egress
from rollout.core.aio import Blocking
from rollout.core.egress.access import accesses, proxy_env, relay_ports
from rollout.core.errors import EnvironmentLostError, SandboxError, StartError, TeardownError
from rollout.core.types import Command, EnvironmentSpec, NetworkAccess
from rollout_docker.command import Container
from rollout_docker.engine import Engine, Refused
from rollout_docker.environment import DockerEnvironment, remove_container
from rollout_docker.options import DockerOptions

_PACKAGE = Path(egress.__path__[0])
_FOLDER = "/rollout"
_PYTHON = ("python3", "-I", "-S", "-c")
_START = f"import sys; sys.path.insert(0, {_FOLDER!r}); from {_PACKAGE.name}.program import"
_MACHINE = "host.docker.internal:host-gateway"
_MEMORY_BYTES = 256 * 1024**2


def needs_relay(spec: EnvironmentSpec) -> bool:
    return any(access.mode == "allowlist" for access in accesses(spec))


class Relay:
    """The container beside a trial's, and the network of the two."""

    def __init__(self, container: Container, blocking: Blocking, network: str) -> None:
        self._environment = DockerEnvironment(container, blocking, None)
        self._container = container
        self.network = network
        self.address = ""

    @classmethod
    async def start(
        cls, engine: Engine, blocking: Blocking, options: DockerOptions, spec: EnvironmentSpec, name: str, image: str, job_id: str
    ) -> Relay:
        """Make the network and start the relay; it lets nothing through until it is told.

        Raises:
            SandboxError: leaves nothing behind.
        """
        labels = {**spec.labels, "rollout.job": job_id}
        relay = cls(Container(engine, f"{name}-egress", f"{name}-egress", "/"), blocking, name)
        try:
            made = {
                "Name": name,
                "Internal": True,
                "CheckDuplicate": True,
                "Labels": labels,
                # without an address of the machine, whose services the container could reach there
                "Options": {"com.docker.network.bridge.inhibit_ipv4": "true"},
            }
            await engine.call("POST", "/networks/create", made)
            found = await engine.call("GET", f"/networks/{name}")
            config = {"towards": _gateway(found), "ports": relay_ports(spec)}
            body = _body(image, config, options, labels)
            created = await engine.call("POST", "/containers/create", body, {"name": f"{name}-egress"})
            relay._container.id = created["Id"]
            await relay._environment.upload(_PACKAGE, f"{_FOLDER}/{_PACKAGE.name}")
            await engine.call("POST", f"/networks/{name}/connect", {"Container": created["Id"]})
            await engine.call("POST", f"/containers/{created['Id']}/start")
            details = await engine.call("GET", f"/containers/{created['Id']}/json")
            relay.address = details["NetworkSettings"]["Networks"][name]["IPAddress"]
            await relay.allow(accesses(spec)[0])
        except BaseException as error:
            await relay.remove()
            if isinstance(error, EnvironmentLostError):
                raise StartError(f"{error}; its image {image} needs Python 3 (`options.egress_image`)") from error
            raise
        return relay

    @property
    def env(self) -> dict[str, str]:
        return proxy_env(self.address)

    async def allow(self, access: NetworkAccess) -> None:
        """
        Raises:
            SandboxError: it does not answer.
        """
        told = json.dumps({"hosts": access.hosts, "everything": access.mode == "public"}).encode()
        command = Command(argv=(*_PYTHON, f"{_START} tell; tell()"), stdin=told, user="0", cwd="/")
        result = await self._environment.exec(command)
        if result.exit_code != 0:
            said = result.stderr.decode("utf-8", "replace").strip()[-300:]
            raise SandboxError(f"the container that relays connections does not do as it is told: {said}")

    async def remove(self) -> None:
        """
        Raises:
            TeardownError
        """
        await remove_container(self._container)
        await remove_network(self._container.engine, self.network)


class ContainerNetwork:
    """What a trial's container is connected to."""

    def __init__(self, container: Container, spec: EnvironmentSpec, usual: str, relay: Relay | None) -> None:
        """`usual`: the engine's network for what is public."""
        self._container = container
        self._usual = usual
        self._relay = relay
        self._public = spec.network == "public" and relay is None
        self._nowhere = spec.network == "none" and relay is None

    async def set(self, access: NetworkAccess) -> None:
        """
        Raises:
            SandboxError: the engine does not do it.
        """
        public = access.mode == "public"
        if self._public and not public:
            await self._join("disconnect", self._usual)
        if self._relay is not None:
            await self._relay.allow(access)
        if public and self._nowhere:
            await self._join("disconnect", "none")
            self._nowhere = False
        if public and not self._public:
            await self._join("connect", self._usual)
        self._public = public

    async def _join(self, what: str, network: str) -> None:
        body: dict[str, Any] = {"Container": self._container.id}
        if what == "disconnect":
            body["Force"] = True
        await self._container.engine.call("POST", f"/networks/{network}/{what}", body)


async def remove_network(engine: Engine, name: str) -> None:
    """Fine when it is gone already.

    Raises:
        TeardownError
    """
    try:
        await engine.call("DELETE", f"/networks/{name}")
    except Refused as error:
        if error.status != 404:
            raise TeardownError(f"the network {name} cannot be removed: {error}") from error
    except SandboxError as error:
        raise TeardownError(f"the network {name} cannot be removed: {error}") from error


async def reap_networks(engine: Engine, job_id: str) -> Sequence[str]:
    """Remove the networks that a dead job left; a line each."""
    query = {"filters": json.dumps({"label": [f"rollout.job={job_id}"]})}
    removed = []
    for found in await engine.call("GET", "/networks", query=query):
        await remove_network(engine, found["Id"])
        removed.append(f"network {found['Name']}")
    return removed


def _gateway(network: dict[str, Any]) -> str:
    """An address in the network's range."""
    config = network["IPAM"]["Config"][0]
    return str(config.get("Gateway") or config["Subnet"].partition("/")[0])


def _body(image: str, config: dict[str, Any], options: DockerOptions, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "Image": image,
        "Entrypoint": [*_PYTHON, f"{_START} main; main()", json.dumps(config)],
        "Cmd": [],
        "User": "0",
        "WorkingDir": "/",
        "Labels": labels,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "Init": True,
            "NetworkMode": options.network or "default",
            "ExtraHosts": [_MACHINE],
            "LogConfig": {"Type": "none"},
            "CapDrop": ["ALL"],
            "CapAdd": ["NET_BIND_SERVICE"],
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": 64,
            "Memory": _MEMORY_BYTES,
            "MemorySwap": _MEMORY_BYTES,
        },
    }
