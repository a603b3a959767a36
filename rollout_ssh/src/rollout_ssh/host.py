"""One host of a job: connecting to it, and its relay while there is one."""

from __future__ import annotations

import asyncio
from typing import Any

import paramiko

from rollout.core.aio import Blocking
from rollout.core.errors import SandboxError
from rollout_ssh.address import Endpoint
from rollout_ssh.connection import ChannelWire, Connection, Login, Refused, Unreachable, connect
from rollout_ssh.options import SshOptions
from rollout_ssh.session import Session
from rollout_ssh.shipping import command_line


class Host:
    """Connects when it is first used, and again when the connection was lost."""

    def __init__(self, endpoint: Endpoint, login: Login, options: SshOptions, job_id: str) -> None:
        self.endpoint = endpoint
        self.login = login
        self._options = options
        self._job_id = job_id
        self._session: Session | None = None
        self._launching: asyncio.Future[Session] | None = None
        self._spare: Connection | None = None
        self._closed = False

    @property
    def name(self) -> str:
        return self.endpoint.name

    @property
    def last_session(self) -> Session | None:
        """The relay that there is, or was."""
        return self._session

    def connect(self) -> Connection:
        """Blocks. Raises Refused, Unreachable."""
        return connect(self.endpoint, self.login)

    def lend(self) -> Connection:
        """A connection for one lease; another's, if it was given back in order. Blocks. Raises Refused, Unreachable."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.alive:
            return spare
        if spare is not None:
            spare.close()
        return self.connect()

    def keep(self, connection: Connection) -> None:
        """Take a connection back."""
        if self._spare is None and not self._closed:
            self._spare = connection
        else:
            connection.close()

    def launch(self) -> Session:
        """The relay, started if need be. Blocks; needs no event loop.

        Raises:
            Refused, Unreachable
        """
        if self._session is None or self._session.ended is not None:
            connection = self.connect()
            try:
                self._session = self._launch(connection)
            except BaseException:
                connection.close()
                raise
        return self._session

    async def session(self, blocking: Blocking) -> Session:
        """The relay, serving this event loop.

        Raises:
            Refused, Unreachable
        """
        session = self._session
        if session is None or session.ended is not None:
            if self._launching is None:
                # it belongs to no caller: a thread cannot be cancelled, and what it makes must not be lost
                self._launching = asyncio.ensure_future(blocking(self.launch))
                self._launching.add_done_callback(self._launched)
            session = await asyncio.shield(self._launching)
        session.attach()
        return session

    async def aclose(self, blocking: Blocking) -> None:
        self._closed = True
        if self._launching is not None:
            await asyncio.wait([self._launching])
        spare, self._spare = self._spare, None
        if spare is not None:
            await blocking(spare.close)
        if self._session is not None:
            await self._session.aclose()

    def _launched(self, done: asyncio.Future[Session]) -> None:
        self._launching = None
        if not done.cancelled():
            done.exception()  # seen: whoever asked may have gone

    def _launch(self, connection: Connection) -> Session:
        timeout = self.login.timeout_sec
        try:
            channel = connection.run(command_line(self._options.python), timeout)
        except paramiko.ChannelException as error:
            raise Unreachable(f"{self.name}: it opens no channel: {error.text}") from error
        channel.settimeout(max(60.0, timeout))
        try:
            session = Session.launch(self.name, ChannelWire(connection, channel), self._config(), self._options.lost_after_sec)
        except TimeoutError as error:
            raise Unreachable(f"{self.name}: the program that was sent there does not answer") from error
        except OSError as error:
            raise Unreachable(f"{self.name}: {error}") from error
        except SandboxError as error:
            text = str(error)
            if "not found" in text or "No such file" in text:
                text += " (`mode: namespace` needs Python there: install python3, or name it with `python`)"
            raise Refused(text) from error
        channel.settimeout(None)
        return session

    def _config(self) -> dict[str, Any]:
        options = self._options
        return {
            "job": self._job_id,
            "folder": options.folder,
            "share": options.share,
            "mask": options.mask,
            "rootfs": options.rootfs,
            "programs": engine_programs(options),
            "image": options.image,
        }


def engine_programs(options: SshOptions) -> list[str]:
    """What the engine's command may be called on the hosts; none where no engine is used."""
    if options.mode != "apptainer":
        return []
    named = options.engine.get("program")
    return [named] if isinstance(named, str) else ["apptainer", "singularity"]
