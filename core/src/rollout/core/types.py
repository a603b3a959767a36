"""The data that crosses the seams between core and plugins: commands, results, resources, rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from rollout.core.episodes import Episode


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every record and every block of options: immutable, unknown keys refused.

    Subclasses say `frozen=True, kw_only=True` themselves: msgspec does not inherit `kw_only`, and type checkers want both.
    """


Stream = Literal["stdout", "stderr"]

OutputSink = Callable[[Stream, bytes], None]
"""Called with each chunk of output as it arrives, in order within a stream. It must not block and must not raise."""

MAX_OUTPUT_BYTES = 10 * 1024 * 1024
"""How much of each stream an ExecResult keeps (its end) unless the command says otherwise; Inspect's limit."""


class Command(Struct, frozen=True, kw_only=True):
    """One program to run inside an environment."""

    argv: tuple[str, ...]
    """Program and arguments; no shell is added. A program without `/` is looked up in the command's PATH."""
    stdin: bytes | None = None
    """Bytes for standard input. None is an empty input (/dev/null), never the terminal."""
    env: Mapping[str, str] = {}
    """Added to the environment's own variables. May hold secrets: never logged, never on another process's command line."""
    cwd: str | None = None
    """Absolute, or relative to the environment's working directory. None is the working directory itself."""
    user: str | None = None
    """Name or `uid[:gid]`. None is the environment's own user. Needs the capability `exec_user`."""
    timeout_sec: float | None = None
    """Seconds until the process tree is killed. None is no limit."""
    max_output_bytes: int = MAX_OUTPUT_BYTES
    """Bytes of each stream that the result keeps. A sink gets everything."""

    def __repr__(self) -> str:
        return f"Command(argv={self.argv!r}, cwd={self.cwd!r}, user={self.user!r})"


class ExecResult(Struct, frozen=True, kw_only=True):
    """How a command ended. A non-zero exit code is a result, not an exception."""

    exit_code: int
    """0 to 255; 128 + N when signal N ended the process; 126 when it could not be executed, 127 when it was not found."""
    stdout: bytes = b""
    """The end of standard output, at most `Command.max_output_bytes`."""
    stderr: bytes = b""
    stdout_cut_bytes: int = 0
    """How many bytes were dropped from the start of `stdout`."""
    stderr_cut_bytes: int = 0
    out_of_memory: bool = False
    """The kernel killed a process of the environment for memory while this command ran, as far as the backend can tell."""


class Resources(Struct, frozen=True, kw_only=True):
    """What one environment may use. None is no limit."""

    cpus: float | None = None
    memory_bytes: int | None = None
    storage_bytes: int | None = None
    gpus: int | None = None


Network = Literal["public", "none", "allowlist"]


class NetworkAccess(Struct, frozen=True, kw_only=True):
    """What an environment may reach for a while."""

    mode: Network = "public"
    hosts: tuple[str, ...] = ()
    """With `allowlist`: names, `*.name`, addresses and networks, each with `:port` or for every port."""


class EnvironmentSpec(Struct, frozen=True, kw_only=True):
    """What a backend needs to know to make the sandbox of one trial. Plain JSON; `env` keeps `${NAME}` unexpanded on disk."""

    task_name: str
    directory: str | None
    """The task's `environment/` folder on the host, or None when it has none."""
    digest: str
    """Content hash of everything an image is made of (`environment/`, `docker_image`): equal digests may share an image."""
    docker_image: str | None = None
    resources: Resources = Resources()
    network: Network = "public"
    """From the start on."""
    allowed_hosts: tuple[str, ...] = ()
    """What can be reached with `allowlist`, and nothing else; see NetworkAccess."""
    later_networks: tuple[NetworkAccess, ...] = ()
    """What `set_network` will be asked for while the environment is used. Needs the capability `network_switch`."""
    workdir: str | None = None
    """Working directory that overrides the image's."""
    env: dict[str, str] = {}
    """Variables that every process of the environment sees."""
    build_timeout_sec: float | None = None
    labels: dict[str, str] = {}
    """Put on every outside resource made for the trial, so that it can be found after a crash:
    `rollout.job`, `rollout.trial`."""


