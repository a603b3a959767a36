"""One ssh connection: getting there, checking whose key that is, logging in, and channels. All of it blocks."""

from __future__ import annotations

import base64
import errno
import hashlib
import logging
import os
import socket
import stat
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import paramiko

from rollout.core.errors import SandboxError
from rollout_ssh.address import Endpoint
from rollout_ssh.sending import broken_pipe, in_words

_SAID_BYTES = 4096
_CLOSE_SEC = 10.0
_WINDOW_BYTES = 4 << 20
_APPENDING = threading.Lock()


class Refused(SandboxError):
    """The machine, or our own caution, says no; asking again changes nothing."""


class Unreachable(SandboxError):
    """The machine does not answer now."""


class Login:
    """How to prove who we are, and which machines to trust."""

    def __init__(
        self,
        *,
        key: Path | None = None,
        agent: bool = True,
        password_file: Path | None = None,
        known_hosts: Path,
        accept_new: bool = False,
        timeout_sec: float = 20.0,
    ) -> None:
        self.key = key
        self.agent = agent
        self.password_file = password_file
        self.known_hosts = known_hosts
        self.accept_new = accept_new
        self.timeout_sec = timeout_sec


class Connection:
    """A connection that is logged in, with those it leads through."""

    def __init__(self, name: str, clients: Sequence[paramiko.SSHClient], programs: Sequence[paramiko.ProxyCommand] = ()) -> None:
        """`programs`: those whose standard streams lead there."""
        self.name = name
        self._clients = list(clients)
        self._programs = list(programs)

    @property
    def alive(self) -> bool:
        transport = self._clients[-1].get_transport()
        return transport is not None and transport.is_active()

    def run(self, command_line: str, timeout_sec: float) -> paramiko.Channel:
        """Start a command on a channel of its own.

        Raises:
            paramiko.ChannelException: the server allows no more channels.
            Unreachable: the connection is gone.
        """
        transport = self._clients[-1].get_transport()
        if transport is None:
            raise Unreachable(f"{self.name}: the connection is closed")
        try:
            channel = transport.open_session(window_size=_WINDOW_BYTES, timeout=timeout_sec)
            channel.exec_command(command_line)
        except paramiko.ChannelException:
            raise
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise Unreachable(f"{self.name}: {in_words(error)}") from error
        return channel

    def close(self) -> None:
        _close(self._clients, self._programs)


def _close(clients: Sequence[paramiko.SSHClient], programs: Sequence[paramiko.ProxyCommand]) -> None:
    for client in reversed(clients):
        transport = client.get_transport()
        client.close()
        if transport is not None and programs:
            transport.join(_CLOSE_SEC)  # it ends the program too, and stumbles when somebody else has waited for it
    for program in programs:
        process: subprocess.Popen[bytes] = program.process
        process.kill()
        process.communicate()  # which closes its pipes and waits for it


class ChannelWire:
    """A channel as the byte stream of a relay. Closes the connection with it."""

    def __init__(self, connection: Connection, channel: paramiko.Channel) -> None:
        self._connection = connection
        self._channel = channel
        self._said = b""

    def send(self, data: bytes) -> None:
        with broken_pipe():
            self._channel.sendall(data)

    def receive(self) -> bytes:
        data = self._channel.recv(1 << 18)
        self._listen()
        return data

    def end(self) -> None:
        with broken_pipe():
            self._channel.shutdown_write()

    def said(self) -> str:
        self._listen()
        lines = self._said.decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip()[:500] if lines else ""

    def close(self) -> None:
        # closing waits for the connection's own thread, which may be stuck in a network that is cut
        threading.Thread(target=self._connection.close, name="rollout-ssh closing", daemon=True).start()

    def _listen(self) -> None:
        while self._channel.recv_stderr_ready():
            self._said = (self._said + self._channel.recv_stderr(1 << 16))[-_SAID_BYTES:]


def connect(endpoint: Endpoint, login: Login) -> Connection:
    """Connect and log in, over the machines in between if there are any.

    Raises:
        Refused: unknown or changed host key, or nobody lets us in.
        Unreachable: no such host, no answer.
    """
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # every failure is in an exception too
    clients: list[paramiko.SSHClient] = []
    programs: list[paramiko.ProxyCommand] = []
    try:
        for hop in (*endpoint.hops, endpoint):
            clients.append(_client(hop, login, clients[-1] if clients else None, programs))
    except BaseException:
        _close(clients, programs)
        raise
    return Connection(endpoint.name, clients, programs)


def _client(
    endpoint: Endpoint, login: Login, before: paramiko.SSHClient | None, programs: list[paramiko.ProxyCommand]
) -> paramiko.SSHClient:
    name = endpoint.name
    known = _known_hosts(endpoint, login)
    client = paramiko.SSHClient()
    stream: Any = None
    try:
        password = _password(login.password_file)
        for path in known:
            if path.is_file():
                client.load_system_host_keys(str(path))
        client.set_missing_host_key_policy(_Unknown(endpoint, login, known[0]))
        keys = [str(login.key)] if login.key is not None else [path for path in endpoint.keys if os.path.isfile(path)]
        stream = _stream(endpoint, login, before)
        if isinstance(stream, paramiko.ProxyCommand):
            programs.append(stream)
        client.connect(
            endpoint.key_alias or endpoint.host,
            22 if endpoint.key_alias else endpoint.port,
            username=endpoint.user,
            key_filename=keys or None,  # type: ignore[arg-type]  # the stubs know of one only
            password=password,
            allow_agent=login.agent and login.key is None,
            look_for_keys=login.key is None and not keys,
            timeout=login.timeout_sec,
            banner_timeout=login.timeout_sec,
            auth_timeout=login.timeout_sec,
            channel_timeout=login.timeout_sec,
            sock=stream,
        )
    except BaseException as error:
        client.close()
        if stream is not None and not programs:
            stream.close()
        if isinstance(error, (SandboxError, KeyboardInterrupt, SystemExit)):
            raise
        raise _explained(error, endpoint, login, known[0], name) from error
    return client


