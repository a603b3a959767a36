"""Where things are: the fixed paths inside an environment, the files of a trial on the host, and safe names for both."""

from __future__ import annotations

import hashlib
import re

LOGS = "/logs"
AGENT_LOGS = "/logs/agent"
VERIFIER_LOGS = "/logs/verifier"
ARTIFACTS = "/logs/artifacts"
TESTS = "/tests"
ORACLE = "/oracle"
SOLUTION = "/solution"
INSTRUCTION_FILE = "/tmp/instruction.md"
INSTRUCTION_IMAGES = "/tmp/instruction-images"
SCRIPTS = "/tmp/rollout"

REWARD_TXT = f"{VERIFIER_LOGS}/reward.txt"
REWARD_JSON = f"{VERIFIER_LOGS}/reward.json"
RLLM_FOLDER = "/tmp/rllm"
RLLM_REWARD_JSON = f"{RLLM_FOLDER}/reward.json"

_MAX_FOLDER_NAME = 80
_MAX_ENVIRONMENT_NAME = 64


def reward_files(*, rllm: bool) -> tuple[str, ...]:
    """Where a reward may be, the first that exists wins: spec 0's order, or spec 2's for a task with `[rllm]`."""
    return (RLLM_REWARD_JSON, REWARD_JSON, REWARD_TXT) if rllm else (REWARD_TXT, REWARD_JSON)


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def folder_name(name: str) -> str:
    """A file name for `name`: itself when it is a plain one, otherwise made plain with a short hash of the original."""
    plain = re.sub(r"[^A-Za-z0-9._+=@-]+", "-", name).strip("-")
    if plain == name and len(name) <= _MAX_FOLDER_NAME and not name.startswith("."):
        return name
    return f"{plain.lstrip('.')[: _MAX_FOLDER_NAME - 9].rstrip('-.')}-{short_hash(name)}".lstrip("-")


class FolderNames:
    """Folder names for the members of one folder: no two members share one, not even on a file system that ignores case."""

    def __init__(self) -> None:
        self._taken: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        """The name's folder; the first of several that would collide keeps the plain form, the others get a hash."""
        folder = folder_name(name)
        if self._taken.setdefault(folder.casefold(), name) != name:
            folder = f"{folder[: _MAX_FOLDER_NAME - 9]}-{short_hash(name)}"
            self._taken[folder.casefold()] = name
        return folder


def environment_name(*parts: str, unique: str = "", limit: int = _MAX_ENVIRONMENT_NAME) -> str:
    """A name for containers and the like: lower case, runs of anything else become `-`, at most `limit` characters.

    `unique` comes last and survives the cut (a cut that removes it would give two trials one name).
    """
    suffix = _slug(unique)
    room = limit - len(suffix) - 1 if suffix else limit
    stem = _slug("-".join(parts))[:room].rstrip("-")
    return "-".join(part for part in (stem, suffix) if part)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