class TransferLimits(Struct, frozen=True, kw_only=True):
    """How much a download may put on the host. A file beyond a limit is left out and reported, never cut silently."""

    max_file_bytes: int = 1024**3
    max_total_bytes: int = 4 * 1024**3
    max_files: int = 200_000
    exclude: tuple[str, ...] = ()
    """Globs of names, or of paths below the source, that are left out without a word."""

    def excludes(self, path: str) -> bool:
        """Whether `path`, which is relative to the source, is left out, itself or with a folder above it."""
        parts = path.split("/")
        return any(
            fnmatchcase(part, glob) or fnmatchcase("/".join(parts[: number + 1]), glob)
            for glob in (pattern.strip("/") for pattern in self.exclude)
            for number, part in enumerate(parts)
        )


DEFAULT_TRANSFER_LIMITS = TransferLimits()


class TransferReport(Struct, frozen=True, kw_only=True):
    """What a download wrote and what it refused."""

    files: int = 0
    total_bytes: int = 0
    skipped: tuple[tuple[str, str], ...] = ()
    """(path, reason) of each entry that was left out: a link out of the tree, a device, a file beyond a limit. At most 100."""
    skipped_count: int = 0


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens and money of one turn or one trial, as far as the agent tells. None is unknown, not zero."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None


class AgentTurn(Struct, frozen=True, kw_only=True):
    """What came of one prompt."""

    exit_code: int | None = None
    """Of the agent's process, for agents that are one process per prompt. Non-zero is recorded and still verified."""
    usage: Usage | None = None
    out_of_memory: bool = False
    output: str | None = None
    """The agent's answer, when it gives one: what verifiers without a sandbox judge."""
    episode: Episode | None = None
    """The same with its steps, from agents that know them."""


class RewardEvent(Struct, frozen=True, kw_only=True):
    """One reward that one reward function gave."""

    type: Literal["terminal", "process", "dense"] = "terminal"
    """Of the end result, of a step of the work, or of every step."""
    reward: float
    source: str
    """The function's name in its rubric."""
    step: int | None = None
    ts: datetime | None = None
    """UTC."""
    space: str | None = None
    """What was judged: output, action, reasoning, memory, latent."""
    granularity: Literal["terminal", "step"] | None = None


class VerifyResult(Struct, frozen=True, kw_only=True):
    """A verifier's verdict on one trial."""

    rewards: dict[str, float]
    """Reward key to finite number; at least one key."""
    exit_code: int | None = None
    source: str | None = None
    """Where the rewards came from, for instance `/logs/verifier/reward.txt`."""
    warnings: tuple[str, ...] = ()
    items: dict[str, float] = {}
    """What each reward function of a rubric gave, by its name."""
    events: tuple[RewardEvent, ...] = ()
    error: str | None = None
    """What failed without costing the verdict, where a rubric was told to go on."""
    details: dict[str, Any] = {}
    """Whatever else the verifier said, as JSON; it goes to `verifier/verdict.json` of the trial's folder."""

    @property
    def reward(self) -> float | None:
        return primary_reward(self.rewards)


def primary_reward(rewards: Mapping[str, float]) -> float | None:
    """The number a trial is ranked by: the key `reward`, else the only key, else None."""
    if "reward" in rewards:
        return rewards["reward"]
    if len(rewards) == 1:
        return next(iter(rewards.values()))
    return None


class Score(Struct, frozen=True, kw_only=True):
    """What a metric sees of one finished trial, for one reward key."""

    task: str
    attempt: int
    value: float | None
    """None: no verdict, because the trial errored or was not verified."""
    errored: bool = False


class MetricValue(Struct, frozen=True, kw_only=True):
    """One printed figure, always with its denominator."""

    name: str
    value: float | None
    """None when nothing can be said yet."""
    n: int
    """The denominator: how many trials (or, for pass@k, tasks) the value is over."""
    basis: Literal["scored", "all"] = "scored"
    """`scored`: over trials with a verdict. `all`: errored trials count as 0."""


