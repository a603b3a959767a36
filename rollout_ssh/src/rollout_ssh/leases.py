"""Bare hosts for trials: leasing one, carrying out the task's Dockerfile on it, and giving it back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import paramiko

from rollout.core.aio import Blocking, run_shielded
from rollout.core.errors import StartError
from rollout.core.sandbox import layers
from rollout.core.sandbox.build import run_steps
from rollout.core.sandbox.config import DEFAULT_WORKDIR
from rollout.core.sandbox.recipe import Recipe
from rollout.core.types import Command, EnvironmentSpec, Struct
from rollout_ssh import scripts
from rollout_ssh.bare import BareEnvironment
from rollout_ssh.channels import Channels, connected
from rollout_ssh.connection import Connection, Refused, Unreachable
from rollout_ssh.control_groups import PROBE, GroupLimits, limits_of, named
from rollout_ssh.holder import Holder
from rollout_ssh.host import Host
from rollout_ssh.machine import LeasedMachine

_CUTS = "it can cut the network off"
_SELF = "cat /proc/sys/kernel/random/boot_id; stat -c %d:%i /"
_NEEDED = "head timeout comm mkfifo chroot sort tr ls tar"
_PROBE = f"""
[ -w / ] || {{ echo "it takes a user who may write to /, such as root"; exit 1; }}
for p in {_NEEDED}; do command -v $p > /dev/null || {{ echo "there is no $p"; exit 1; }}; done
case $(tar --version 2> /dev/null) in *GNU*) ;; *) echo "its tar is not GNU tar"; exit 1;; esac
unshare --net sh -c "ip link set lo up && nsenter --target \\$\\$ --net true" 2> /dev/null && echo "{_CUTS}"
{PROBE}
"""
_OWNER = f"[ ! -f {scripts.LEASE}/token ] || cat {scripts.LEASE}/token"
_ANSWER_SEC = 60.0


async def start_bare(
    host: Host,
    spec: EnvironmentSpec,
    job_id: str,
    blocking: Blocking,
    lost_after_sec: float,
    ended: Callable[[bool], None],
    busy: Callable[[], None],
    *,
    network: str,
    pids: int | None,
) -> BareEnvironment:
    """Lease the host and make it what the task's Dockerfile says. `busy` is called when somebody else has it.

    The limits of the task hold as far as the host can enforce them, see `probe`.

    Raises:
        Refused, Unreachable, BuildError, StartError, HostLostError
    """
    limits, recipe = limits_of(spec.resources, pids), layers.read(spec)
    folder = "" if recipe is not None else spec.workdir or DEFAULT_WORKDIR
    connection = await connected(host.lend, blocking)
    try:
        token = f"{job_id}-{os.urandom(4).hex()}"
        holder = await Holder.take(
            connection, blocking, token, lost_after_sec, busy, network=network, limits=limits, folder=folder
        )
    except BaseException:
        await run_shielded(blocking(connection.close))
        raise
    channels = Channels(connection, host.connect, blocking, host.keep)
    environment = BareEnvironment(LeasedMachine(host.name, channels, holder, blocking), ended)
    try:
        await _furnish(environment, spec, recipe, holder, limits)
    except BaseException:
        environment.disown()
        await run_shielded(environment.stop())
        raise
    return environment


async def _furnish(
    environment: BareEnvironment, spec: EnvironmentSpec, recipe: Recipe | None, holder: Holder, limits: GroupLimits
) -> None:
    env, workdir, user = {}, None, None
    if recipe is not None:
        state = await run_steps(recipe, environment, holder.machine, None)
        env, workdir, user = state.env, state.workdir, state.user
    folder = spec.workdir or workdir or DEFAULT_WORKDIR
    if not holder.made:
        made = await environment.exec(Command(argv=("mkdir", "-p", folder), cwd="/"))
        if made.exit_code != 0:
            raise StartError(f"cannot make the folder {folder}: {made.stderr.decode('utf-8', 'replace').strip()}")
    environment.become({**env, **spec.env}, folder, user, limits.file_bytes)


class Facts(Struct, frozen=True, kw_only=True):
    """What a bare host can do for its trials."""

    cuts_network: bool = True
    limits: tuple[str, ...] = ()
    """Of `memory`, `cpu` and `pids`, those that it can enforce."""


def probe(host: Host) -> Facts:
    """Whether the host can be leased at all, and what it can do. Blocks.

    Raises:
        Refused, Unreachable
    """
    connection = host.connect()
    try:
        if ask(connection, _SELF) == _self():
            raise Refused(
                f"{host.name}: mode: host: this is the machine that Rollout runs on, and a lease would remove what others put "
                "into /tmp meanwhile; use `mode: namespace`"
            )
        said, found, limits = ask(connection, _PROBE).rpartition("limits:")
    except BaseException:
        connection.close()
        raise
    host.keep(connection)
    said = said.strip()
    if not found or said not in (_CUTS, ""):
        raise Refused(f"{host.name}: mode: host: {said or limits or 'its shell says nothing'}")
    return Facts(cuts_network=said == _CUTS, limits=named(limits))


def _self() -> str:
    """What `_SELF` prints on this machine."""
    status = os.stat("/")
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}\n{status.st_dev}:{status.st_ino}"


async def put_back(host: Host, job_id: str, blocking: Blocking, lost_after_sec: float) -> list[str]:
    """Put the host back where a job that is dead could not; what was done.

    Raises:
        Refused, Unreachable
    """
    connection = await connected(host.connect, blocking)
    try:
        owner = await blocking(ask, connection, _OWNER)
        if not owner.startswith(f"{job_id}-"):
            return []
        holder = await Holder.take(connection, blocking, f"{job_id}-clean", lost_after_sec, lambda: None)
        await holder.release()
        holder.close()
        return [f"the lease of {host.name}, and what its trial left"]
    finally:
        await run_shielded(blocking(connection.close))


def ask(connection: Connection, script: str) -> str:
    """What a script prints. Blocks.

    Raises:
        Unreachable
    """
    line, data = scripts.command_line(scripts.whole(script))
    try:
        channel = connection.run(line, _ANSWER_SEC)
        channel.settimeout(_ANSWER_SEC)
        channel.sendall(data)
        channel.shutdown_write()
        said = b""
        while chunk := channel.recv(4096):
            said += chunk
        channel.close()
    except (OSError, paramiko.ChannelException) as error:
        raise Unreachable(f"{connection.name}: {error}") from error
    return said.decode("utf-8", "replace").strip()
