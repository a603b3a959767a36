"""Which engine: what the job says, else DOCKER_HOST, the docker context, and the sockets of this machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rollout.core.errors import SandboxError
from rollout_docker.http import Address, probe
from rollout_docker.options import DockerOptions, TlsOptions
from rollout_docker.tls import Tls

DOCKER_SOCKET = "/var/run/docker.sock"
_PROBE_TIMEOUT_SEC = 10.0


@dataclass(frozen=True)
class Endpoint:
    """Where an engine is said to be."""

    url: str
    source: str = ""
    """Who says so, when it is not the job file: `DOCKER_HOST`, `the docker context prod`."""
    tls: Tls | None = None
    slots: int | None = None

    def __str__(self) -> str:
        return f"{self.url} ({self.source})" if self.source else self.url


def endpoints_of(options: DockerOptions, base_dir: Path, environ: Mapping[str, str] = os.environ) -> list[Endpoint]:
    """The engines of a job: several only when it names several.

    Raises:
        SandboxError: a docker context that is named does not exist, or cannot be read.
    """
    if options.hosts:
        return [
            _named(item, None, None, base_dir, environ)
            if isinstance(item, str)
            else _named(item.host, item.tls, item.slots, base_dir, environ)
            for item in options.hosts
        ]
    if options.host is not None:
        return [_named(options.host, options.tls, None, base_dir, environ)]
    if options.context is None and (host := environ.get("DOCKER_HOST")):
        return [Endpoint(host, "DOCKER_HOST", Tls.of_environ(environ) if host.startswith("tcp://") else None)]
    context = options.context or environ.get("DOCKER_CONTEXT") or _current_context(environ)
    if context and context != "default":
        return [_of_context(context, environ)]
    return [_of_machine(environ)]


def _named(url: str, tls: TlsOptions | None, slots: int | None, base_dir: Path, environ: Mapping[str, str]) -> Endpoint:
    if not url.startswith("tcp://"):
        return Endpoint(url, slots=slots)
    if tls is None:
        return Endpoint(url, tls=Tls.of_environ(environ), slots=slots)
    ca, cert, key = (base_dir / os.path.expanduser(path) if path else None for path in (tls.ca_file, tls.cert_file, tls.key_file))
    return Endpoint(url, tls=Tls(ca, cert, key), slots=slots)


class _Docker(msgspec.Struct, rename="pascal"):
    host: str = f"unix://{DOCKER_SOCKET}"
    skip_tls_verify: bool = msgspec.field(default=False, name="SkipTLSVerify")


class _Endpoints(msgspec.Struct):
    docker: _Docker = msgspec.field(default_factory=_Docker)


class _Context(msgspec.Struct, rename="pascal"):
    endpoints: _Endpoints = msgspec.field(default_factory=_Endpoints)


class _Config(msgspec.Struct, rename="camel"):
    current_context: str = ""


def config_folder(environ: Mapping[str, str]) -> Path:
    """Where the docker command keeps its settings."""
    return Path(os.path.expanduser(environ.get("DOCKER_CONFIG") or "~/.docker"))


def _current_context(environ: Mapping[str, str]) -> str:
    path = config_folder(environ) / "config.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Config).current_context
    except FileNotFoundError:
        return ""
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SandboxError(f"type: docker cannot read {path}: {error}") from error


def _of_context(name: str, environ: Mapping[str, str]) -> Endpoint:
    """A context is `contexts/meta/<sha256 of its name>/meta.json`, its TLS files are beside it in `contexts/tls`."""
    folder = config_folder(environ) / "contexts"
    key = hashlib.sha256(name.encode()).hexdigest()
    path = folder / "meta" / key / "meta.json"
    try:
        docker = msgspec.json.decode(path.read_bytes(), type=_Context).endpoints.docker
    except FileNotFoundError as error:
        raise SandboxError(f"there is no docker context {name!r}; `docker context ls` lists them") from error
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SandboxError(f"the docker context {name!r} cannot be read: {path}: {error}") from error
    files = folder / "tls" / key / "docker"
    tls = Tls.of_folder(files, verify=not docker.skip_tls_verify) if files.is_dir() else None
    return Endpoint(docker.host, f"the docker context {name}", tls if docker.host.startswith("tcp://") else None)


def _of_machine(environ: Mapping[str, str]) -> Endpoint:
    """The first engine of this machine that takes a connection; when there is none, the one to complain about."""
    refused: Endpoint | None = None
    for endpoint in _sockets(environ):
        try:
            probe(Address.parse(endpoint.url), _PROBE_TIMEOUT_SEC)
        except PermissionError:
            refused = refused or endpoint
        except OSError:
            continue
        else:
            return endpoint
    return refused or Endpoint(f"unix://{DOCKER_SOCKET}")


def _sockets(environ: Mapping[str, str]) -> Sequence[Endpoint]:
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    docker = (DOCKER_SOCKET, f"{runtime}/docker.sock", os.path.expanduser("~/.docker/run/docker.sock"))
    podman = (f"{runtime}/podman/podman.sock", "/run/podman/podman.sock")
    return [*(Endpoint(f"unix://{path}") for path in docker), *(Endpoint(f"unix://{path}", "Podman") for path in podman)]
