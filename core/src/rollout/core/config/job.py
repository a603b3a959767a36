"""What a job file may say. Every key is here, under its field; `rollout schema job` prints the same as JSON Schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from rollout.core.config.rewards import Name, Rewards, RubricConfig, rewards_options
from rollout.core.egress.rules import Rules
from rollout.core.quantity import Quantity, parse_bytes, parse_cpus
from rollout.core.records import Budget, Isolation
from rollout.core.types import McpServer, Struct, check_names

Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]
Location = Annotated[str, Meta(min_length=1, max_length=4096)]

LogLevel = Literal["debug", "info", "warning", "warn", "error"]


class EnvironmentConfig(Struct, frozen=True, kw_only=True):
    """`environment:` where trials run."""

    type: Name = "docker"
    """Backend: `local` and `none` are built in; `docker`, `apptainer`, `ssh` are plugins (`rollout plugins environments`)."""
    force_build: bool = False
    """Build or pull images anew instead of using cached ones."""
    n_concurrent_builds: Positive = 2
    """How many images are built or fetched at once: for the trials to come, while others run."""
    delete: bool = True
    """Remove what was made for the job (images, layers) after its last user; false keeps it for the next job."""
    agent_cache: bool = True
    """Install an agent once per image and start its trials from the result, where the agent and the backend can. `off`: in every
    trial."""
    override_cpus: Quantity | None = None
    """CPUs of every environment, instead of the task's."""
    override_memory: Quantity | None = None
    """Memory of every environment, instead of the task's."""
    override_storage: Quantity | None = None
    """Disk of every environment, instead of the task's."""
    default_limits: Literal["spec", "none"] = "spec"
    """`spec`: a task that names no limits gets 1 CPU, 2G memory, 10G disk. `none`: it gets no limit."""
    extra_allowed_hosts: list[str] = []
    """What agents may reach besides what a task with `network_mode = "allowlist"` or `"no-network"` allows: the address of their
    model, for instance. Names, `*.name`, addresses and networks, each with `:port` or for every port."""
    env: dict[str, str] = {}
    """Variables that every process in the environment sees. `${VAR}` is taken from the host."""
    options: dict[str, Any] = {}
    """The backend's own options; see `rollout plugins show environments NAME`."""

    def __post_init__(self) -> None:
        if self.override_cpus is not None:
            parse_cpus(self.override_cpus)
        for size in (self.override_memory, self.override_storage):
            if size is not None:
                parse_bytes(size)
        Rules(self.extra_allowed_hosts)


class VerifierConfig(Struct, frozen=True, kw_only=True):
    """`verifier:` how trials are scored."""

    override_timeout_sec: Seconds = 0
    """Instead of the task's `[verifier] timeout_sec`; 0 is unset."""
    max_timeout_sec: Seconds = 0
    """Ceiling of verifier timeouts (multiplied by `timeout_multiplier` like the rest); 0 is unset."""
    disable: bool = False
    """Only collect traces: rewards are null."""
    type: Name | None = None
    """Verifier plugin, instead of what the task says. `script` runs tests/test.sh and reads the reward file, `python` calls a
    function, `rewards` combines reward functions."""
    rewards: Rewards | None = None
    """Reward functions, instead of what the task says: the reward is their weighted mean, and each one is reported too."""
    rubric: RubricConfig | None = None
    """The same as `rewards`, with the weights in a list of their own."""
    env: dict[str, str] = {}
    """Variables for the verifier. `${VAR}` is taken from the host."""
    agent_env: bool = False
    """Let the verifier see the agent's variables (its keys) too."""
    options: dict[str, Any] = {}
    """The verifier plugin's own options."""

    def __post_init__(self) -> None:
        given = [name for name in ("type", "rewards", "rubric") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"give only one of `type`, `rewards` and `rubric` (there is {' and '.join(given)})")
        if self.options and self.type is None:
            raise ValueError("`options` belong to a verifier plugin: name it with `type`")

    def chosen(self) -> tuple[str, dict[str, Any]] | None:
        """The verifier plugin that the job names, and its options; None when that is left to the task."""
        if self.type is not None:
            return self.type, self.options
        options = rewards_options(self.rewards, self.rubric)
        return None if options is None else ("rewards", options)


class MetricConfig(Struct, frozen=True, kw_only=True):
    """An item of `metrics:`."""

    type: Name
    """sum, min, max, mean, pass_at_k, or a plugin's."""
    options: dict[str, Any] = {}


