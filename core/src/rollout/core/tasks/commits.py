"""Which commit a folder on this machine is at."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rollout.core.tasks.git_program import git_environment


class EnclosingCommits:
    """Asks git once per repository, however many folders of it are asked for."""

    def __init__(self) -> None:
        self._repositories: dict[Path, Path | None] = {}
        self._commits: dict[Path, str | None] = {}

    def of(self, folder: Path) -> str | None:
        """HEAD of the git work tree that `folder` is in; None when it is in none, or git cannot say."""
        repository = self._repository(Path(os.path.realpath(folder)))
        if repository is None:
            return None
        if repository not in self._commits:
            self._commits[repository] = _head(repository)
        return self._commits[repository]

    def _repository(self, folder: Path) -> Path | None:
        if folder not in self._repositories:
            if (folder / ".git").exists():
                self._repositories[folder] = folder
            else:
                self._repositories[folder] = None if folder.parent == folder else self._repository(folder.parent)
        return self._repositories[folder]


def _head(repository: Path) -> str | None:
    command = ["git", "-C", str(repository), "rev-parse", "--verify", "--quiet", "HEAD^{commit}"]
    try:
        result = subprocess.run(
            command, env=git_environment(os.environ), stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.decode("ascii", "replace").strip() or None if result.returncode == 0 else None
