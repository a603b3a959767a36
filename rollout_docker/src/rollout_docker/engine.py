"""One Docker engine: where it listens, what it can do, and calls to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode

import docker
import docker.errors
import docker.tls
import requests.exceptions

from rollout.core.errors import RolloutError, SandboxError
from rollout_docker.http import Address, Connection, Response, probe
from rollout_docker.tunnel import Tunnel
from rollout_docker.where import Endpoint

logger = logging.getLogger(__name__)
_CALL_TIMEOUT_SEC = 300.0
_CONNECT_TIMEOUT_SEC = 30.0
_PROBE_TIMEOUT_SEC = 10
_MIN_API = (1, 40)
_ANY_API = "1.40"  # what the SDK wants to hear before the engine was asked
_HELP = "start one (`systemctl start docker`, or Docker Desktop), name one in DOCKER_HOST, or use `environment.type: local`"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}  # the kernel's name: an image's
_TOO_OLD = "it is older than Docker 19.03 or Podman 3; take a newer one, or `environment.type: local`"
_DENIED = (
    "this user may not use it: become a member of its group (`sudo usermod -aG docker $USER`, then log in anew), "
    "or use rootless Docker or Podman"
)


class Refused(SandboxError):
    """The engine answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Unreachable(SandboxError):
    """The engine does not answer."""


@dataclass(frozen=True)
class Way:
    """How an engine is reached: directly, or through a tunnel that has to be open."""

    name: str
    address: Address
    sdk_url: str
    sdk_tls: docker.tls.TLSConfig | bool
    environ: Mapping[str, str]
    """For the docker command."""
    tunnel: Tunnel | None = None
    folder: Path | None = None
    """What the way itself needs on this machine."""

    @classmethod
    def to(cls, endpoint: Endpoint) -> Way:
        """
        Raises:
            SandboxError: the address, or a TLS file, cannot be used.
        """
        url, tls = endpoint.url, endpoint.tls
        folder = Path(tempfile.mkdtemp(prefix="rollout-docker-")) if tls or url.startswith("ssh://") else None
        try:
            if url.startswith("ssh://"):
                assert folder is not None
                tunnel = Tunnel(url, folder)
                local = f"unix://{tunnel.socket}"
                return cls(url, Address.parse(local), local, False, {"DOCKER_HOST": local}, tunnel, folder)
            environ = {"DOCKER_HOST": url}
            if tls is None:
                return cls(url, Address.parse(url), url, False, environ)
            assert folder is not None
            address = Address.parse(url, tls.context())
            return cls(url, address, url, tls.sdk(), {**environ, **tls.put(folder / "tls")}, None, folder)
        except BaseException as error:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, ValueError):
                text = f"type: docker cannot use the engine at {endpoint}: its address is not unix://, tcp:// or ssh://"
                raise SandboxError(text) from error
            raise

    def open(self) -> None:
        """Raises OSError."""
        if self.tunnel is not None:
            self.tunnel.open()

    def close(self) -> None:
        if self.tunnel is not None:
            self.tunnel.close()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


