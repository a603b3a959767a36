"""`mode: host`: a machine that is leased to a trial, as its commands need to know it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import paramiko

from rollout.core.aio import Blocking
from rollout.core.errors import EnvironmentLostError, HostLostError, SandboxError
from rollout_ssh import scripts
from rollout_ssh.channels import Channels
from rollout_ssh.connection import Unreachable
from rollout_ssh.holder import Holder
from rollout_ssh.sending import give

if TYPE_CHECKING:
    from rollout_ssh.bare_command import BareCommand

_READ = 1 << 18


class LeasedMachine:
    """The channels to it, what runs on it, and whether it is lost. Belongs to one event loop."""

    def __init__(self, name: str, channels: Channels, holder: Holder, blocking: Blocking) -> None:
        self.name = name
        self.channels = channels
        self.holder = holder
        self.blocking = blocking
        self.running: set[BareCommand] = set()
        self.gone: EnvironmentLostError | None = None
        self.env: Mapping[str, str] = {}
        self.workdir = "/"
        self.user: str | None = None
        self.file_bytes: int | None = None
        """The largest file that a command may write."""
        holder.on_lost = self.lost

    def check(self) -> None:
        """Raises EnvironmentLostError, HostLostError."""
        if self.gone is not None:
            raise self.gone

    def lost(self, why: str) -> HostLostError:
        error = HostLostError(f"{self.name} is lost: {why}")
        self.lose(error)
        return error

    def lose(self, error: EnvironmentLostError) -> None:
        self.gone = self.gone or error
        for running in list(self.running):
            running.lose(error)
        self.running.clear()

    def account(self, user: str | None) -> str | None:
        """Whom a command has to become; None is to stay who we are. Raises SandboxError."""
        user = user or self.user
        if self.holder.user_id == 0 or user is None:
            return user
        if user in ("root", "0", "0:0", "root:root"):
            return None
        raise SandboxError(f"{self.name} cannot run as user {user}: that takes to log in as root")

    async def shell(self, script: str, *words: str) -> None:
        """Run a script outside of the trial's processes, to its end.

        Raises:
            HostLostError
        """
        line, data = scripts.command_line(scripts.whole(script), *words)
        try:
            channel, release = await self.channels.open(line)
        except Unreachable as error:
            raise self.lost(str(error)) from error
        try:
            await self.blocking(_talk, channel, data)
        finally:
            channel.close()
            release()

    async def close(self) -> None:
        """Give the lease back, unless the machine is lost.

        Raises:
            HostLostError: it is, by now.
        """
        lost = isinstance(self.gone, HostLostError)
        self.lose(EnvironmentLostError("the environment was stopped"))
        try:
            if lost:
                self.check()
            await self.holder.release()
        finally:
            self.holder.close()
            await self.blocking(self.channels.close)


def _talk(channel: paramiko.Channel, data: bytes) -> None:
    """Give a script to a shell and wait for its end."""
    if give(channel, data, last=True):
        while channel.recv(_READ):
            pass
