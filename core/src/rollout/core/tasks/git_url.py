"""Which addresses of git repositories are understood, and which are refused."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from rollout.core.errors import ConfigError
from rollout.core.tasks.git_program import PROTOCOLS

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(://|::)")
# git's own rule: a colon before the first slash means another machine.
_SCP = re.compile(r"(?:[^@/:\s]+@)?(\[[0-9a-fA-F:.]+\]|[^@/:\s\[\]]+):(?!:)(.+)")


def git_address(url: str, base_dir: Path | None) -> str:
    """The address as git is given it: https, http, ssh, file, `user@host:path`, or an absolute path on this machine.

    `base_dir` is what relative paths start from; None refuses everything on this machine (a registry that was
    downloaded has no say about it).

    Raises:
        ConfigError: another kind of address, an option in disguise, or a password in it.
    """
    if not url.strip() or not url.isprintable():
        raise ConfigError(f"git_url {url!r} is not an address")
    if url.startswith("-"):
        raise ConfigError(f"git_url {url!r} starts with a dash, which git would read as an option")
    scheme = _SCHEME.match(url)
    if scheme is None:
        if not url.startswith((".", "/", "~")) and (scp := _SCP.fullmatch(url)):
            return _safe_ssh(url, scp[1], scp[2])
        return _local(url, base_dir)
    if scheme[2] == "::" or scheme[1].lower() not in PROTOCOLS:
        raise ConfigError(f"git_url {url!r}: only {', '.join(PROTOCOLS)} addresses and paths are allowed")
    try:
        parts = urlsplit(url)
        host, password = parts.hostname or "", parts.password
    except ValueError as error:
        raise ConfigError(f"git_url {url!r} is not an address: {error}") from error
    if parts.scheme == "file" and host in ("", "localhost"):
        return _local(unquote(parts.path), base_dir, url)
    if parts.scheme == "file":
        raise ConfigError(f"git_url {url!r}: a file address has three slashes: file:///path")
    if not host:
        raise ConfigError(f"git_url {url!r} names no host")
    if password is not None:
        shown = url.replace(f"{parts.username}:{password}@", "***@")
        raise ConfigError(f"git_url {shown} holds a password; take it out and set up a git credential helper")
    return _safe_ssh(url, host, parts.path) if parts.scheme == "ssh" else url


def address_slug(address: str) -> str:
    """A short file name for an address: readable, and different for different addresses."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", re.split(r"[/:]", address.rstrip("/"))[-1].removesuffix(".git"))
    digest = hashlib.sha256(address.rstrip("/").encode("utf-8", "surrogateescape")).hexdigest()
    return f"{stem.strip('.-')[:40] or 'repository'}-{digest[:12]}"


def _safe_ssh(url: str, host: str, path: str) -> str:
    user = url.split("://")[-1].partition("@")[0] if "@" in url else ""
    if any(part.lstrip("/").startswith("-") for part in (host, path, user)):
        raise ConfigError(f"git_url {url!r}: a part of it starts with a dash, which ssh would read as an option")
    return url


def _local(path: str, base_dir: Path | None, url: str = "") -> str:
    if base_dir is None:
        raise ConfigError(f"git_url {url or path!r} is on this machine; a downloaded registry can only name remote repositories")
    repository = os.path.abspath(base_dir / Path(os.path.expanduser(path)))
    if url:
        return f"file://{quote(repository)}"
    return repository
