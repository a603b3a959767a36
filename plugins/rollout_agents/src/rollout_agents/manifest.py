"""What a manifest may say. Scripts and variables are as in the `agents:` block of a job: one can be pasted into the other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from rollout import ConfigError, Struct
from rollout_agents.mcp import Format

Verified = Literal["task", "installed", "no"]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]


class Manifest(Struct, frozen=True, kw_only=True):
    """One agent."""

    name: Name
    """How job files call it."""
    aliases: list[Name] = []
    """Further names."""
    description: str = ""
    homepage: str = ""
    install: str | None = None
    """Script that installs the agent. POSIX sh; the functions of install.sh are there, and `$version`."""
    prepare: str = ""
    """Lines of a script that come before `execute` and before `acp`, with the same variables."""
    execute: str
    """Script that runs it once. POSIX sh; the task is in `$ROLLOUT_TASK_INSTRUCTION_FILE`, the model in `$model`, the base URL in
    `$base_url`, the job's further arguments in `"$@"`. What it prints is kept."""
    env: dict[str, str] = {}
    """Variables for both. `${VAR}` is taken from the host."""
    requires_env: list[str] = []
    """Variables without which it cannot work, taken from the host unless the job's `env` has them. `A|B`: one of them."""
    optional_env: list[str] = []
    """Variables that are taken from the host when they are set there."""
    version: str = ""
    """The pinned version."""
    check: str = ""
    """Command that prints its version."""
    model: str = ""
    """The model it is told to use unless the job says otherwise; empty is its own choice."""
    model_env: list[str] = []
    """Variables that hold the model."""
    base_url_env: list[str] = []
    """Variables that hold the base URL of a self-hosted model."""
    acp: str = ""
    """Command that speaks the Agent Client Protocol, when it has one."""
    acp_mcp: bool = True
    """It uses the MCP servers that its ACP session tells of, as the protocol wants it."""
    acp_install: str | None = None
    """Script that installs what `acp` runs, instead of `install`; needed where that is a program of its own."""
    mcp: Format = ""
    """It can be told of MCP servers: `$mcp_config` is then a file of this format, or empty when there are none."""
    skills: str = ""
    """Folder, for sh, where it looks for skills; those that it is given are copied there."""
    trajectory: Name = "atif"
    """The reader that makes a trajectory of what it prints and leaves in /logs/agent, as in a job; `rollout plugins readers`."""
    vendor: str = ""
    """Why it cannot be run without its vendor; empty when it can."""
    verified: Verified = "no"
    """What its authors saw of the pinned version. task: it solved one, with a scripted model. installed: it told its version."""
    notes: str = ""
    """What users should know: where it cannot be installed, and why."""

    @property
    def takes_base_url(self) -> bool:
        """Whether it can be told where a model is served."""
        return bool(self.base_url_env) or "$base_url" in self.prepare + self.execute


def decode_manifest(raw: Any, where: str) -> Manifest:
    """Raises ConfigError: an unknown, missing or wrong key; `where` begins the text."""
    try:
        return msgspec.convert(raw, Manifest)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error


def read_manifest(path: Path) -> Manifest:
    """A manifest from a TOML file.

    Raises:
        ConfigError
    """
    from rollout.core.config.document import read_document

    return decode_manifest(read_document(path), str(path))
