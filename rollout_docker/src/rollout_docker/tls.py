"""TLS to an engine: its files, and a connection that can end one direction alone."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import docker.tls

from rollout.core.errors import SandboxError

_CHUNK = 256 * 1024


class Tls(NamedTuple):
    """The files that prove who is who."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    verify: bool = True

    @classmethod
    def of_folder(cls, folder: Path, *, verify: bool) -> Tls:
        """The files under the names that the docker command gives them, as far as they are there."""
        ca, cert, key = (path if (path := folder / f"{name}.pem").is_file() else None for name in ("ca", "cert", "key"))
        return cls(ca, cert, key, verify)

    @classmethod
    def of_environ(cls, environ: Mapping[str, str]) -> Tls | None:
        """What DOCKER_TLS_VERIFY (or DOCKER_TLS) and DOCKER_CERT_PATH say, as the docker command reads them."""
        verify = bool(environ.get("DOCKER_TLS_VERIFY"))
        if not verify and not environ.get("DOCKER_TLS"):
            return None
        folder = environ.get("DOCKER_CERT_PATH") or environ.get("DOCKER_CONFIG") or "~/.docker"
        return cls.of_folder(Path(os.path.expanduser(folder)), verify=verify)

    def context(self) -> ssl.SSLContext:
        """
        Raises:
            SandboxError: a file is missing or is not what it should be.
        """
        for path in (self.ca, self.cert, self.key):
            if path is not None and not path.is_file():
                raise SandboxError(f"type: docker: the TLS file {path} is not there")
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key, password=lambda: "")  # nobody is there to type one
        except (OSError, ValueError) as error:
            files = ", ".join(str(path) for path in (self.ca, self.cert, self.key) if path is not None)
            raise SandboxError(f"type: docker: the TLS files {files} cannot be used: {error}") from error
        return context

    def sdk(self) -> docker.tls.TLSConfig:
        """The same for the docker package."""
        pair = (str(self.cert), str(self.key)) if self.cert is not None else None
        return docker.tls.TLSConfig(client_cert=pair, ca_cert=str(self.ca) if self.ca else None, verify=self.verify)

    def put(self, folder: Path) -> dict[str, str]:
        """Link the files into a folder for the docker command; the variables that tell it."""
        folder.mkdir()
        for name, path in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if path is not None:
                (folder / f"{name}.pem").symlink_to(path.absolute())
        return {"DOCKER_CERT_PATH": str(folder), "DOCKER_TLS_VERIFY" if self.verify else "DOCKER_TLS": "1"}


class TlsStream(asyncio.Protocol, asyncio.Transport):
    """TLS over a connection: to the connection its protocol, to `inner` its transport.

    asyncio's own TLS cannot tell the other side that nothing more comes and still listen, which is how a program in a
    container learns that its standard input has ended.
    """

    def __init__(self, context: ssl.SSLContext, hostname: str, inner: asyncio.Protocol) -> None:
        super().__init__()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=hostname)
        self._inner = inner
        self._raw: asyncio.Transport | None = None
        self._shaken = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when both sides have shown their certificates; fails with an OSError."""

    # What the connection calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        self._shake()

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        if not self._shaken:
            self._shake()
        if self._shaken:
            self._read()

    def eof_received(self) -> bool:
        if self._shaken:
            self._inner.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(exc or ConnectionResetError("the engine hung up while TLS was being set up"))
        elif self._shaken:
            self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    # What `inner` calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        self._flush()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        try:
            self._tls.unwrap()
        except ssl.SSLWantReadError:
            pass  # said; what the other side still has to say is read as it comes
        self._flush()

    def is_closing(self) -> bool:
        return self._raw is None or self._raw.is_closing()

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()

    def abort(self) -> None:
        if self._raw is not None:
            self._raw.abort()

    def pause_reading(self) -> None:
        if self._raw is not None:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        if self._raw is not None:
            self._raw.resume_reading()

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._flush()
            self.ready.set_exception(error)
            self.close()
            return
        self._flush()
        self._shaken = True
        self._inner.connection_made(self)
        self.ready.set_result(None)

    def _read(self) -> None:
        try:
            while data := self._tls.read(_CHUNK):
                self._inner.data_received(data)
            self._inner.eof_received()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:  # for instance: the engine does not accept our certificate
            self._shaken = False
            self._inner.connection_lost(error)
            self.abort()

    def _flush(self) -> None:
        if self._raw is not None and (data := self._outgoing.read()):
            self._raw.write(data)
