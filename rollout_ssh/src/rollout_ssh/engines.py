"""`mode: docker` and `mode: apptainer`: the container engines of the hosts, through the environment that knows them."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from rollout.core.errors import ConfigError
from rollout.core.plugins import decode_options, find
from rollout.core.protocols import BackendContext, EnvironmentBackend
from rollout_ssh.address import find_hosts
from rollout_ssh.containers import ContainerHosts
from rollout_ssh.options import SshOptions

_OWN = ("identity_file", "password_file", "config", "known_hosts", "unknown_hosts", "folder", "python", "agent")
"""What other environments do not take from us: they log in with the ssh program, which has a configuration of its own."""
_OF_NAMESPACES = ("rootfs", "share", "mask", "network", "pids", "tmpfs")


def docker_hosts(options: SshOptions, context: BackendContext) -> EnvironmentBackend:
    """The backend of the docker environment, told to use the engines of our hosts.

    Raises:
        ConfigError: an option means nothing there.
        PluginError: it is not installed.
    """
    mode, usual = options.mode, SshOptions(hosts=["any"])
    for name in _OWN:
        if getattr(options, name) != getattr(usual, name):
            raise ConfigError(
                f"environment.options.{name}: mode: {mode} logs in with the ssh program: put it into your ssh configuration "
                "(IdentityFile, UserKnownHostsFile ...), or load the key into an agent"
            )
    plugin = find("environments", mode)
    file = context.base_dir / os.path.expanduser(options.host_file) if options.host_file else None
    hosts: list[dict[str, Any]] = [
        {"host": f"ssh://{entry.text}", "slots": entry.slots or options.slots} for entry in find_hosts(options.hosts, file)
    ]
    decoded = decode_options(plugin, {**options.engine, "hosts": hosts}, "environment.options.engine")
    backend: EnvironmentBackend = plugin.cls(decoded, context)
    return backend


def container_hosts(options: SshOptions, context: BackendContext) -> ContainerHosts:
    """Containers that our relays start on the hosts, as the apptainer environment of this machine says.

    Raises:
        ConfigError
        PluginError: it is not installed.
    """
    usual = SshOptions(hosts=["any"])
    for name in _OF_NAMESPACES:
        if getattr(options, name) != getattr(usual, name):
            raise ConfigError(f"environment.options.{name}: `mode: apptainer` does not have it; its own options are in `engine`")
    plugin = find("environments", options.mode)
    decoded = decode_options(plugin, options.engine, "environment.options.engine")
    engine = options.engine
    told = msgspec.structs.replace(options, pids=engine.get("pids", options.pids), network=engine.get("network"))
    return ContainerHosts(told, context, plugin.cls(decoded, context))
