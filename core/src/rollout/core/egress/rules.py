"""What a list of allowed hosts means: names, `*.name`, addresses and networks, each of them for every port or for one."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

WEB_PORTS = (80, 443)
"""Ports on which a host that is named without one can be reached by its name."""

_NAME = re.compile(r"(?:\*\.)?(?!-)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*", re.ASCII)
_HELP = "write a name, *.name, an address or a network, with :port or without"


class Rule:
    """One item of the list."""

    def __init__(self, text: str) -> None:
        """
        Raises:
            ValueError: it is none of what can be listed.
        """
        self.text = text
        self.network: ipaddress.IPv4Network | ipaddress.IPv6Network | None = None
        self.name = ""
        host, self.port = _split(text.strip())
        try:
            self.network = ipaddress.ip_network(host, strict=False)
        except ValueError:
            self.name = _ascii(host)
            if not _NAME.fullmatch(self.name) or self.name.rpartition(".")[2].isdecimal():
                raise ValueError(f"{text!r} is no host that can be allowed: {_HELP}") from None

    @property
    def wildcard(self) -> bool:
        return self.name.startswith("*.")

    def meets_port(self, port: int) -> bool:
        return self.port is None or self.port == port

    def meets_name(self, name: str) -> bool:
        """Whether it is this name, or one below it for `*.name`."""
        if self.wildcard:
            return name.endswith(self.name[1:]) and len(name) > len(self.name) - 1
        return bool(self.name) and name == self.name


class Rules:
    """A list of allowed hosts."""

    def __init__(self, texts: Iterable[str], everything: bool = False) -> None:
        """`everything`: the list does not matter, everything is allowed.

        Raises:
            ValueError: one of them is none of what can be listed.
        """
        self.everything = everything
        self._rules = [Rule(text) for text in texts]

    def knows(self, name: str) -> bool:
        """Whether a name is allowed on any port."""
        return self.everything or any(rule.meets_name(canonical(name)) for rule in self._rules)

    def allows(self, host: str, port: int) -> bool:
        """Whether a name, or an address, may be reached on a port."""
        if not host:
            return False  # a resolver would take it for the machine itself
        if self.everything:
            return True
        rules = [rule for rule in self._rules if rule.meets_port(port)]
        try:
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return any(rule.meets_name(canonical(host)) for rule in rules)
        address = getattr(address, "ipv4_mapped", None) or address
        return any(rule.network is not None and address in rule.network for rule in rules)

    def trusts(self, name: str, port: int) -> bool:
        """Whether a name is allowed by itself, so that it may also stand for an address of the machine that relays."""
        return self.everything or any(
            rule.meets_port(port) and not rule.wildcard and rule.meets_name(canonical(name)) for rule in self._rules
        )

    def sole(self, port: int) -> str | None:
        """The name that a connection to a port is for, when it can be for one only."""
        if self.everything:
            return None
        names = {
            rule.name for rule in self._rules if rule.name and (rule.port == port or (rule.port is None and port in WEB_PORTS))
        }
        name = names.pop() if len(names) == 1 else None
        return None if name is None or name.startswith("*.") else name

    @property
    def ports(self) -> list[int]:
        """Where connections by name are waited for."""
        return sorted({*WEB_PORTS, *(rule.port for rule in self._rules if rule.port is not None)})


def canonical(name: str) -> str:
    """A name as rules have it."""
    return name.lower().rstrip(".")


def _split(text: str) -> tuple[str, int | None]:
    """Host and port of `host`, `host:port`, `[v6]`, `[v6]:port`, or an IPv6 address as it is."""
    found = re.fullmatch(r"\[([^]]*)\](?::(\d+))?|([^:]*):(\d+)", text)
    if found is None:
        return text, None
    host = found[1] if found[1] is not None else found[3]
    digits = found[2] or found[4]
    port = int(digits) if digits else None
    if port is not None and not 0 < port < 65536:
        raise ValueError(f"{text!r}: there is no port {port}")
    return host, port


def _ascii(host: str) -> str:
    name = canonical(host)
    try:
        return name if name.isascii() else name.encode("idna").decode("ascii")
    except UnicodeError:
        return ""
