"""The two records of a trial: what is to be done (TrialSpec) and what came of it (TrialResult). Both are plain JSON."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from rollout.core.types import EnvironmentSpec, McpServer, NetworkAccess, Struct, Usage

SCHEMA_VERSION = "1.0"

NO_ENVIRONMENT = "none"
"""The environment type of a trial that has no sandbox."""

Isolation = Literal["default", "users", "strict", "separate"]
"""What stands between an agent and its verifier, from little to much; `rollout.core.trial.isolation` says what each does."""

ISOLATIONS: tuple[Isolation, ...] = ("default", "users", "strict", "separate")
"""The levels, the stricter the later."""

MAIN_SERVICE = "main"
"""The service of a task that the agent works in."""

MANIFEST = "manifest.json"
"""In `artifacts/` of a trial: what was kept, and what was not."""

Seconds = Annotated[float, Meta(ge=0)]
Timeout = Annotated[float, Meta(gt=0)]


class Artifact(Struct, frozen=True, kw_only=True):
    """A file or folder of the environment that is kept in `artifacts/` of the trial, and that a separate verifier gets."""

    source: Annotated[str, Meta(min_length=1, max_length=4096)]
    """Its path in the environment; a relative one starts from the working directory."""
    destination: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    """Where it goes in `artifacts/`; the path that it has in the environment when unset."""
    exclude: list[str] = []
    """Globs of names, or of paths below `source`, that are left out."""
    service: str = MAIN_SERVICE
    """The service of the task that has it."""

    def __post_init__(self) -> None:
        for path in (self.source, self.destination or ""):
            if "\0" in path or ".." in path.split("/"):
                raise ValueError(f"{path!r} must not have `..` in it")
        inside = (self.destination or self.source).strip("/.")
        if self.destination is not None and self.destination.startswith("/"):
            raise ValueError(f"`destination` is {self.destination!r}; it must be relative to the trial's artifacts")
        if not inside or inside == MANIFEST:
            raise ValueError(f"{self.destination or self.source!r} cannot be kept: it would take the place of {MANIFEST}")


class Healthcheck(Struct, frozen=True, kw_only=True):
    """When an environment is ready; the fields mean what they mean to Docker."""

    command: Annotated[str, Meta(min_length=1)]
    """Shell command; the environment is ready when it exits with 0."""
    interval_sec: Seconds = 5.0
    """Pause between two checks."""
    timeout_sec: Timeout = 30.0
    """A check that takes longer has failed."""
    start_period_sec: Seconds = 0.0
    """Failures in the first seconds do not count."""
    start_interval_sec: Seconds = 5.0
    """Pause between two checks while they do not count."""
    retries: Annotated[int, Meta(ge=1)] = 3
    """How many failures in a row make the start fail."""


class CollectHook(Struct, frozen=True, kw_only=True):
    """A command that puts down, before the agent's environment is left, what the verifier is to see of it."""

    command: Annotated[str, Meta(min_length=1)]
    """Shell command. One that fails is a line in the trial's log."""
    service: str = MAIN_SERVICE
    """The service of the task in which it runs."""
    timeout_sec: Timeout = 60.0
    """Seconds until it is killed."""
    user: str | int | None = None
    """Run it as this user; the image's own when unset."""


class AgentSpec(Struct, frozen=True, kw_only=True):
    """Which agent, and how. `env` keeps `${NAME}`."""

    name: str
    plugin: str
    """Name in the entry-point group `rollout.agents`."""
    options: dict[str, Any] = {}
    env: dict[str, str] = {}
    user: str | None = None
    mcp_servers: tuple[McpServer, ...] = ()
    """Besides those of the task."""
    skills: tuple[str, ...] = ()
    """Folders on the host, each a skill."""


class TaskSetup(Struct, frozen=True, kw_only=True):
    """What prepares a task's environment before the agent is installed."""

    files: str | None = None
    """Folder on the host that is copied into the working directory."""
    workdir: str | None = None
    """The working directory that the Dockerfile names."""
    script: str | None = None
    """Script on the host."""
    commands: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.files is not None or self.script is not None or bool(self.commands)


class StepSpec(Struct, frozen=True, kw_only=True):
    """One of the steps of a task, which agents take one after the other in one environment."""

    name: str
    """Also its folder in `steps/` of the task, and of the trial."""
    agent_sec: float
    verifier_sec: float
    env: dict[str, str] = {}
    """Variables of its verifier, over the task's."""
    min_reward: dict[str, float] = {}
    """Reward key to the least that the next step is worth trying with."""
    healthcheck: Healthcheck | None = None
    artifacts: tuple[Artifact, ...] = ()
    isolation: Isolation | None = None
    """Instead of the trial's: `separate` verifies the step's artifacts in a fresh environment, while its own goes on."""
    agent_user: str | None = None
    """Instead of the trial's."""
    verifier_user: str | None = None
    """Instead of the trial's."""
    agent_network: NetworkAccess | None = None
    """Instead of the task's."""
    verifier_network: NetworkAccess | None = None
    """Instead of the task's."""