def _stream(endpoint: Endpoint, login: Login, before: paramiko.SSHClient | None) -> Any:
    if before is not None:
        transport = before.get_transport()
        assert transport is not None
        target = (endpoint.host, endpoint.port)
        return transport.open_channel("direct-tcpip", target, ("127.0.0.1", 0), timeout=login.timeout_sec)
    if endpoint.command is not None:
        return paramiko.ProxyCommand(endpoint.command)
    stream = socket.create_connection((endpoint.host, endpoint.port), login.timeout_sec)
    # without it every short packet waits for the answer to the one before (44 ms each)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return stream


def _explained(error: BaseException, endpoint: Endpoint, login: Login, known: Path, name: str) -> BaseException:
    """What went wrong, in a line that says what to do."""
    where = endpoint.host if endpoint.port == 22 else f"[{endpoint.host}]:{endpoint.port}"
    if isinstance(error, paramiko.BadHostKeyException):
        return Refused(
            f"{name}: its host key has changed: it is {fingerprint(error.key)}, and {known} has "
            f"{fingerprint(error.expected_key)}. Somebody may be in between; if the machine was set up anew: "
            f"ssh-keygen -f {known} -R '{endpoint.key_alias or where}'"
        )
    if isinstance(error, paramiko.PasswordRequiredException):
        return Refused(f"{name}: the key of {endpoint.user} is encrypted: add it to an ssh agent (ssh-add), or name another")
    if isinstance(error, paramiko.BadAuthenticationType):
        takes = ", ".join(error.allowed_types)
        return Refused(f"{name}: user {endpoint.user} was refused; the server takes {takes} ({_tried(endpoint, login)})")
    if isinstance(error, paramiko.AuthenticationException):
        return Refused(f"{name}: user {endpoint.user} was refused ({_tried(endpoint, login)})")
    if isinstance(error, socket.gaierror):
        return Refused(f"{name}: there is no host {endpoint.host!r} ({error.strerror})")
    if isinstance(error, ConnectionRefusedError) or getattr(error, "errno", None) == errno.ECONNREFUSED:
        return Unreachable(f"{name}: nothing listens on port {endpoint.port} (connection refused)")
    if isinstance(error, TimeoutError):
        return Unreachable(f"{name}: no answer within {login.timeout_sec:g} s")
    if isinstance(error, paramiko.ChannelException):
        return Unreachable(f"{name}: the machine before it cannot connect to {endpoint.host}:{endpoint.port}: {error.text}")
    if isinstance(error, paramiko.SSHException):
        if "No authentication methods available" in str(error):
            return Refused(
                f"{name}: there is no key or password to log in with as {endpoint.user}; see `identity_file` and `password_file`"
            )
        if "not a valid" in str(error) and "key" in str(error):
            return Refused(f"{name}: {error}")
        return Unreachable(f"{name}: {in_words(error)}")
    if isinstance(error, OSError) and error.filename:
        return Refused(f"{name}: {error.filename}: {error.strerror}")
    if isinstance(error, (OSError, EOFError)):
        return Unreachable(f"{name}: {in_words(error)}")
    return error


def _tried(endpoint: Endpoint, login: Login) -> str:
    parts = [str(login.key)] if login.key else [*(path for path in endpoint.keys if os.path.isfile(path))]
    if login.key is None:
        parts += ["the agent's keys"] if login.agent and os.environ.get("SSH_AUTH_SOCK") else []
        parts += ["the keys in ~/.ssh"] if not endpoint.keys else []
    parts += [f"the password of {login.password_file}"] if login.password_file else []
    return f"tried {', '.join(parts) or 'nothing'}"


def _password(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise Refused(f"{path}: others may read this password: chmod 600 {path}")
            return file.read(4096).decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"environment.options.password_file: {path}: {getattr(error, 'strerror', error)}") from error


def _known_hosts(endpoint: Endpoint, login: Login) -> list[Path]:
    """The files of known keys; new ones go to the first."""
    mine = [Path(path) for path in endpoint.known_hosts] or [login.known_hosts]
    return [*mine, Path("/etc/ssh/ssh_known_hosts")]


class _Unknown(paramiko.MissingHostKeyPolicy):
    """What to do about a machine whose key is not known."""

    def __init__(self, endpoint: Endpoint, login: Login, known: Path) -> None:
        self._endpoint = endpoint
        self._accept = login.accept_new
        self._known = known

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        if not self._accept:
            scan = f"ssh-keyscan -p {self._endpoint.port} {self._endpoint.host} >> {self._known}"
            raise Refused(
                f"{self._endpoint.name}: its host key {fingerprint(key)} is not known: compare it with the machine's own and "
                f"add it ({scan}), or set `unknown_hosts: accept_new`"
            )
        line = f"{hostname} {key.get_name()} {key.get_base64()}\n"
        with _APPENDING:
            self._known.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self._known, "a", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(line)


def fingerprint(key: paramiko.PKey) -> str:
    """As `ssh-keygen -l` shows it."""
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{digest}"
