"""Which machines `hosts`, a host file and the ssh configuration mean."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import paramiko

from rollout.core.errors import ConfigError

_MAX_HOPS = 8
_HOST = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:@\[\]/]+)(?::(?P<port>[0-9]{1,5}))?")


class HostEntry(NamedTuple):
    """A host as it was written."""

    text: str
    user: str | None
    host: str
    port: int | None
    slots: int | None


class Endpoint(NamedTuple):
    """One machine to log in to, with everything that the ssh configuration says of it."""

    name: str
    """How the user calls it."""
    host: str
    port: int
    user: str
    keys: tuple[str, ...]
    """Private keys that the configuration names."""
    known_hosts: tuple[str, ...]
    """Files of known keys that the configuration names."""
    key_alias: str | None
    """Under which name its key is known, if not `host` and `port`."""
    command: str | None
    """ProxyCommand: a program whose standard streams lead there."""
    hops: tuple[Endpoint, ...]
    """ProxyJump: the machines on the way, the nearest first."""

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}:{self.port}"


def parse_host(text: str, where: str) -> HostEntry:
    """`[user@]host[:port] [slots=N]`.

    Raises:
        ConfigError
    """
    words = text.split()
    match = _HOST.fullmatch(words[0]) if words else None
    if match is None or len(words) > 2:
        raise ConfigError(f"{where}: {text!r} is no host; write [user@]host[:port], and slots=4 after it if you like")
    slots = None
    if len(words) == 2:
        given = re.fullmatch(r"slots=([1-9][0-9]{0,4})", words[1])
        if given is None:
            raise ConfigError(f"{where}: {words[1]!r} after a host; there is only slots=4")
        slots = int(given[1])
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 0 < port < 65536:
        raise ConfigError(f"{where}: {text!r}: there is no port {port}")
    return HostEntry(words[0], match["user"], match["host"].strip("[]"), port, slots)


def read_host_file(path: Path) -> list[HostEntry]:
    """Raises ConfigError."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"environment.options.host_file: {path}: {why}") from error
    entries = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if text:
            entries.append(parse_host(text, f"{path}:{number}"))
    return entries


def find_hosts(hosts: Sequence[str], host_file: Path | None) -> list[HostEntry]:
    """All hosts that the options name, each once.

    Raises:
        ConfigError
    """
    entries = [parse_host(text, f"environment.options.hosts[{index}]") for index, text in enumerate(hosts)]
    if host_file is not None:
        entries += read_host_file(host_file)
    if not entries:
        raise ConfigError(f"environment.options.host_file: {host_file} names no host")
    seen: set[str] = set()
    for entry in entries:
        if entry.text in seen:
            raise ConfigError(
                f"environment.options.hosts: {entry.text} is there twice; `slots=2` after it lets it run two trials"
            )
        seen.add(entry.text)
    return entries


def read_ssh_config(path: Path | None) -> paramiko.SSHConfig:
    """An empty configuration where there is no file.

    Raises:
        ConfigError
    """
    if path is None or not path.is_file():
        return paramiko.SSHConfig()
    try:
        return paramiko.SSHConfig.from_path(str(path))
    except (OSError, UnicodeDecodeError, paramiko.ConfigParseError) as error:
        raise ConfigError(f"environment.options.config: {path}: {error}") from error


def resolve(entry: HostEntry, config: paramiko.SSHConfig, depth: int = 0) -> Endpoint:
    """What the configuration says of a host.

    Raises:
        ConfigError
    """
    try:
        found = config.lookup(entry.host)
    except (paramiko.ConfigParseError, paramiko.CouldNotCanonicalize, ImportError) as error:
        raise ConfigError(f"{entry.text}: the ssh configuration cannot be understood: {error}") from error
    jumps = found.get("proxyjump", "none")
    hops: tuple[Endpoint, ...] = ()
    if jumps != "none":
        if depth >= _MAX_HOPS:
            raise ConfigError(f"{entry.text}: ProxyJump leads in a circle")
        for text in jumps.split(","):
            hop = resolve(parse_host(text.strip().removeprefix("ssh://"), f"{entry.text}: ProxyJump"), config, depth + 1)
            # a first hop that is itself reached over others: these come first; what comes later is reached from the one before
            hops += (*hop.hops, hop._replace(hops=())) if not hops else (hop._replace(hops=()),)
    command = found.get("proxycommand")
    user_known = found.get("userknownhostsfile", "").split()
    return Endpoint(
        name=entry.text,
        host=found.get("hostname", entry.host),
        port=entry.port or int(found.get("port", "22")),
        user=entry.user or found.get("user") or getpass.getuser(),
        keys=tuple(os.path.expanduser(path) for path in found.get("identityfile", [])),
        known_hosts=tuple(os.path.expanduser(path) for path in user_known),
        key_alias=found.get("hostkeyalias"),
        command=command if command not in (None, "none") and not hops else None,
        hops=hops,
    )
