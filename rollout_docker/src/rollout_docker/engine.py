"""One Docker engine: where it listens, what it can do, and calls to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import IO, Any
from urllib.parse import urlencode

import docker
import docker.errors
import requests.exceptions
from docker.context import ContextAPI

from rollout.core.errors import RolloutError, SandboxError
from rollout_docker.http import Address, Connection, Response, probe

_CALL_TIMEOUT_SEC = 300.0
_PROBE_TIMEOUT_SEC = 10
_HELP = "start one (`systemctl start docker`, or Docker Desktop), name one in DOCKER_HOST, or use `environment.type: local`"


class Refused(SandboxError):
    """The engine answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Unreachable(SandboxError):
    """The engine does not answer."""


class Engine:
    """An engine that answered once. Calls from the event loop are its own; `sdk` is for threads."""

    def __init__(self, url: str, address: Address, sdk: docker.DockerClient, info: Mapping[str, Any]) -> None:
        self.url = url
        self.address = address
        self.sdk = sdk
        self.cpus = int(info.get("NCPU") or 0)
        self.platform = f"{info.get('OSType')}/{info.get('Architecture')}"
        self.runtimes = frozenset(info.get("Runtimes") or {})
        self.storage_limits = info.get("Driver") in ("btrfs", "zfs", "windowsfilter") or (
            info.get("Driver") == "overlay2" and ["Backing Filesystem", "xfs"] in (info.get("DriverStatus") or [])
        )
        self.missing_limits = [
            name for name, key in (("memory", "MemoryLimit"), ("cpus", "CpuCfsQuota"), ("pids", "PidsLimit")) if not info.get(key)
        ]
        self._prefix = f"/v{sdk.api.api_version}"

    @classmethod
    def find(cls, host: str | None, threads: int) -> Engine:
        """Find the engine and ask what it is. Blocks.

        Raises:
            SandboxError: there is none; the text says what to do.
        """
        url = host or _configured_host()
        try:
            address = Address.parse(url)
        except ValueError as error:
            raise SandboxError(
                f"type: docker cannot use the engine at {url}: only unix:// and tcp:// without TLS can be used"
            ) from error
        try:
            probe(address, _PROBE_TIMEOUT_SEC)  # the SDK leaks a socket when nobody listens
            sdk = docker.DockerClient(base_url=url, version="auto", timeout=_PROBE_TIMEOUT_SEC, max_pool_size=threads)
        except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
            raise SandboxError(f"no Docker engine answers at {url} ({_reason(error)}): {_HELP}") from error
        try:
            info = sdk.info()
            sdk.api.timeout = int(_CALL_TIMEOUT_SEC)
        except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
            sdk.close()
            raise SandboxError(f"the Docker engine at {url} does not say what it is ({_reason(error)}): {_HELP}") from error
        return cls(url, address, sdk, info)

    def close(self) -> None:
        self.sdk.close()

    def path(self, path: str, query: Mapping[str, Any] | None = None) -> str:
        return self._prefix + path + (f"?{urlencode(query)}" if query else "")

    async def connect(self) -> Connection:
        """Raises Unreachable."""
        try:
            return await Connection.open(self.address)
        except OSError as error:
            raise Unreachable(f"the Docker engine does not answer any more: {_reason(error)}") from error

    async def call(self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None) -> Any:
        """One small call and its answer.

        Raises:
            Refused, Unreachable
        """
        async with self._calling(_CALL_TIMEOUT_SEC) as connection:
            return await checked(connection, await connection.request(method, self.path(path, query), encode(body)))

    async def lines(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        *,
        file: IO[bytes] | None = None,
        headers: dict[str, str] | None = None,
    ) -> AsyncGenerator[Any, None]:
        """A call whose answer is a stream of JSON documents. Closing the iterator ends the engine's work.

        Raises:
            Refused, Unreachable
        """
        async with self._calling(None) as connection:
            response = await connection.request(method, self.path(path, query), headers=headers, file=file)
            if response.status >= 400:
                await checked(connection, response)
            async for line in connection.json_lines(response):
                yield line

    @asynccontextmanager
    async def _calling(self, timeout_sec: float | None) -> AsyncIterator[Connection]:
        connection = await self.connect()
        try:
            async with asyncio.timeout(timeout_sec):
                yield connection
        except TimeoutError as error:
            raise Unreachable(f"the Docker engine did not answer within {timeout_sec:g} s") from error
        except (OSError, ValueError) as error:
            raise Unreachable(f"the Docker engine does not answer any more: {_reason(error)}") from error
        finally:
            connection.close()


def encode(body: Any) -> bytes:
    return b"" if body is None else json.dumps(body).encode()


async def checked(connection: Connection, response: Response) -> Any:
    """The answer's JSON. Raises Refused."""
    data = await connection.json(response)
    if response.status >= 400:
        message = data.get("message") if isinstance(data, dict) else None
        raise Refused(response.status, str(message or f"the Docker engine answered {response.status}"))
    return data


def _configured_host() -> str:
    context = ContextAPI.get_current_context()  # reads DOCKER_HOST, DOCKER_CONTEXT and the docker command's own choice
    host = getattr(context, "Host", None)
    return str(host) if host else "unix:///var/run/docker.sock"


def _reason(error: BaseException) -> str:
    if isinstance(error, RolloutError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return " ".join(str(error).split()) or type(error).__name__