class Engine:
    """An engine that answered once. Calls from the event loop are its own; `sdk` is for threads."""

    def __init__(self, way: Way, sdk: docker.DockerClient, info: Mapping[str, Any], version: Mapping[str, Any]) -> None:
        self.name = way.name
        self.address = way.address
        self.client_environ = way.environ
        """What the docker command needs to know to reach the same engine."""
        self.sdk = sdk
        self._way = way
        self.cpus = int(info.get("NCPU") or 0)
        self.platform = f"{info.get('OSType')}/{_ARCHITECTURES.get(str(info.get('Architecture')), info.get('Architecture'))}"
        self.runtimes = frozenset(info.get("Runtimes") or {})
        self.podman = any("podman" in str(part.get("Name", "")).lower() for part in version.get("Components") or [])
        self.rootless = "name=rootless" in (info.get("SecurityOptions") or []) or bool(info.get("Rootless"))
        self.storage_limits = info.get("Driver") in ("btrfs", "zfs", "windowsfilter") or (
            info.get("Driver") == "overlay2" and ["Backing Filesystem", "xfs"] in (info.get("DriverStatus") or [])
        )
        blind = self.podman and self.rootless and str(info.get("CgroupVersion")) == "1"  # Podman ignores them there
        self.missing_limits = [
            name
            for name, key in (("memory", "MemoryLimit"), ("cpus", "CpuCfsQuota"), ("pids", "PidsLimit"))
            if blind or not info.get(key)
        ]
        self._prefix = f"/v{sdk.api.api_version}"
        self._mending = asyncio.Lock()

    @classmethod
    def find(cls, endpoint: Endpoint, threads: int) -> Engine:
        """Find the engine and ask what it is. Blocks.

        Raises:
            SandboxError: there is none; the text says what to do.
        """
        way = Way.to(endpoint)
        try:
            return cls._find(endpoint, way, threads)
        except BaseException:
            way.close()
            raise

    @classmethod
    def _find(cls, endpoint: Endpoint, way: Way, threads: int) -> Engine:
        foreign = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)
        try:
            way.open()
            probe(way.address, _PROBE_TIMEOUT_SEC)  # the SDK leaks a socket when nobody listens
            with contextlib.closing(_sdk(way, _ANY_API, 1)) as asking:
                version = asking.api.version(api_version=False)
        except PermissionError as error:
            raise SandboxError(f"the Docker engine at {endpoint} does not let us in: {_DENIED}") from error
        except foreign as error:
            raise SandboxError(f"no Docker engine answers at {endpoint} ({_reason(error)}): {_HELP}") from error
        api = str(version.get("ApiVersion"))
        if _parts(api) < _MIN_API:
            raise SandboxError(f"the Docker engine at {endpoint} is too old (its API is {api}, 1.40 is needed): {_TOO_OLD}")
        sdk = _sdk(way, api, threads)
        try:
            info = sdk.info()
            sdk.api.timeout = int(_CALL_TIMEOUT_SEC)
        except foreign as error:
            sdk.close()
            raise SandboxError(f"the Docker engine at {endpoint} does not say what it is ({_reason(error)}): {_HELP}") from error
        return cls(way, sdk, info, version)

    def close(self) -> None:
        self.sdk.close()
        self._way.close()

    def platform_of(self, image: str) -> str | None:
        """`os/architecture` of an image that is here; None when it is not, or nobody says. Blocks."""
        try:
            found = self.sdk.api.inspect_image(image)  # type: ignore[no-untyped-call]
        except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
            logger.debug("%s: %s", image, error)
            return None
        system, architecture = found.get("Os"), found.get("Architecture")
        return f"{system}/{architecture}" if system and architecture else None

    async def answers(self) -> bool:
        """Whether the engine answers right now."""
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_SEC):
                await self.call("GET", "/version")
        except (SandboxError, TimeoutError) as error:
            logger.info("%s: %s", self.name, error)
            return False
        return True

    def reachable(self) -> None:
        """Connect and hang up, for a thread that is about to use `sdk`, which forgets to close a socket that does not connect.

        Raises:
            OSError
        """
        self._way.open()
        probe(self.address, _CONNECT_TIMEOUT_SEC)

    def path(self, path: str, query: Mapping[str, Any] | None = None) -> str:
        return self._prefix + path + (f"?{urlencode(query)}" if query else "")

    async def connect(self) -> Connection:
        """Raises Unreachable."""
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_SEC):
                try:
                    return await Connection.open(self.address)
                except OSError:
                    if self._way.tunnel is None:
                        raise
                async with self._mending:
                    await asyncio.to_thread(self._way.tunnel.open)
                return await Connection.open(self.address)
        except OSError as error:  # a TimeoutError is one
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


def _sdk(way: Way, api: str, threads: int) -> docker.DockerClient:
    sdk = docker.DockerClient(
        base_url=way.sdk_url, tls=way.sdk_tls, version=api, timeout=_PROBE_TIMEOUT_SEC, max_pool_size=threads
    )
    sdk.api.trust_env = False  # REQUESTS_CA_BUNDLE would win over the engine's own authority
    return sdk


def _parts(api: str) -> tuple[int, ...]:
    return tuple(int(part) for part in api.split(".") if part.isdecimal())


def encode(body: Any) -> bytes:
    return b"" if body is None else json.dumps(body).encode()


async def checked(connection: Connection, response: Response) -> Any:
    """The answer's JSON. Raises Refused."""
    data = await connection.json(response)
    if response.status >= 400:
        message = data.get("message") if isinstance(data, dict) else None
        raise Refused(response.status, str(message or f"the Docker engine answered {response.status}"))
    return data


def _reason(error: BaseException) -> str:
    if isinstance(error, RolloutError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return " ".join(str(error).split()) or type(error).__name__