Transport = Literal["stdio", "sse", "streamable-http"]
"""How a server of the Model Context Protocol is spoken to."""

SKILLS = "skills"
"""What `Agent.equipment` says of an agent that can be given skills."""


class McpServer(Struct, frozen=True, kw_only=True):
    """A server of the Model Context Protocol that the agent is to use: a `command` in the environment, or a `url`."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    """Agents make the names of its tools of it: letters, digits, `_` and `-` suit them all."""
    transport: Transport | None = None
    """How it is spoken to; unset: `stdio` with a command, `sse` (as in Harbor) with a URL."""
    command: Annotated[str, Meta(min_length=1)] | None = None
    """Program in the environment, which the agent starts."""
    args: list[str] = []
    """Its arguments."""
    env: dict[str, str] = {}
    """Its variables; `${VAR}` is taken from the host."""
    url: Annotated[str, Meta(min_length=1)] | None = None
    """Where it answers, seen from the environment."""
    headers: dict[str, str] = {}
    """Sent with every request; `${VAR}` is taken from the host."""

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ValueError(f"MCP server {self.name}: give exactly one of `command` and `url`")
        if self.transport is not None and (self.transport == "stdio") != (self.command is not None):
            raise ValueError(f"MCP server {self.name}: `transport: stdio` goes with `command`, the others go with `url`")
        if (self.args or self.env) if self.command is None else self.headers:
            raise ValueError(f"MCP server {self.name}: `args` and `env` go with `command`, `headers` with `url`")

    @property
    def spoken(self) -> Transport:
        """The transport that is meant."""
        return self.transport or ("stdio" if self.command is not None else "sse")

    @property
    def blocks(self) -> tuple[dict[str, str], dict[str, str]]:
        """What is expanded where it is used, and may hold secrets."""
        return self.env, self.headers


def check_names(servers: Sequence[McpServer]) -> None:
    """Raises ValueError: two of them have one name."""
    names = [server.name for server in servers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two `mcp_servers` have one name: {', '.join(twice)}")


EVERY_EQUIPMENT: frozenset[str] = frozenset({*get_args(Transport), SKILLS})
"""What there is in `Agent.equipment`."""


OUTLINED_ROWS = 100
"""How many rows of a data set are looked at before anything starts."""


class TaskOutline(Struct, frozen=True, kw_only=True):
    """What is known of a task before anything starts: for plugins that say whether they can do their work on it."""

    directory: Path
    """The task on the host; for a row, the folder of its data set."""
    dataset_directory: Path | None = None
    step_directories: tuple[Path, ...] = ()
    """The folders of its steps, if it has any."""
    is_row: bool = False
    """It stands for all rows of a data set, or was given from Python; its instruction and metadata are not in a folder."""
    rows: tuple[dict[str, Any], ...] = ()
    """The metadata of the first rows, at most OUTLINED_ROWS; what none of them has, the others may have all the same."""
    env: dict[str, str] | None = None
    """The verifier's variables, expanded; None while nobody says which there will be."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where its files are looked for: the task, then its data set."""
        return tuple(dict.fromkeys(folder for folder in (self.directory, self.dataset_directory) if folder is not None))


class TaskFault(Struct, frozen=True, kw_only=True):
    """Something that makes it impossible to run or verify a task, found before anything starts."""

    message: str
    """One line, without the place."""
    file: Path | None = None
    """The file that has to be changed; None when it is the job or the machine, or the one that declares the plugin."""
    line: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return self.message
        return f"{self.file}{f':{self.line}' if self.line else ''}: {self.message}"


class TaskFolder(Struct, frozen=True, kw_only=True):
    """A task that a registry put on this machine."""

    name: str
    path: Path
    git_url: str | None = None
    git_commit_id: str | None = None


class DatasetInfo(Struct, frozen=True, kw_only=True):
    """One dataset that a registry offers."""

    name: str
    version: str | None = None
    description: str = ""
    task_count: int | None = None


Json = dict[str, Any]
