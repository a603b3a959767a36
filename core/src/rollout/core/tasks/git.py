"""Folders of git repositories, fetched once into a cache that all jobs of the user share.

<cache>/git/<name>-<hash of the address>/
    lock            held while anything below changes
    refs.json       what branches and HEAD were, for `--offline`
    repository/     bare, usually shallow and without the files nobody asked for
    trees/<commit>/<folder>-<hash of the path>         a folder as it is at that commit
    trees/<commit>/<folder>-<hash of the path>.digest  its content's hash: without it, or with another, it is made anew
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from rollout.core.errors import ConfigError, TaskError, TaskNotFoundError
from rollout.core.files import make_folder, storing, write_atomic
from rollout.core.tasks.git_program import GitFailed, run_git
from rollout.core.tasks.git_repository import BareRepository
from rollout.core.tasks.git_url import address_slug
from rollout.core.tasks.lock import file_lock
from rollout.core.tasks.tree import tree_digest

logger = logging.getLogger(__name__)

HEAD = "HEAD"
_FULL_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.IGNORECASE)
_SHORT_HASH = re.compile(r"[0-9a-f]{4,63}", re.IGNORECASE)
_BAD_REVISION = re.compile(r"^-|\.\.|[\x00-\x20\x7f~^:?*\[\\]|@\{")


class GitFolders(NamedTuple):
    """Folders of one commit."""

    commit: str
    folders: dict[str, Path]
    """Path in the repository, as it was asked for, to the folder on this machine. Nobody may write to it."""


class GitCache:
    """The repositories below one cache folder. `resolved` remembers what branches were, for as long as a job lasts."""

    def __init__(self, cache_dir: Path, *, offline: bool = False, resolved: dict[tuple[str, str], str] | None = None) -> None:
        self._root = cache_dir / "git"
        self._offline = offline
        self._resolved = {} if resolved is None else resolved

    async def folders(self, address: str, revision: str | None, paths: Iterable[str]) -> GitFolders:
        """Folders of a repository at a commit, branch or tag (None is HEAD), fetched if they are not in the cache.

        Args:
            address: as `git_address` returns it.
            paths: relative, "" is the repository itself.

        Raises:
            TaskNotFoundError: names address, commit and path, and says why.
            ConfigError: a path or the revision cannot be one.
        """
        wanted = {path: repository_path(path) for path in paths}
        commit = await self.resolve(address, revision)
        trees = self._trees(address, commit)
        missing = await asyncio.to_thread(_missing, trees, wanted.values())
        if missing:
            async with self._locked(address) as repository:
                missing = await asyncio.to_thread(_missing, trees, missing)
                for batch in _apart(missing):
                    await self._check_out(repository, address, commit, batch)
        return GitFolders(commit, {path: trees / _entry(clean) for path, clean in wanted.items()})

    async def read(self, address: str, revision: str | None, path: str) -> tuple[bytes, str]:
        """A file's content and the commit it is from.

        Raises:
            TaskNotFoundError, ConfigError: as `folders`.
        """
        clean = repository_path(path)
        commit = await self.resolve(address, revision)
        async with self._locked(address) as repository:

            async def fetch_and_read() -> bytes | None:
                await repository.fetch(commit)
                return await repository.read(commit, clean)

            try:
                content = await repository.attempt(fetch_and_read)
            except GitFailed as error:
                raise self._not_found(address, commit, error) from error
        if content is None:
            raise TaskNotFoundError(f"{address}: there is no file {clean!r} at commit {commit}")
        return content, commit

    async def resolve(self, address: str, revision: str | None) -> str:
        """The full hash of a revision; a branch is asked for once and then stays what it was.

        Raises:
            TaskNotFoundError, ConfigError: as `folders`.
        """
        revision = HEAD if revision is None or revision.upper() == HEAD else revision
        if _FULL_HASH.fullmatch(revision):
            return revision.lower()
        if _BAD_REVISION.search(revision) or not revision:
            raise ConfigError(f"{address}: {revision!r} is not a commit, branch or tag")
        key = (address, revision)
        if key not in self._resolved:
            remembered = self._remembered(address)
            if not self._offline:
                self._resolved[key] = await self._ask(address, revision)
                if remembered.get(revision) != self._resolved[key]:
                    await self._remember(address, revision, self._resolved[key])
            elif revision in remembered:
                self._resolved[key] = remembered[revision]
            else:
                raise TaskNotFoundError(f"{address}: {revision} was never fetched; run once without --offline")
        return self._resolved[key]

    async def _ask(self, address: str, revision: str) -> str:
        try:
            listed = await run_git(["ls-remote", "--quiet", "--", address, revision, f"{revision}^{{}}"])
        except GitFailed as error:
            raise self._not_found(address, revision, error) from error
        lines = (line.partition("\t") for line in listed.decode("utf-8", "replace").splitlines())
        found = {ref: commit for commit, _, ref in lines}
        names = (f"{revision}^{{}}", revision, f"refs/tags/{revision}^{{}}", f"refs/tags/{revision}", f"refs/heads/{revision}")
        for name in names:
            if name in found:
                return found[name]
        commit = await self._expand(address, revision) if _SHORT_HASH.fullmatch(revision) else None
        if commit is None:
            what = "has no commit yet" if revision == HEAD else f"has no commit, branch or tag {revision}"
            raise TaskNotFoundError(f"{address}: {what}")
        return commit

    async def _expand(self, address: str, short: str) -> str | None:
        """The full form of a shortened hash: only a repository with all commits can tell."""
        async with self._locked(address) as repository:
            try:
                await repository.attempt(repository.fetch_all)
                return await repository.find(f"{short}^{{commit}}")
            except GitFailed as error:
                raise self._not_found(address, short, error) from error

    async def _check_out(self, repository: BareRepository, address: str, commit: str, paths: Sequence[str]) -> None:
        home = self._home(address)
        work = Path(tempfile.mkdtemp(prefix="tmp-", dir=home))

        async def fetch_and_check_out() -> Path:
            files = Path(tempfile.mkdtemp(dir=work))
            await repository.fetch(commit)
            await repository.check_out(commit, paths, files)
            return files

        try:
            files = await repository.attempt(fetch_and_check_out)
            absent = await asyncio.to_thread(_keep, files, self._trees(address, commit), paths)
        except GitFailed as error:
            raise self._not_found(address, commit, error, paths) from error
        finally:
            await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)
        if absent:
            raise TaskNotFoundError(f"{address}: there is no folder {_listed(absent, 5)} at commit {commit}")

    def _not_found(self, address: str, commit: str, error: GitFailed, paths: Sequence[str] = ()) -> TaskNotFoundError:
        which = f" for {_listed(paths, 1)}" if paths else ""
        hint = ""
        if self._offline:
            hint = "; run once without --offline"
        elif commit in self._remembered(address) or self._trees(address, commit).is_dir():
            hint = "; --offline uses what was fetched before"
        return TaskNotFoundError(f"{address}: cannot get {commit}{which}: {error}{hint}")

    def _home(self, address: str) -> Path:
        return self._root / address_slug(address)

    def _trees(self, address: str, commit: str) -> Path:
        return self._home(address) / "trees" / commit

    @asynccontextmanager
    async def _locked(self, address: str) -> AsyncIterator[BareRepository]:
        home = self._home(address)
        async with file_lock(home / "lock"):
            repository = BareRepository(home / "repository", address, offline=self._offline)
            await repository.recover()
            for leftover in home.glob("tmp-*"):
                await asyncio.to_thread(shutil.rmtree, leftover, ignore_errors=True)
            yield repository

    def _remembered(self, address: str) -> dict[str, str]:
        try:
            return msgspec.json.decode((self._home(address) / "refs.json").read_bytes(), type=dict[str, str])
        except (FileNotFoundError, msgspec.MsgspecError):
            return {}

    async def _remember(self, address: str, revision: str, commit: str) -> None:
        home = self._home(address)
        async with file_lock(home / "lock"):
            write_atomic(home / "refs.json", msgspec.json.encode(self._remembered(address) | {revision: commit}))


def repository_path(path: str) -> str:
    """A registry's path inside a repository, without `.` and doubled slashes; "" is the repository itself.

    Raises:
        ConfigError: it is absolute, leads out of the repository, or into its `.git`.
    """
    parts = PurePosixPath(path).parts
    if not path.isprintable() or path.startswith("/") or ".." in parts or any(part.lower() == ".git" for part in parts):
        raise ConfigError(f"path {path!r} does not stay inside the repository; write it relative to the top, without `..`")
    return "/".join(parts)


def _listed(paths: Sequence[str], most: int) -> str:
    return ", ".join(repr(path) for path in paths[:most]) + (f" and {len(paths) - most} more" if len(paths) > most else "")


def _entry(path: str) -> str:
    """The name of a folder in `trees/<commit>`: readable, and different for different paths."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", path.rpartition("/")[2]).strip(".-")[:60]
    return f"{stem or 'root'}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def _missing(trees: Path, paths: Iterable[str]) -> list[str]:
    """Those of `paths` that are not in the cache, or no longer as they were put there."""
    return [path for path in dict.fromkeys(paths) if not _is_kept(trees / _entry(path))]


