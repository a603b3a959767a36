"""What a task.toml may say, in this format's dialect and in Harbor's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from rollout.core.config.rewards import Rewards, RubricConfig
from rollout.core.quantity import Quantity, parse_bytes, parse_cpus
from rollout.core.records import Artifact, CollectHook, Healthcheck, StepStrategy, Timeout
from rollout.core.types import McpServer, Struct, check_names


class TaskEnvironmentConfig(Struct, frozen=True, kw_only=True):
    build_timeout_sec: Timeout = 600.0
    """Seconds to build or pull the image."""
    docker_image: str | None = None
    """A prebuilt image, instead of environment/Dockerfile."""
    cpus: Quantity | None = None
    """Kubernetes quantity; 1 unless the job says otherwise."""
    memory: Quantity | None = None
    """Kubernetes quantity; 2G unless the job says otherwise. A bare number below 1Mi is read as MiB."""
    storage: Quantity | None = None
    """Kubernetes quantity; 10G unless the job says otherwise. A bare number below 1Mi is read as MiB."""
    memory_mb: Annotated[int, Meta(gt=0)] | None = None
    """MiB; wins over `memory`."""
    storage_mb: Annotated[int, Meta(gt=0)] | None = None
    """MiB; wins over `storage`."""
    gpus: Annotated[int, Meta(ge=0)] | None = None
    network_mode: str | None = None
    """`public`, `no-network`, or `allowlist`: what `allowed_hosts` names and nothing else."""
    allow_internet: bool | None = None
    """The older way to say `network_mode`."""
    allowed_hosts: list[str] = []
    """With `allowlist`: names, `*.name`, addresses and networks, each with `:port` or for every port."""
    env: dict[str, str] = {}
    """Variables of every process; `${VAR}` is taken from the host."""
    workdir: str | None = None
    """Working directory, instead of the image's."""
    setup_commands: list[str] = []
    """Shell commands that prepare the environment before the agent is installed. `[rllm]` may have them instead."""
    os: str = "linux"
    gpu_types: list[str] = []
    tpu: dict[str, Any] | None = None
    skills_dir: str | None = None
    """Folder of the environment with skills, each a folder with a SKILL.md, that the agent is given."""
    mcp_servers: list[McpServer] = []
    """Servers of the Model Context Protocol that the agent is told of."""
    healthcheck: Healthcheck | None = None
    """Wait for it after the start, before the agent is installed."""

    def __post_init__(self) -> None:
        check_names(self.mcp_servers)
        if self.cpus is not None:
            parse_cpus(self.cpus)
        for size in (self.memory, self.storage):
            if size is not None:
                parse_bytes(size)


class TaskVerifierConfig(Struct, frozen=True, kw_only=True):
    script: str | None = None
    """Shell script that verifies, relative to the task; the folder it is in becomes /tests."""
    module: str | None = None
    """Python file that verifies, in the task or its data set: `tests.evaluate` or `tests/evaluate.py`."""
    function: str = "evaluate"
    """The function in `module`."""
    name: str | None = None
    """A reward function by its name, see `rollout plugins rewards`."""
    import_path: str | None = None
    """A Python function, class or object as `package.module:name`."""
    rewards: Rewards | None = None
    """Reward functions: names, or tables with `type`, `name`, `weight` and `options`. The reward is their weighted mean."""
    rubric: RubricConfig | None = None
    """The same with two lists, `funcs` and `weights`."""
    reward_file: str | None = None
    """A file in the environment where the script leaves its reward; looked for first."""
    timeout_sec: Timeout = 600.0
    """Seconds for the verifier. `timeout` is the same."""
    env: dict[str, str] = {}
    """Variables for the verifier; `${VAR}` is taken from the host."""
    user: str | int | None = None
    """Run the verifier as this user; the image's own when unset."""
    environment_mode: Literal["shared", "separate"] | None = None
    """`separate`: verify in a fresh environment, which gets the artifacts alone."""
    environment: TaskEnvironmentConfig | None = None
    """The fresh environment, if it is to be another than the agent's. A `tests/Dockerfile` is its image."""
    collect: list[CollectHook] = []
    """Run in the agent's environment before its artifacts are fetched."""
    network_mode: str | None = None
    """While the verifier runs, as in `[environment]`, which says it when this is unset."""
    allowed_hosts: list[str] = []

    def __post_init__(self) -> None:
        if self.rewards is not None and self.rubric is not None:
            raise ValueError("give only one of `rewards` and `rubric`")

    @property
    def declared(self) -> bool:
        """Whether it says what verifies, and not only how."""
        return any(getattr(self, kind) is not None for kind in VERIFIER_KINDS)


VERIFIER_KINDS = ("script", "module", "name", "import_path", "rewards", "rubric")
"""The keys of `[verifier]` that say what verifies; of several the first counts."""


class TaskAgentConfig(Struct, frozen=True, kw_only=True):
    timeout_sec: Timeout = 600.0
    """Seconds for the agent."""
    install_timeout_sec: Timeout = 600.0
    """Seconds for the agent's install script."""
    user: str | int | None = None
    """Run the agent as this user; the image's own when unset."""
    network_mode: str | None = None
    """While the agent works, but not while it is installed. As in `[environment]`, which says it when this is unset."""
    allowed_hosts: list[str] = []