class AgentConfig(Struct, frozen=True, kw_only=True):
    """An item of `agents:`: scripts given here, or a plugin named here."""

    name: Name
    """How results call it. Without `install`, `execute` or `type` it also names the plugin (`oracle`, `nop`, ...)."""
    description: str = ""
    type: Name | None = None
    """The agent plugin, when `name` is to differ from it (two variants of one agent)."""
    manifest: Location | None = None
    """A file that describes the agent, relative to the job file; needs `rollout-agents`."""
    install: str | None = None
    """Script that installs the agent inside the environment. Bash, unless its first line says otherwise."""
    execute: str | None = None
    """Script that runs the agent; the task is in $ROLLOUT_TASK_INSTRUCTION and the file $ROLLOUT_TASK_INSTRUCTION_FILE."""
    trajectory: Name | None = None
    """With `execute`: which reader makes a trajectory of what it prints and leaves in /logs/agent; `rollout plugins readers`."""
    env: dict[str, str] = {}
    """Variables for install and execute. `${VAR}`, `${VAR:-default}` are taken from the host, `$$` is a dollar sign."""
    options: dict[str, Any] = {}
    """The agent plugin's own options."""
    mcp_servers: list[McpServer] = []
    """Servers of the Model Context Protocol that it is told of, besides the task's; one of the same name takes its place."""
    skills: list[Location] = []
    """Folders that it is given as skills, relative to the job file: a folder with a SKILL.md, or one that holds such folders."""
    user: Name | None = None
    """Run the agent as this user of the environment, instead of the task's `[agent] user`."""
    override_timeout_sec: Seconds = 0
    """Instead of the task's `[agent] timeout_sec`; 0 is unset."""
    max_timeout_sec: Seconds = 0
    """Ceiling of the agent's timeouts; 0 is unset."""

    def __post_init__(self) -> None:
        check_names(self.mcp_servers)
        if self.manifest is not None and (self.inline or self.type is not None):
            raise ValueError("`manifest` describes an agent: leave out `type`, `install` and `execute`")
        if self.inline and self.type is not None:
            raise ValueError("`type` names a plugin, `install` and `execute` are scripts: give one or the other")
        if self.inline and self.options:
            raise ValueError("`options` belong to a plugin; an agent with `install` or `execute` has none")
        if self.inline and not self.execute:
            raise ValueError("`install` without `execute`: nothing would run the agent")
        if self.trajectory is not None and not self.inline:
            raise ValueError("`trajectory` goes with `execute`; an agent plugin knows how its logs are read")

    @property
    def inline(self) -> bool:
        return self.install is not None or self.execute is not None

    @property
    def plugin(self) -> str:
        if self.manifest is not None:
            return "manifest"
        return "script" if self.inline else (self.type or self.name)

    @property
    def plugin_options(self) -> dict[str, Any]:
        if not self.inline:
            return self.options
        reader = {"trajectory": self.trajectory} if self.trajectory is not None else {}
        return {"install": self.install, "execute": self.execute, **reader}


