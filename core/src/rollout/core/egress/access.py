"""Between what a task says of its network and the relay: for backends."""

from __future__ import annotations

from rollout.core.egress.relay import DNS_PORT, PROXY_PORT
from rollout.core.egress.rules import Rules
from rollout.core.types import EnvironmentSpec, NetworkAccess

__all__ = ["DNS_PORT", "PROXY_PORT", "RELAY_ADDRESS", "accesses", "proxy_env", "relay_ports", "rules_of"]

RELAY_ADDRESS = "127.66.0.1"
"""Where a relay is in a network of a sandbox's own: an address of its loopback that nothing else uses."""


def accesses(spec: EnvironmentSpec) -> tuple[NetworkAccess, ...]:
    """Everything that the network is to be, the first of them from the start on."""
    return (NetworkAccess(mode=spec.network, hosts=spec.allowed_hosts), *spec.later_networks)


def rules_of(access: NetworkAccess) -> Rules:
    return Rules(access.hosts, access.mode == "public")


def relay_ports(spec: EnvironmentSpec) -> list[int]:
    """Where a relay waits for connections by name."""
    return sorted({port for access in accesses(spec) for port in Rules(access.hosts).ports})


def proxy_env(address: str) -> dict[str, str]:
    """How programs learn of the proxy, which is for everything that is not looked up by name on the usual ports."""
    url = f"http://{address}:{PROXY_PORT}"
    proxied = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    return {**dict.fromkeys(proxied, url), **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1")}
