"""One bare repository in the cache: fetching a commit as sparingly as the server allows, and checking folders out of it."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rollout.core.tasks.git_program import GitFailed, kill_orphan, run_git

logger = logging.getLogger(__name__)
T = TypeVar("T")

# The server will not give one commit by its name: dumb HTTP, old protocol, no shallow clones. All branches are fetched instead.
_ALL_OR_NOTHING = re.compile("unadvertised object|does not support shallow|shallow capabilities|no matching remote head")
# It sent a commit without its files and then will not give the files.
_FILES_REFUSED = re.compile(r"promisor|unadvertised object|not our ref|unable to read sha1 file")
# The server or the network says no: looking for damage in our copy would be a waste.
_NOT_OUR_FAULT = re.compile(
    r"remote error|unable to access|resolve host|not our ref|repository not found|[Cc]onnection|Permission denied"
)


class FilesRefused(GitFailed):
    """A commit was given without its files, and now the files are not given."""


class BareRepository:
    """A bare clone of one address. Every method expects the caller to hold the lock of its folder."""

    def __init__(self, directory: Path, address: str, *, offline: bool) -> None:
        self._directory = directory
        self._address = address
        self._offline = offline
        self._pid_file = directory.with_name("git.pid")
        self._complete = directory / "complete"  # there when everything was fetched, not single commits

    async def recover(self) -> None:
        """Undo what a killed process of ours left: its git, that git's lock files and half-written packs."""
        await kill_orphan(self._pid_file)
        for pattern in ("*.lock", "refs/**/*.lock", "objects/pack/tmp_*", "objects/pack/.tmp-*"):
            for path in self._directory.glob(pattern):
                logger.info("removing what an interrupted git left: %s", path)
                path.unlink(missing_ok=True)

    async def attempt(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work`; when it fails because the repository is damaged or was fetched too sparingly, once more on a new one.

        Raises:
            GitFailed: it is git, the server or the network, and not the cache.
        """
        existed = self._directory.exists()
        try:
            return await work()
        except GitFailed as error:
            refused = isinstance(error, FilesRefused)
            if self._offline or not (refused or (existed and await self._is_damaged(error))):
                raise
            logger.warning("the cached copy of %s cannot be used (%s): fetching it again", self._address, error)
        shutil.rmtree(self._directory)
        if refused:
            await self.fetch_all()
        return await work()

    async def fetch(self, commit: str) -> None:
        """Have `commit`, a full hash: alone and without file contents where the server can do that, else with everything."""
        await self._initialise()
        if await self.find(f"refs/rollout/{commit}"):
            return
        if self._offline and not (self._complete.exists() and await self.find(f"{commit}^{{commit}}")):
            raise GitFailed("it is not in the cache")
        logger.info("fetching %s of %s", commit, self._address)
        if self._complete.exists():
            await self._fetch_among_all(commit)
        else:
            try:
                await self._git("fetch", "--quiet", "--no-tags", "--depth=1", "--filter=blob:none", "origin", commit)
            except GitFailed as error:
                if not _ALL_OR_NOTHING.search(str(error)):
                    raise
                await self._fetch_among_all(commit)
        await self._git("update-ref", f"refs/rollout/{commit}", commit)

    async def fetch_all(self) -> None:
        """Have every branch and tag with its history and files.

        A repository with single commits is thrown away: git would take what they lack for something it can ask for later.
        """
        if not self._complete.exists():
            shutil.rmtree(self._directory, ignore_errors=True)
        await self._initialise()
        await self._git("fetch", "--quiet", "origin", "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
        self._complete.touch()

    async def _fetch_among_all(self, commit: str) -> None:
        if not self._complete.exists() or await self.find(f"{commit}^{{commit}}") is None:
            await self.fetch_all()
        if await self.find(f"{commit}^{{commit}}") is None:
            raise GitFailed("no branch or tag has that commit")

    async def find(self, revision: str) -> str | None:
        """The hash of what `revision` names here, or None."""
        try:
            found = await self._git("rev-parse", "--verify", "--quiet", revision, offline=True)
        except GitFailed:
            return None
        return found.decode("ascii", "replace").strip() or None

    async def read(self, commit: str, path: str) -> bytes | None:
        """The content of a file at `commit`; None when there is no such file."""
        if not await self._git("ls-tree", "-z", "--full-tree", commit, "--", path):
            return None
        return await self._git_on_files("cat-file", "blob", f"{commit}:{path}")

    async def check_out(self, commit: str, paths: Sequence[str], into: Path) -> None:
        """Write the files below each of `paths` ("" is everything) to the folder `into`, in one go."""
        patterns = self._directory / "info" / "sparse-checkout"
        patterns.parent.mkdir(exist_ok=True)
        patterns.write_text("".join(f"{_pattern(path)}\n" for path in paths), "utf-8", "surrogateescape")
        index = into.with_name(f"{into.name}.index")
        sparse = ("-c", "core.sparseCheckout=true", "-c", "core.sparseCheckoutCone=false")
        environ = {"GIT_INDEX_FILE": str(index), "GIT_WORK_TREE": str(into)}
        await self._git_on_files("read-tree", "-m", "-u", commit, settings=sparse, environ=environ)

    async def _initialise(self) -> None:
        if (self._directory / "HEAD").exists():
            return
        shutil.rmtree(self._directory, ignore_errors=True)
        # Made aside and moved: killed in between, it would be a repository that does not know where it came from.
        aside = self._directory.with_name("tmp-repository")
        await run_git(["init", "--quiet", "--bare", "--template=", "--", str(aside)], pid_file=self._pid_file)
        await run_git([f"--git-dir={aside}", "remote", "add", "origin", self._address], pid_file=self._pid_file)
        aside.rename(self._directory)

    async def _is_damaged(self, error: GitFailed) -> bool:
        if _NOT_OUR_FAULT.search(str(error)):
            return False
        try:
            await self._git("fsck", "--no-dangling", "--no-progress", offline=True)
        except GitFailed:
            return True
        return False

    async def _git_on_files(self, *arguments: str, settings: Sequence[str] = (), environ: dict[str, str] | None = None) -> bytes:
        """A command that reads files, which git fetches now if they were left out before."""
        try:
            return await self._git(*arguments, settings=settings, environ=environ)
        except GitFailed as error:
            if not self._complete.exists() and _FILES_REFUSED.search(str(error)):
                raise FilesRefused(str(error)) from error
            raise

    async def _git(
        self, *arguments: str, settings: Sequence[str] = (), environ: dict[str, str] | None = None, offline: bool = False
    ) -> bytes:
        return await run_git(
            [*settings, f"--git-dir={self._directory}", *arguments],
            offline=self._offline or offline,
            environ=environ or {},
            pid_file=self._pid_file,
        )


def _pattern(path: str) -> str:
    """The line of a sparse-checkout file that means exactly this folder."""
    return "/" + re.sub(r"([\\*?\[])", r"\\\1", path) + "/" if path else "/*"