class RegistryConfig(Struct, frozen=True, kw_only=True):
    """`registry:` of a dataset: exactly one of path, url, git, type."""

    path: Location | None = None
    """A registry.json on this machine."""
    url: Location | None = None
    """A registry.json behind http(s)."""
    git: Location | None = None
    """A git repository that holds a registry.json."""
    ref: Name | None = None
    """Branch, tag or commit of `git`; its default branch when unset."""
    file: str = "registry.json"
    """Path of the registry within `git`."""
    type: Name | None = None
    """A registry plugin."""
    options: dict[str, Any] = {}
    """The registry plugin's own options."""

    def __post_init__(self) -> None:
        given = [name for name in ("path", "url", "git", "type") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of path, url, git, type (there is {', '.join(given) or 'none'})")
        if self.options and self.type is None:
            raise ValueError("`options` belong to a registry plugin: name it with `type`")
        if self.git is None and (self.ref is not None or self.file != "registry.json"):
            raise ValueError("`ref` and `file` go with `git`")

    @property
    def plugin(self) -> str:
        return self.type or ("path" if self.path else "url" if self.url else "git")

    @property
    def plugin_options(self) -> dict[str, Any]:
        if self.path:
            return {"path": self.path}
        if self.url:
            return {"url": self.url}
        if self.git:
            return {"git": self.git, "ref": self.ref, "file": self.file}
        return self.options


class DatasetConfig(Struct, frozen=True, kw_only=True):
    """An item of `datasets:`: a folder (`path`), or a dataset of a registry (`registry`, `name`, `version`)."""

    path: Location | None = None
    """Folder of tasks, one task, or nested groups; relative to the job file."""
    registry: RegistryConfig | None = None
    split: Name | None = None
    """Of rows: read `data/<split>.jsonl`; dataset.toml says which when unset."""
    name: Name | None = None
    """The dataset's name in the registry. With `path`: how results call it (the folder's name when unset)."""
    version: str | None = None
    """The dataset's version in the registry; the first entry of that name when unset."""
    task_names: list[str] = []
    """Run only tasks that match one of these globs."""
    exclude_task_names: list[str] = []
    """Leave out tasks that match one of these globs."""
    n_tasks: Positive | None = None
    """Run only the first N of what remains."""

    def __post_init__(self) -> None:
        if (self.path is None) == (self.registry is None):
            raise ValueError("give exactly one of `path` and `registry`")
        if self.registry is not None and self.name is None:
            raise ValueError("a dataset of a registry needs a `name`")
        if self.path is not None and self.version is not None:
            raise ValueError("`version` goes with `registry`")


class RetryConfig(Struct, frozen=True, kw_only=True):
    """`retry:` another try for trials that errored. Every try's record is kept."""

    max_retries: Annotated[int, Meta(ge=0, le=100)] = 0
    """Extra tries of a trial whose error is retryable. A trial whose machine was lost is tried elsewhere without counting."""
    wait_multiplier: Annotated[float, Meta(ge=1)] = 2.0
    """Each wait is this many times the one before."""
    min_wait_sec: Seconds = 1.0
    """Wait before the first retry."""
    max_wait_sec: Seconds = 30.0
    """No wait is longer."""
    include: list[str] = []
    """Error codes to retry besides those marked retryable."""
    exclude: list[str] = []
    """Error codes never to retry."""

    def wait_sec(self, retry: int) -> float:
        """Seconds before retry number `retry` (1, 2, ...)."""
        try:
            return float(min(self.max_wait_sec, self.min_wait_sec * self.wait_multiplier ** (retry - 1)))
        except OverflowError:
            return self.max_wait_sec


class ExecutorConfig(Struct, frozen=True, kw_only=True):
    """`executor:` what runs the trials."""

    type: Name = "local"
    """`local` runs them in this process."""
    options: dict[str, Any] = {}


class BudgetConfig(Budget, frozen=True, kw_only=True):
    """`budget:` what the job may use. When it is used up no more trials start; those under way end by themselves."""

    per_trial: Budget = Budget()
    """What the agent of one trial may use. When it is used up the agent is ended, and its work is verified."""


class JobConfig(Struct, frozen=True, kw_only=True):
    """A job file."""

    name: Name | None = None
    """The job's folder below `jobs_dir`; the job file's name when unset."""
    jobs_dir: Location = "jobs"
    """Where results go; relative to the working directory."""
    n_attempts: Positive = 1
    """How often each agent tries each task."""
    n_concurrent_trials: Positive = 4
    """How many trials run at once."""
    timeout_multiplier: Annotated[float, Meta(gt=0)] = 1.0
    """Scales every timeout: for slower machines."""
    log_level: LogLevel = "error"
    """What Rollout itself logs to stderr."""
    environment: EnvironmentConfig = EnvironmentConfig()
    verifier: VerifierConfig = VerifierConfig()
    metrics: list[MetricConfig] = field(default_factory=lambda: [MetricConfig(type="mean")])
    """Printed while the job runs, per agent, dataset and reward key, each with its denominator."""
    agents: Annotated[list[AgentConfig], Meta(min_length=1)] = []
    """What is evaluated. A job without agents runs the `default_agent` of its data sets."""
    datasets: Annotated[list[DatasetConfig], Meta(min_length=1)]
    retry: RetryConfig = RetryConfig()
    budget: BudgetConfig = BudgetConfig()
    executor: ExecutorConfig = ExecutorConfig()
    isolation: Isolation = "default"
    """What stands between agents and their verifiers: `users` gives the agent a user of its own, `strict` also kills everything
    it started, `separate` verifies its artifacts in a fresh environment. A task may ask for `separate` too."""
