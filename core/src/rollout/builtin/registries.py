"""Where datasets come from: a registry.json in a file, behind a URL, or in a git repository."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rollout.builtin.download import download
from rollout.core.config.document import parse_json, read_document
from rollout.core.errors import TaskNotFoundError
from rollout.core.protocols import API_VERSION, RegistryContext
from rollout.core.tasks.git import GitCache
from rollout.core.tasks.git_url import git_address
from rollout.core.tasks.registry import Origin, Registry, fetch_dataset, registry_of
from rollout.core.types import DatasetInfo, Struct, TaskFolder


class PathOptions(Struct, frozen=True, kw_only=True):
    path: str
    """A registry.json, or a folder that holds one."""


class UrlOptions(Struct, frozen=True, kw_only=True):
    url: str
    """http(s) address of a registry.json."""


class GitOptions(Struct, frozen=True, kw_only=True):
    git: str
    """Address of a git repository, or a path on this machine."""
    ref: str | None = None
    """Branch, tag or commit; the default branch when unset."""
    file: str = "registry.json"
    """The registry's path in the repository."""


class PathRegistry:
    """A registry.json on this machine. Its relative paths start from the folder it is in."""

    api_version = API_VERSION
    options_type = PathOptions

    def __init__(self, options: PathOptions, context: RegistryContext) -> None:
        self._path = context.base_dir / Path(os.path.expanduser(options.path))
        self._cache = _cache(context)

    async def datasets(self) -> Sequence[DatasetInfo]:
        return self._read().infos()

    async def fetch(
        self, name: str, version: str | None, *, select: Callable[[str], bool] = lambda name: True
    ) -> Sequence[TaskFolder]:
        return await fetch_dataset(self._read(), name, version, select, self._cache)

    def _read(self) -> Registry:
        path = self._path / "registry.json" if self._path.is_dir() else self._path
        if not path.exists():
            raise TaskNotFoundError(f"registry {path}: no such file")
        return registry_of(read_document(path), Origin(str(path), base_dir=path.parent))


class UrlRegistry:
    """A registry.json behind http(s). A copy is kept, asked about with its ETag, and used with `--offline`."""

    api_version = API_VERSION
    options_type = UrlOptions

    def __init__(self, options: UrlOptions, context: RegistryContext) -> None:
        self._url = options.url
        self._context = context
        self._cache = _cache(context)
        self._registry: Registry | None = None

    async def datasets(self) -> Sequence[DatasetInfo]:
        return (await self._read()).infos()

    async def fetch(
        self, name: str, version: str | None, *, select: Callable[[str], bool] = lambda name: True
    ) -> Sequence[TaskFolder]:
        return await fetch_dataset(await self._read(), name, version, select, self._cache)

    async def _read(self) -> Registry:
        if self._registry is None:
            body = await download(self._url, self._context.cache_dir / "registries", offline=self._context.offline)
            self._registry = registry_of(parse_json(body, self._url), Origin(self._url))
        return self._registry


class GitRegistry:
    """A registry.json in a git repository. A task without `git_url` is in that repository, at the same commit."""

    api_version = API_VERSION
    options_type = GitOptions

    def __init__(self, options: GitOptions, context: RegistryContext) -> None:
        self._options = options
        self._base_dir = context.base_dir
        self._cache = _cache(context)

    async def datasets(self) -> Sequence[DatasetInfo]:
        return (await self._read()).infos()

    async def fetch(
        self, name: str, version: str | None, *, select: Callable[[str], bool] = lambda name: True
    ) -> Sequence[TaskFolder]:
        return await fetch_dataset(await self._read(), name, version, select, self._cache)

    async def _read(self) -> Registry:
        options = self._options
        address = git_address(options.git, self._base_dir)
        content, commit = await self._cache.read(address, options.ref, options.file)
        where = f"{options.git}/{options.file}"
        return registry_of(parse_json(content, where), Origin(where, repository=address, commit=commit))


def _cache(context: RegistryContext) -> GitCache:
    return GitCache(context.cache_dir, offline=context.offline, resolved=context.revisions)