class TaskSolutionConfig(Struct, frozen=True, kw_only=True):
    env: dict[str, str] = {}
    """Variables for solve.sh; `${VAR}` is taken from the host."""


class StepAgentConfig(Struct, frozen=True, kw_only=True):
    timeout_sec: Timeout | None = None
    """Seconds for the agent in this step; the task's when unset."""
    user: str | int | None = None
    """Work as this user in this step; the task's when unset."""
    network_mode: str | None = None
    """While the agent works on this step; as the task says when unset."""
    allowed_hosts: list[str] = []


class StepVerifierConfig(Struct, frozen=True, kw_only=True):
    timeout_sec: Timeout | None = None
    """Seconds for the step's tests; the task's when unset."""
    env: dict[str, str] = {}
    """Variables for the step's tests, over the task's."""
    user: str | int | None = None
    """Run the step's tests as this user; the task's when unset."""
    network_mode: str | None = None
    """While the step's tests run; as the task says when unset."""
    allowed_hosts: list[str] = []
    environment_mode: Literal["shared", "separate"] | None = None
    """`separate`: verify the step's artifacts in a fresh environment, while the agent's waits. As the task says when unset."""
    environment: TaskEnvironmentConfig | None = None


class StepConfig(Struct, frozen=True, kw_only=True):
    """An item of `[[steps]]`. Its files are in `steps/<name>/`: instruction.md, tests/, solution/, workdir/."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=80)]
    """The step's folder in `steps/`."""
    agent: StepAgentConfig = StepAgentConfig()
    verifier: StepVerifierConfig = StepVerifierConfig()
    min_reward: float | dict[str, float] | None = None
    """Below this reward (or one of these, by key) no further step is taken."""
    healthcheck: Healthcheck | None = None
    """Wait for it before the step."""
    artifacts: list[Artifact | str] = []
    """Kept after the step, besides the task's."""

    def __post_init__(self) -> None:
        _artifacts(self.artifacts)

    @property
    def kept_artifacts(self) -> tuple[Artifact, ...]:
        return _artifacts(self.artifacts)

    @property
    def thresholds(self) -> dict[str, float]:
        if self.min_reward is None:
            return {}
        return self.min_reward if isinstance(self.min_reward, dict) else {"reward": self.min_reward}


def _artifacts(items: Sequence[Artifact | str]) -> tuple[Artifact, ...]:
    return tuple(Artifact(source=item) if isinstance(item, str) else item for item in items)


class TaskConfig(Struct, frozen=True, kw_only=True):
    """A task.toml. Every key is optional; an unknown one is a warning, because tasks are written by others."""

    version: str = "1.0"
    """Version of the format. Harbor's `schema_version` is the same key."""
    source: str | None = None
    """Where the task comes from."""
    metadata: dict[str, Any] = {}
    """Anything the author wants to say."""
    task: dict[str, Any] = {}
    """Harbor's package data: name, description, authors, keywords."""
    agent: TaskAgentConfig = TaskAgentConfig()
    verifier: TaskVerifierConfig = TaskVerifierConfig()
    environment: TaskEnvironmentConfig = TaskEnvironmentConfig()
    solution: TaskSolutionConfig = TaskSolutionConfig()
    rllm: dict[str, Any] | None = None
    """rLLM's extension; its presence makes `/tmp/rllm/reward.json` the first place to look for a reward."""
    artifacts: list[Artifact | str] = []
    """Files and folders of the environment that are kept; a path, or a table."""
    steps: list[StepConfig] = []
    """Steps that the agent takes one after the other in one environment, each with an instruction and tests of its own."""
    multi_step_reward_strategy: StepStrategy | None = None
    """The reward of a task with steps: `mean` (the default) over those that were taken, or that of the `final` one."""

    def unsupported(self) -> list[str]:
        """What the task asks for that would change its meaning if it were ignored, and that no part of Rollout does yet."""
        wanted = {
            "steps.verifier.environment, a step's own (the task's [verifier.environment] will do)": any(
                step.verifier.environment is not None for step in self.steps
            ),
            "environment.tpu": self.environment.tpu,
            f'environment.os = "{self.environment.os}"': self.environment.os != "linux",
        }
        return [name for name, value in wanted.items() if value]

    def __post_init__(self) -> None:
        _artifacts(self.artifacts)  # a path that cannot be kept is an error of the file
        names = [step.name for step in self.steps]
        if len({name.casefold() for name in names}) < len(names):
            raise ValueError(f"two `steps` have one name: {', '.join(names)}")

    @property
    def kept_artifacts(self) -> tuple[Artifact, ...]:
        return _artifacts(self.artifacts)

    @property
    def separate_verifier(self) -> bool:
        """Whether the task asks for an environment of its own for the verifier."""
        mode = self.verifier.environment_mode
        return mode == "separate" or (mode is None and self.verifier.environment is not None)