StepStrategy = Literal["mean", "final"]


class TaskSpec(Struct, frozen=True, kw_only=True):
    """Which task, and what identifies its content."""

    name: str
    dataset: str
    path: str
    """The task's folder on the host; of a row, its data set's."""
    digest: str
    """Content hash of the whole folder, or of a row and what is rendered with it."""
    dataset_dir: str | None = None
    """The folder of the dataset.toml that the task belongs to, if there is one."""
    instruction: str | None = None
    """A row's text; None: it is in instruction.md of `path`."""
    images: tuple[str, ...] = ()
    """Files that belong to the instruction, relative to `dataset_dir`."""
    content: list[dict[str, Any]] | None = None
    """Content blocks instead of `instruction` and `images`, of a task that was given from Python."""
    row: dict[str, Any] | None = None
    """A row's metadata; None for a folder."""
    row_id: str | None = None
    """The row that led to the folder (`task_path`), if one did; None for a row that is a task by itself."""
    row_values: dict[str, Any] = {}
    """Its values; those of task.toml win."""
    git_commit_id: str | None = None
    source: str | None = None
    metadata: dict[str, Any] = {}
    env: dict[str, str] = {}
    """Extra variables of the oracle's solution (`[solution] env`)."""
    setup: TaskSetup = TaskSetup()
    rllm: bool = False
    """The task says `[rllm]`: rewards are looked for in `/tmp/rllm` first."""
    artifacts: tuple[Artifact, ...] = ()
    collect: tuple[CollectHook, ...] = ()
    healthcheck: Healthcheck | None = None
    mcp_servers: tuple[McpServer, ...] = ()
    """For the agent to use."""
    skills_dir: str | None = None
    """Folder of the environment with skills for the agent."""
    agent_network: NetworkAccess | None = None
    """While the agent works, instead of the environment's own."""
    verifier_network: NetworkAccess | None = None
    """While the verifier works in the agent's environment, instead of the environment's own."""
    steps: tuple[StepSpec, ...] = ()
    step_strategy: StepStrategy = "mean"
    """The reward of a task with steps: the mean over those that were taken, or what the last of them got."""


class VerifierSpec(Struct, frozen=True, kw_only=True):
    plugin: str = "script"
    options: dict[str, Any] = {}
    env: dict[str, str] = {}
    user: str | None = None
    disable: bool = False
    agent_env: bool = False
    """The verifier also sees the agent's variables."""
    tests: str | None = None
    """The folder on the host that becomes /tests; `tests` of the task when None."""


class Timeouts(Struct, frozen=True, kw_only=True):
    """Seconds, after overrides, ceilings and the multiplier."""

    build_sec: float = 600.0
    install_sec: float = 600.0
    agent_sec: float = 600.0
    verifier_sec: float = 600.0


class Budget(Struct, frozen=True, kw_only=True):
    """What may be used. None is no limit."""

    cost_usd: Annotated[float, Meta(gt=0)] | None = None
    """US dollars, as far as agents tell what they cost."""
    tokens: Annotated[int, Meta(gt=0)] | None = None
    """Tokens sent (cached ones too) and received, as far as agents tell."""
    wall_sec: Annotated[float, Meta(gt=0)] | None = None
    """Seconds: of one run of the job until no more trials start; of a trial's agent until it is ended."""

    def exceeded(self, usage: Usage) -> str | None:
        """What is used up, in words; None when nothing is."""
        if self.cost_usd is not None and usage.cost_usd is not None and usage.cost_usd >= self.cost_usd:
            return f"${usage.cost_usd:.4g} of ${self.cost_usd:g} are spent"
        tokens = (usage.input_tokens or 0) + (usage.output_tokens or 0)
        if self.tokens is not None and tokens >= self.tokens:
            return f"{tokens} of {self.tokens} tokens are used"
        return None


class TrialSpec(Struct, frozen=True, kw_only=True):
    """One attempt of one agent at one task: all that is needed to run it, here or on another machine."""

    schema_version: str = SCHEMA_VERSION
    job_id: str
    job_name: str
    trial_id: str
    """`<agent>/<dataset>/<task>__<attempt>`: unique in the job and the trial's folder below the job's."""
    directory: str
    """The trial's folder on the host, absolute."""
    attempt: int
    try_number: int = 1
    """2 and more are retries after an error."""
    agent: AgentSpec
    task: TaskSpec
    environment: EnvironmentSpec
    environment_type: str
    environment_options: dict[str, Any] = {}
    base_dir: str = "."
    """The folder on the host that relative paths in options start from: the job file's."""
    verifier: VerifierSpec = VerifierSpec()
    timeouts: Timeouts = Timeouts()
    budget: Budget = Budget()
    """What the agent may use."""
    isolation: Isolation = "default"
    agent_cache: bool = True
    """Start from an image in which the agent is installed already, where there can be one."""
    verifier_environment: EnvironmentSpec | None = None
    """Where a separate verifier works, if that is not an environment like the agent's."""
    fingerprint: dict[str, str] = {}
    """Short hashes of agent, task, environment and verifier: a finished trial is kept while they are equal."""

    @property
    def environments(self) -> tuple[EnvironmentSpec, ...]:
        """Every kind of environment that the trial starts."""
        return (self.environment,) if self.verifier_environment is None else (self.environment, self.verifier_environment)

    @property
    def tests_directory(self) -> Path:
        """The folder on the host whose copy is /tests while a verifier runs; it need not exist."""
        return Path(self.verifier.tests) if self.verifier.tests else Path(self.task.path) / "tests"


