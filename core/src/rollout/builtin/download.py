"""One small file over http(s), with a copy that is kept, asked about, and used when there is no network."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import logging
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import msgspec

from rollout.core.errors import ConfigError, TaskNotFoundError
from rollout.core.files import make_folder, write_atomic
from rollout.core.types import Struct

logger = logging.getLogger(__name__)

MAX_BYTES = 64 * 1024 * 1024
_SILENCE_SEC = 30
"""How long the server may say nothing."""
_TOTAL_SEC = 300


class _Kept(Struct, frozen=True, kw_only=True):
    """First line of a kept copy; the body follows it."""

    url: str
    sha256: str
    etag: str | None = None
    last_modified: str | None = None


async def download(url: str, kept_in: Path, *, offline: bool = False) -> bytes:
    """The body behind `url`. A copy is kept in the folder `kept_in`; `offline` uses that and nothing else.

    Raises:
        ConfigError: not an http(s) address.
        TaskNotFoundError: it cannot be had; the text says why.
    """
    _check(url)
    path = kept_in / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.copy"
    kept = _read_kept(path, url)
    if offline:
        if kept is None:
            raise TaskNotFoundError(f"{url} was never fetched; run once without --offline")
        return kept[1]
    try:
        fresh = await _in_thread(lambda: _get(url, kept[0] if kept else None))
    except (OSError, http.client.HTTPException, ValueError) as error:
        hint = "; --offline uses the copy that was fetched before" if kept else ""
        raise TaskNotFoundError(f"{url}: {_reason(error)}{hint}") from error
    if fresh is None:
        assert kept is not None
        return kept[1]
    head, body = fresh
    make_folder(kept_in)
    write_atomic(path, msgspec.json.encode(head) + b"\n" + body)
    return body


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, password, port = parts.hostname, parts.password, parts.port
    except ValueError as error:
        raise ConfigError(f"registry url {url!r} is not an address: {error}") from error
    if parts.scheme not in ("http", "https") or not host or not url.isascii() or not url.isprintable() or " " in url or port == 0:
        raise ConfigError(f"registry url {url!r}: give an http or https address (`path:` is for files, `git:` for repositories)")
    if password is not None or parts.username is not None:
        raise ConfigError(f"registry url at {host} holds a user or password; addresses with credentials are not supported")


def _read_kept(path: Path, url: str) -> tuple[_Kept, bytes] | None:
    """The kept copy, unless there is none or it is damaged."""
    try:
        line, _, body = path.read_bytes().partition(b"\n")
        head = msgspec.json.decode(line, type=_Kept)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        logger.warning("the kept copy of %s cannot be read: %s", url, error)
        return None
    if head.url != url or hashlib.sha256(body).hexdigest() != head.sha256:
        logger.warning("the kept copy of %s is damaged and is not used", url)
        return None
    return head, body


def _get(url: str, kept: _Kept | None) -> tuple[_Kept, bytes] | None:
    """The body and what to ask with next time, or None when the kept copy is still right."""
    request = urllib.request.Request(url, headers={"Accept": "application/json, */*", "User-Agent": "rollout"})
    if kept and kept.etag:
        request.add_header("If-None-Match", kept.etag)
    if kept and kept.last_modified:
        request.add_header("If-Modified-Since", kept.last_modified)
    opener = urllib.request.build_opener(_SafeRedirects)
    try:
        with opener.open(request, timeout=_SILENCE_SEC) as response:
            body = _read(response)
            tags = response.headers.get("ETag"), response.headers.get("Last-Modified")
    except urllib.error.HTTPError as error:
        with error:
            if error.code == http.HTTPStatus.NOT_MODIFIED and kept:
                return None
            raise
    return _Kept(url=url, sha256=hashlib.sha256(body).hexdigest(), etag=tags[0], last_modified=tags[1]), body


def _read(response: http.client.HTTPResponse) -> bytes:
    give_up = time.monotonic() + _TOTAL_SEC
    parts: list[bytes] = []
    size = 0
    while chunk := response.read1(1024 * 1024):
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_BYTES:
            raise ValueError(f"larger than {MAX_BYTES // 1024**2} MiB, which no registry is")
        if time.monotonic() > give_up:
            raise TimeoutError(f"not finished after {_TOTAL_SEC} seconds")
    expected = response.headers.get("Content-Length")
    if expected is not None and expected.isdecimal() and int(expected) != size:
        raise http.client.IncompleteRead(b"", int(expected) - size)
    return b"".join(parts)


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http(s) only, and never from https down to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        scheme = urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (req.type == "https" and scheme == "http"):
            fp.close()
            raise ValueError(f"redirected to {newurl}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _reason(error: Exception) -> str:
    """Why it failed, in a few words."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        inner = error.reason
        if isinstance(inner, socket.gaierror):
            return "the host's name cannot be resolved"
        return str(getattr(inner, "strerror", None) or inner)
    if isinstance(error, TimeoutError):
        return str(error) if error.args and "not finished" in str(error) else f"no answer for {_SILENCE_SEC} seconds"
    if isinstance(error, http.client.IncompleteRead):
        return "the connection ended before the file was complete"
    text = " ".join(str(error).split())[:300]
    return text or type(error).__name__


async def _in_thread(work: Callable[[], tuple[_Kept, bytes] | None]) -> tuple[_Kept, bytes] | None:
    """Run `work` in a thread that the interpreter does not wait for: a Ctrl-C is not held up by a silent server."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[_Kept, bytes] | None] = loop.create_future()

    def deliver(set_it: Callable[[Any], None], value: Any) -> None:
        if not done.cancelled():
            set_it(value)

    def run() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = (done.set_result, work())
        except (OSError, http.client.HTTPException, ValueError) as error:
            outcome = (done.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(deliver, *outcome)

    threading.Thread(target=run, name="rollout-download", daemon=True).start()
    return await done
