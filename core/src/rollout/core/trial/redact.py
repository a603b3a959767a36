"""Keeping expanded secrets off the disk: values that came from the host are replaced by their names in whatever is written."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from rollout.core.config.interpolate import expand, looks_secret, referenced_names
from rollout.core.records import TrialSpec
from rollout.core.types import McpServer

_RANDOM = re.compile(r"(?=\S*[a-z])(?=\S*[A-Z])(?=\S*[0-9])[^\s/]{20,}|[0-9a-f]{32,}|\w+://[^\s/@]+:[^\s/@]+@\S+", re.ASCII)
_MIN_LENGTH = 4
_CHUNK = 1 << 20


def secrets_of(blocks: Iterable[Mapping[str, str]], environ: Mapping[str, str]) -> dict[str, str]:
    """Secret value to the name it is replaced by.

    A value is a secret when it stands under a secret-looking name, in the block or on the host, or when it is a host's value
    that looks random or is an address with a password in it. Others, like a model's name, are what logs are read for. Values
    below 4 characters are left: they would match everywhere.
    """
    found: dict[str, str] = {}
    for block in blocks:
        for key, text in block.items():
            names = referenced_names(text)
            for name in names:
                value = environ.get(name, "")
                if looks_secret(name) or looks_secret(key) or _RANDOM.fullmatch(value):
                    found[value] = name
            if looks_secret(key):
                found[expand(text, environ)] = key
    return {value: name for value, name in found.items() if len(value) >= _MIN_LENGTH}


def without_literal_secrets(block: Mapping[str, str]) -> dict[str, str]:
    """The block as it may be written to disk: `${NAME}` stays, a literal value under a secret-looking key does not."""
    return {
        key: "[redacted]" if looks_secret(key) and text and not referenced_names(text) else text for key, text in block.items()
    }


def without_secret_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as they may be written to disk: no literal text at or below a secret-looking key."""
    return {key: _without_secrets(value, looks_secret(key)) for key, value in options.items()}


def _without_secrets(value: Any, secret: bool) -> Any:
    if isinstance(value, dict):
        return {key: _without_secrets(item, secret or looks_secret(str(key))) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item, secret) for item in value]
    return "[redacted]" if secret and isinstance(value, str) and value and "${" not in value else value


def _in_json(value: str) -> set[str]:
    return {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}


class Redactor:
    """Replaces known secrets by `[redacted:NAME]` in text, in streams and in files."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        # Inside of JSON a secret is spelled with escapes.
        spelled = {text: name for value, name in secrets.items() for text in (value, *_in_json(value))}
        self._names = {value.encode(): name.encode() for value, name in spelled.items()}
        longest_first = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, longest_first))) if longest_first else None
        self._overlap = len(longest_first[0]) - 1 if longest_first else 0

    def __bool__(self) -> bool:
        return self._pattern is not None

    def redact(self, data: bytes) -> bytes:
        if self._pattern is None:
            return data
        return self._pattern.sub(lambda match: b"[redacted:" + self._names[match.group()] + b"]", data)

    def text(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self.redact(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def stream(self, write: Callable[[bytes], None]) -> RedactingStream:
        return RedactingStream(self, write)

    def tree(self, folder: Path) -> None:
        """Rewrite every regular file below `folder` that holds a secret. Links are not followed."""
        if self._pattern is None:
            return
        for parent, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(parent, name)
                if stat.S_ISREG(os.lstat(path).st_mode) and self._contains_secret(path):
                    self._rewrite(path)

    def _contains_secret(self, path: str) -> bool:
        assert self._pattern is not None
        tail = b""
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                if self._pattern.search(tail + chunk):
                    return True
                tail = chunk[-self._overlap :] if self._overlap else b""
        return False

    def _rewrite(self, path: str) -> None:
        temporary = f"{path}.redacted"
        with open(path, "rb") as source, open(temporary, "wb") as target:

            def write(data: bytes) -> None:
                target.write(data)

            stream = self.stream(write)
            while chunk := source.read(_CHUNK):
                stream.feed(chunk)
            stream.close()
        os.replace(temporary, path)


class RedactingStream:
    """Redacts a stream of chunks: a secret that lies across two chunks is found too, so a little is held back until the next."""

    def __init__(self, redactor: Redactor, write: Callable[[bytes], None]) -> None:
        self._redactor = redactor
        self._write = write
        self._held = b""

    def feed(self, chunk: bytes) -> None:
        pattern, overlap = self._redactor._pattern, self._redactor._overlap
        if pattern is None:
            self._write(chunk)
            return
        data = self._held + chunk
        # Nothing that starts before `safe` can be continued by the next chunk.
        safe = max(len(data) - overlap, 0)
        for match in pattern.finditer(data):
            if match.start() < safe < match.end():
                safe = match.end()
        self._held = data[safe:]
        if safe:
            self._write(self._redactor.redact(data[:safe]))

    def close(self) -> None:
        if self._held:
            self._write(self._redactor.redact(self._held))
            self._held = b""


def _servers_without_secrets(servers: tuple[McpServer, ...]) -> tuple[McpServer, ...]:
    return tuple(
        replace(server, env=without_literal_secrets(server.env), headers=without_literal_secrets(server.headers))
        for server in servers
    )


def spec_without_secrets(spec: TrialSpec) -> TrialSpec:
    """A trial's spec as it may be written to disk: without literal secrets."""
    agent, verifier, environment, separate = spec.agent, spec.verifier, spec.environment, spec.verifier_environment
    options = (agent.options, verifier.options, spec.environment_options)
    servers = spec.task.mcp_servers or agent.mcp_servers
    if not (agent.env or verifier.env or environment.env or (separate and separate.env) or any(options) or servers):
        return spec
    return replace(
        spec,
        agent=replace(
            agent,
            env=without_literal_secrets(agent.env),
            options=without_secret_options(agent.options),
            mcp_servers=_servers_without_secrets(agent.mcp_servers),
        ),
        task=replace(spec.task, mcp_servers=_servers_without_secrets(spec.task.mcp_servers)),
        verifier=replace(verifier, env=without_literal_secrets(verifier.env), options=without_secret_options(verifier.options)),
        environment=replace(environment, env=without_literal_secrets(environment.env)),
        verifier_environment=separate and replace(separate, env=without_literal_secrets(separate.env)),
        environment_options=without_secret_options(spec.environment_options),
    )