def _is_kept(folder: Path) -> bool:
    try:
        expected = folder.with_name(f"{folder.name}.digest").read_text("ascii")
        if folder.is_dir() and tree_digest(folder) == expected:
            return True
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError, TaskError) as error:
        logger.debug("%s: %s", folder, error)
    logger.warning("%s is not what was fetched: fetching it again", folder)
    return False


def _keep(files: Path, trees: Path, paths: Sequence[str]) -> list[str]:
    """Move checked-out folders to where they stay; returns the paths that are no folders."""
    make_folder(trees)
    absent = []
    for path in paths:
        source, target = files / path, trees / _entry(path)
        if source.is_symlink() or not source.is_dir() or (path and not any(source.iterdir())):
            absent.append(path)
            continue
        with storing(target):
            digest = tree_digest(source)
            if target.exists():
                target.rename(files.with_name(f"{target.name}.old"))
            source.rename(target)
        write_atomic(target.with_name(f"{target.name}.digest"), digest.encode("ascii"))
    return absent


def _apart(paths: Sequence[str]) -> list[list[str]]:
    """Batches in which no path is inside another: each folder is moved away from the checkout it is made in."""
    batches: list[list[str]] = []
    for path in sorted(paths):
        for batch in batches:
            if not any(not other or path.startswith(f"{other}/") for other in batch):
                batch.append(path)
                break
        else:
            batches.append([path])
    return batches