class ErrorInfo(Struct, frozen=True, kw_only=True):
    type: str
    """The error's code, see rollout.core.errors."""
    message: str
    phase: str | None = None
    retryable: bool = False


class Durations(Struct, frozen=True, kw_only=True):
    """Seconds; None for a phase that was not reached."""

    total_sec: float | None = None
    environment_setup_sec: float | None = None
    agent_setup_sec: float | None = None
    agent_execution_sec: float | None = None
    verifier_sec: float | None = None


class Timestamps(Struct, frozen=True, kw_only=True):
    """UTC; None for a phase that was not reached."""

    started_at: datetime | None = None
    environment_setup_started_at: datetime | None = None
    environment_setup_ended_at: datetime | None = None
    agent_setup_started_at: datetime | None = None
    agent_setup_ended_at: datetime | None = None
    agent_execution_started_at: datetime | None = None
    agent_execution_ended_at: datetime | None = None
    verifier_started_at: datetime | None = None
    verifier_ended_at: datetime | None = None
    ended_at: datetime | None = None


class TryRecord(Struct, frozen=True, kw_only=True):
    """An earlier try of the same trial, kept in `tries/<number>/` of the trial's folder."""

    number: int
    error: ErrorInfo | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


Status = Literal["scored", "unscored", "errored", "cancelled"]
"""scored: there is a verdict (the agent may still have failed, see `error`). unscored: verification was disabled.
errored: no verdict because of `error`. cancelled: interrupted."""


class EarlierVerdict(Struct, frozen=True, kw_only=True):
    """What a trial's verdict was before it was verified again."""

    status: Status
    reward: float | None = None
    rewards: dict[str, float] = {}
    reward_source: str | None = None
    error: ErrorInfo | None = None
    verifier_exit_code: int | None = None
    verifier: str = ""
    """Fingerprint of the verifier and the tests that gave it, where it is known."""
    verified_at: datetime | None = None


class StepResult(Struct, frozen=True, kw_only=True):
    """What came of one step of a task; its own folder is `steps/<name>/` of the trial's."""

    name: str
    status: Status
    reward: float | None = None
    rewards: dict[str, float] = {}
    error: ErrorInfo | None = None
    agent_exit_code: int | None = None
    verifier_exit_code: int | None = None
    reward_source: str | None = None
    usage: Usage | None = None
    durations: Durations = Durations()
    stopped: str | None = None
    """Why no further step was taken after it, though there are more."""


class TrialResult(Struct, frozen=True, kw_only=True):
    """What came of a trial: the trial's `result.json`, and one line of the job's `trials.jsonl`."""

    schema_version: str = SCHEMA_VERSION
    trial_id: str
    task_name: str
    dataset_name: str
    agent_name: str
    attempt: int
    status: Status
    reward: float | None = None
    """The primary reward; None is no verdict, which is not 0."""
    rewards: dict[str, float] = {}
    error: ErrorInfo | None = None
    agent_exit_code: int | None = None
    verifier_exit_code: int | None = None
    reward_source: str | None = None
    usage: Usage | None = None
    cost: float | None = None
    """US dollars, as far as the agent tells."""
    durations: Durations = Durations()
    timestamps: Timestamps = Timestamps()
    steps: tuple[StepResult, ...] = ()
    """Of a task with steps, those that were taken."""
    tries: tuple[TryRecord, ...] = ()
    earlier_verdicts: tuple[EarlierVerdict, ...] = ()
    """Of a trial that was verified again, the oldest first."""
    verifier: str = ""
    """Fingerprint of the verifier and the tests of the last `rollout regrade`; empty when there was none."""
    warnings: tuple[str, ...] = ()
    environment_type: str = ""
    image: str | None = None
    task_digest: str = ""
    task_git_commit_id: str | None = None
    task_source: str | None = None
    task_metadata: dict[str, Any] = {}
    fingerprint: dict[str, str] = {}
    plugins: dict[str, str] = {}
    """Distribution to version, of each plugin that took part."""
    extra: dict[str, Any] = {}
    """What hooks added."""

    @property
    def scored(self) -> bool:
        return self.status == "scored"


def to_json(record: Struct, *, indent: int = 2) -> bytes:
    """The record as JSON with a final newline. Numbers that are not finite cannot occur in one."""
    data = msgspec.json.encode(record)
    return (msgspec.json.format(data, indent=indent) if indent else data) + b"\n"
