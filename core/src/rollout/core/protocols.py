"""What a plugin implements. Six small contracts; everything else is written once in core over them.

Register a class (or a factory with the same class attributes) under the entry-point group of its kind. Every plugin has

    api_version: ClassVar[tuple[int, int]]      the (major, minor) of this page it was written for; now API_VERSION
    options_type: ClassVar[type[Struct]]        decoded from the `options:` of the job file before anything starts

and is constructed as `cls(options, context)`. Construction does no I/O and importing the module does none either.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from rollout.core.episodes import Episode, Task
from rollout.core.errors import VerifierError
from rollout.core.records import TrialResult, TrialSpec
from rollout.core.types import (
    DEFAULT_TRANSFER_LIMITS,
    AgentTurn,
    Command,
    DatasetInfo,
    EnvironmentSpec,
    ExecResult,
    McpServer,
    MetricValue,
    NetworkAccess,
    OutputSink,
    Score,
    Struct,
    TaskFolder,
    TransferLimits,
    TransferReport,
    Usage,
    VerifyResult,
)

API_VERSION = (1, 0)

# Capabilities a backend may have. Core compares them with what tasks and jobs ask for before anything starts.
EXEC_USER = "exec_user"  # Command.user is honoured
LIVE_STDIO = "live_stdio"  # Environment.open works
NETWORK_NONE = "network_none"  # EnvironmentSpec.network == "none" is enforced
DOCKER_IMAGE = "docker_image"  # EnvironmentSpec.docker_image can be used
NETWORK_ALLOWLIST = "network_allowlist"  # EnvironmentSpec.network == "allowlist" is enforced
NETWORK_SWITCH = "network_switch"  # environments with `later_networks` are `SwitchableEnvironment`s
GPUS = "gpus"  # Resources.gpus is honoured
SERVICES = "services"  # tasks of several services can be started; their environments are `ServicesEnvironment`s
BESIDE = "beside"  # a trial that holds an environment can have a second one started
SNAPSHOT = "snapshot"  # SnapshotBackend.snapshot works


class NoOptions(Struct, frozen=True, kw_only=True):
    """For a plugin that has no options: any key is an error."""


class Process(Protocol):
    """A running program with live standard streams, made by `Environment.open`."""

    async def write(self, data: bytes) -> None:
        """Send to standard input; waits while the program does not read."""
        ...

    async def close_stdin(self) -> None: ...

    def output(self) -> AsyncIterator[bytes]:
        """Standard output in chunks, until the program closes it."""
        ...

    async def wait(self) -> int:
        """The exit code, as in ExecResult."""
        ...

    async def kill(self) -> None:
        """Kill the process tree and wait until it is gone. Idempotent."""
        ...


@runtime_checkable
class Environment(Protocol):
    """One started sandbox, private to one trial."""

    async def exec(self, command: Command, sink: OutputSink | None = None) -> ExecResult:
        """Run a command to its end.

        Cancelling the call, like the command's own timeout, kills the process tree (everything in the session of the
        command's process) and returns only when it is gone. A process that moved to a session of its own survives.

        Raises:
            CommandTimeoutError: `timeout_sec` passed.
            EnvironmentLostError: the sandbox is gone.
        """
        ...

    async def open(self, command: Command, sink: OutputSink | None = None) -> Process:
        """Start a command with live stdin and stdout; `sink` gets stderr. Needs the capability `live_stdio`."""
        ...

    async def upload(self, source: Path, target: str, *, owner: str | None = None) -> None:
        """Copy a file or a folder's content to the absolute path `target`.

        Modes are kept, parents are made, a folder is merged into an existing one, links are copied as links. Everything
        belongs to `owner` (as Command.user), by default to the environment's root.

        Raises:
            TransferError, EnvironmentLostError
        """
        ...

    async def download(self, source: str, target: Path, limits: TransferLimits = DEFAULT_TRANSFER_LIMITS) -> TransferReport:
        """Copy a file to the path `target`, or a folder's content into the folder `target`.

        Nothing is written outside `target`, no link in `source` is followed, no device or FIFO is made. Modes are
        reduced to the user's own rwx bits so that the host's user can always read and remove the copy.

        Raises:
            FileNotFoundError: `source` does not exist.
            TransferError, EnvironmentLostError
        """
        ...

    async def stop(self) -> None:
        """End every process and remove the sandbox. Idempotent; safe after a failed start."""
        ...


@runtime_checkable
class SharedProcesses(Protocol):
    """An environment whose processes are among those of others, so that `kill -9 -1` in it is not for it alone."""

    async def kill_everything(self) -> None:
        """Kill every process that was started in the environment, however it was started."""
        ...


@runtime_checkable
class ServicesEnvironment(Environment, Protocol):
    """An environment of several services. It is itself the service `main`, in which the agent works.

    Optional: for backends with the capability `services`.
    """

    def services(self) -> Sequence[str]:
        """The names of the other services; none for a task that has only one."""
        ...

    def service(self, name: str) -> Environment:
        """The sandbox of another service. It ends with the whole: its own `stop` does nothing.

        Raises:
            KeyError: there is no such service.
        """
        ...

    async def service_output(self, name: str, max_bytes: int) -> bytes:
        """The end of what a service's own program printed, stdout and stderr in one.

        Raises:
            KeyError, EnvironmentLostError
        """
        ...


@runtime_checkable
class SwitchableEnvironment(Environment, Protocol):
    """An environment whose network can be changed while it is used. Optional: capability `network_switch`."""

    async def set_network(self, access: NetworkAccess) -> None:
        """Allow this and nothing else from now on; connections that are open are cut. One of `later_networks`, or the first.

        Raises:
            SandboxError: it cannot be changed; nothing is said about what holds now.
            EnvironmentLostError
        """
        ...


class BackendContext(Struct, frozen=True, kw_only=True):
    """What a backend knows of the job it serves."""

    job_id: str
    """Unique, [a-z0-9-]; the value of the label `rollout.job`."""
    work_dir: Path
    """The backend's own scratch folder for this job; may not exist yet. Removed by core after `aclose`."""
    cache_dir: Path
    """Shared by all jobs of the user; the backend's own sub-folder. Lock what you write."""
    concurrency: int
    """How many environments core will hold at once."""
    private_paths: tuple[Path, ...] = ()
    """Host folders that no environment may show: data sets with their solutions and tests, job folders, caches."""
    base_dir: Path = Path()
    """Relative paths in the backend's options start from here: the job file's folder."""
    delete: bool = True
    """The job's `environment.delete`: nothing that the job made outside its folder is to outlive it, images included."""
    offline: bool = False
    warn: Callable[[str], None] = lambda message: None
    """Tell the user something once; the text becomes part of the job's record."""
    resolved: Callable[[str, str], None] = lambda image, content: None
    """Say which content the reference of an image stands for, by its digest; lock.json keeps it."""


class EnvironmentBackend(Protocol):
    """Makes environments of one type. One instance serves one job.

    A class may say `placement = frozenset({"host", ...})`: the options that only say on which machine environments are. A job
    that goes on after they were changed keeps its finished trials.
    """

    api_version: ClassVar[tuple[int, int]]
    options_type: ClassVar[type[Struct]]
    capabilities: frozenset[str]
    """Of the constants above; may depend on the options and the machine."""

    def __init__(self, options: Any, context: BackendContext) -> None: ...

    def check(self, spec: EnvironmentSpec) -> None:
        """Whether this machine can run this task, before anything starts. Called once per task; must be quick.

        Raises:
            TaskError: this task cannot run here; the text says why and what could.
            SandboxError: nothing can run here; the text says what is missing and how to get it.
        """
        ...

    async def prepare(self, spec: EnvironmentSpec, *, force: bool = False, sink: OutputSink | None = None) -> str:
        """Build or pull what `spec` needs, once per `spec.digest`, and return a reference for `start` and `remove`.

        Core calls it once per digest and job, under `build_timeout_sec`; cancelling it must stop the build. `force`
        rebuilds what a cache holds. `sink` gets the build's output.

        Raises:
            BuildError: the text quotes the step that failed.
        """
        ...

    async def start(self, spec: EnvironmentSpec, image: str) -> Environment:
        """Start a sandbox and wait until it accepts commands. Cancelling it must leave nothing behind.

        Raises:
            StartError, ResourceError
            ImageGoneError: `image` is no longer there; core prepares it again and starts once more.
        """
        ...

    async def remove(self, image: str) -> None:
        """Remove an image if this job made it. Called after its last user when the job says `delete: true`."""
        ...

    async def reap(self, job_id: str) -> Sequence[str]:
        """Remove whatever a dead job left outside its folder, by label; return what was removed, a line each.

        Raises:
            TeardownError: something could not be looked for or removed, such as what is on a machine that does not answer; the
                text names it. The rest was removed, and `removed` says what that was.
        """
        ...

    async def aclose(self) -> None: ...


class SnapshotBackend(EnvironmentBackend, Protocol):
    """A backend with the capability `snapshot`: it can keep what was done in a sandbox as an image for other sandboxes."""

    async def snapshot(
        self,
        spec: EnvironmentSpec,
        image: str,
        key: str,
        change: Callable[[Environment], Awaitable[None]],
        *,
        force: bool = False,
    ) -> str | None:
        """An image that is `image` with what `change` does to it in a sandbox of its own; a reference for `start` and `remove`.

        The image of an equal `key` on an equal `image` is used again, an earlier job's too, unless `force` is true. Nothing
        is kept of a `change` that raised or was cancelled. A backend of several machines may call `change` again, once for
        each of them and never two at a time, in `start` too; what it raises there is raised by `start`. `spec.env` may become
        part of the image; core leaves secrets out of it. None: an environment like this one cannot be kept, and `change` was
        not called.

        Raises:
            StartError: the sandbox does not start, or the image cannot be written.
            What `change` raises.
        """
        ...


class ContainerCommands(Struct, frozen=True, kw_only=True):
    """How a container is started on another machine: commands there, and what its processes are given.

    In arguments `{image}`, `{name}` and `{folder}` stand for the image's path there, the container's name, and a folder of its
    own, which has an empty folder `overlay`. `start` puts the number of the container's first process into `{folder}/pid`.
    """

    programs: tuple[str, ...]
    """Names or paths of the command; the first one that is there is used."""
    before: tuple[tuple[str, ...], ...] = ()
    """Arguments of commands that make what `start` needs."""
    start: tuple[str, ...]
    end: tuple[str, ...]
    """Of the command that ends the container, where killing its first process was not enough."""
    environ: tuple[str, ...] | None = None
    """Of a command that prints the image's variables, as /proc/self/environ has them; None when `env` has them."""
    env: dict[str, str]
    user: str | None = None
    workdir: str


class PortableBackend(EnvironmentBackend, Protocol):
    """A backend whose containers other machines can start."""

    def check_elsewhere(self, spec: EnvironmentSpec, *, has_image: bool) -> None:
        """`check`, for a task that runs on another machine. `has_image`: its image is there already. Raises as `check`."""
        ...

    async def commands(self, spec: EnvironmentSpec, image: str | None, *, ids: str) -> ContainerCommands:
        """`image`: what `prepare` or `snapshot` gave; None when only the other machine has it. `ids`: which a user namespace has
        there: `all` for root, `ranges` for a user with subordinate ids, `one` for other users.

        Raises:
            StartError
        """
        ...


class AgentContext(Struct, frozen=True, kw_only=True):
    """What an agent knows of the trial it works on."""

    name: str
    """The agent's name in the job."""
    instruction: str
    """The text. Images that belong to it are in `task.instruction`."""
    task: Task
    """The task as Python agents see it. What solves it may be in its metadata and below its folder."""
    task_directory: Path
    """The task on the host. Only the oracle has business here."""
    environment: Environment
    """The sandbox; in a trial without one, `NoEnvironment`, every call of which is a SandboxError."""
    env: dict[str, str]
    """The agent's variables, expanded, and `ROLLOUT_TASK_INSTRUCTION[_FILE]`. Secrets are in here."""
    workdir: str | None = None
    """The task's working directory; None is the environment's own."""
    user: str | None = None
    log_dir: Path
    """The trial's folder on the host; what an agent records of its own goes to `setup/` and `agent/` in it."""
    root_user: str | None = None
    """`Command.user` for what only the environment's root may do; None when users cannot be chosen there."""
    mcp_servers: tuple[McpServer, ...] = ()
    """What the task and the job tell it to use, expanded: secrets are in here. The same is in `$ROLLOUT_MCP_CONFIG`, and the
    folder of its skills is `$ROLLOUT_SKILLS_DIR`; a variable is not set when there is nothing."""
    solution_env: Callable[[], dict[str, str]] = dict
    """The task's `[solution] env`, expanded. Only the oracle has business here."""
    sink: OutputSink
    """Where output belongs: `setup/` during install, `agent/` while prompting. Redacted, never blocks."""

    is_row: bool = False
    """The task is a row of a data set, and no folder."""
    attempt: int = 1
    base_dir: Path = Path()
    """Relative paths in the agent's options are relative to this, the folder of the job file."""
    spent: Callable[[Usage], None] = lambda usage: None
    """Tell what the agent has used since its first prompt, as often as it tells: beyond the trial's budget the prompt is
    cancelled. What was told last counts where neither a turn nor the trajectory says anything."""
    redact: Callable[[bytes], bytes] = lambda data: data
    """Take the secrets out of what the agent records by itself: of whole lines or files, not of chunks."""

    def __repr__(self) -> str:
        return f"AgentContext(name={self.name!r})"


class AgentSession(Protocol):
    """A connected agent. Several prompts go to one session in turn."""

    async def prompt(self, text: str) -> AgentTurn:
        """Give the agent work and wait until it is done.

        The deadline is core's: at the deadline the call is cancelled, and cancelling it must stop the agent's processes
        (cancelling `Environment.exec` does).
        """
        ...

    async def close(self) -> None:
        """End the agent's own processes. Idempotent."""
        ...


class Agent(Protocol):
    """One agent in one trial: constructed as `cls(options, context)` for each trial.

    A class may say `needs_environment = False`: it works where there is no sandbox (rows of a data set, `type: none`). Where
    that depends on the options it is a static method of them. `answers_rows = True` is the same for rows alone.

    A class may have a static method `identity(options, base_dir) -> str | None`: what else than its options makes it what it
    is, a file's hash for instance. When that changes, finished trials of the agent run again. It raises ConfigError when the
    agent cannot work at all.

    A class may have a static method `agent_env(options, given, environ) -> dict[str, str]`, called before anything starts:
    the variables that it needs besides `given` (the job's `env:` of the agent), as an `env:` block says them; what it takes
    from the host is written `${NAME}`, so that it is redacted. It raises ConfigError when `environ`, the host's variables,
    lacks one.

    A class may have a static method `task_faults(options, task: TaskOutline) -> Iterable[TaskFault]`: why the agent cannot work
    on a task. It is asked once per task before anything starts, must be quick, and runs no foreign code.

    A class may have a static method `equipment(options) -> frozenset[str]`: what the agent can be given by a task or a job
    besides its prompt: the transports of MCP servers (`stdio`, `sse`, `streamable-http`; in `AgentContext.mcp_servers`) and
    `skills`. Without it, tasks that have these are refused before anything starts.

    A class may say `needs_capabilities = frozenset({...})`: what the backend must have for it, LIVE_STDIO for instance. A job
    whose backend lacks one is refused before anything starts.

    A class may have a static method `acp_command(options) -> str | None`: the command, for `sh`, that runs the agent so that it
    speaks the Agent Client Protocol on its standard streams. `acpx/NAME` in a job file then speaks with it. Where another
    program has to be installed for that, a class method `over_acp(options, context)` constructs the agent that installs it;
    `acp_equipment(options)` is its `equipment` then, without which it is told of MCP servers, as the protocol wants it.

    A class may have a method `shared_install(self, withheld: frozenset[str]) -> str | None`: all that the installed state
    is made of, as text, when `install` does the same in every trial of the same image; None when it does not. Trials then
    start from one installed image where the backend can keep one: `install` is called once, in a sandbox without the
    variables `withheld` (the secrets and the instruction), and not in the trials. Everything else that `install` does, it
    must do inside the sandbox.

    A class may have a method `trajectory(self, logs: Path) -> TrajectoryReport | None`: what the agent did, also when it failed
    or ran out of time. It is called once, in a thread, when the session is closed and `/logs/agent` was copied to the folder
    `logs` on the host. What it raises is a warning of the trial.

    A class may have a static method `options_of_name(rest: str) -> dict[str, Any]`: then `NAME:REST` and `NAME/REST` in a job
    file mean this plugin too, with the options that the method makes of REST.
    """

    api_version: ClassVar[tuple[int, int]]
    options_type: ClassVar[type[Struct]]

    def __init__(self, options: Any, context: AgentContext) -> None: ...

    async def install(self) -> None:
        """Make the agent ready inside the environment.

        Raises:
            AgentInstallError: the text quotes the end of what the installer printed.
        """
        ...

    async def connect(self) -> AgentSession: ...


async def no_python(call: PythonCall) -> Any:
    """`TrialView.run_python` of a view that has no processes."""
    raise VerifierError(f"{call.target}: Python functions cannot be called here")


class PythonCall(Struct, frozen=True, kw_only=True):
    """A Python function to be called in a process of its own, for a verifier."""

    target: str
    """`module:function`; the module is importable, or in one of the folders of `search`."""
    arguments: dict[str, Any] = {}
    """By name; plain data."""
    name: str | None = None
    """What messages call it, where `target` only calls a function of somebody else's; `target` when unset."""
    search: tuple[str, ...] = ()
    """Folders that come first in `sys.path` during the call."""
    env: dict[str, str] = {}
    """The only variables it sees, besides PATH, HOME, LANG and the like."""
    timeout_sec: float | None = None
    """Seconds until the process is killed, counted from the start of the function."""
    memory_bytes: int | None = 2 * 2**30
    """How much address space the process may use besides what it starts with. None is no limit."""
    fresh: bool = False
    """In a process that has called nothing before; by default processes are used again."""
    environment: Environment | None = None
    """What `sandbox` means to the function, if anything; commands in it run as `user` in `workdir`, and see `env`."""
    user: str | None = None
    workdir: str | None = None
    sink: OutputSink
    """Gets what the function prints, when it has ended."""


class TrialView(Struct, frozen=True, kw_only=True):
    """What a verifier may see of a trial."""

    environment: Environment
    """The sandbox; in a trial without one, `NoEnvironment`."""
    task: Task
    """The task as Python verifiers see it."""
    episode: Episode
    """What the agent did, as far as it tells; `episode.answer` is its answer."""
    task_directory: Path
    """The task on the host: instruction.md, tests/ ... For a row, the folder of its data set."""
    instruction: str
    metadata: dict[str, Any]
    """The task's `[metadata]`; for a row the same as `task.metadata`."""
    env: dict[str, str]
    """The verifier's variables, expanded; the agent's are not among them unless the job says so."""
    workdir: str | None
    user: str | None
    trial_dir: Path
    """The trial's folder on the host."""
    log_dir: Path
    """The verifier's part of it."""
    sink: OutputSink
    reward_files: tuple[str, ...]
    """Paths in the environment where a reward may be, in order of precedence."""
    tests_directory: Path
    """The folder on the host whose copy is /tests while a verifier runs; it need not exist."""
    collect_logs: Callable[[], Awaitable[TransferReport]]
    """Copy the environment's `/logs` to `logs/` of the trial's folder now; teardown does not repeat it."""
    run_python: Callable[[PythonCall], Awaitable[Any]] = no_python
    """Call a Python function in a process of its own and return what it returns.

    Raises:
        VerifierError: it raised, was not found, returned what is not plain data, ran out of memory or died.
        VerifierTimeoutError: `timeout_sec` passed.
    """

    def __repr__(self) -> str:
        return f"TrialView(trial_dir={self.trial_dir})"


class Verifier(Protocol):
    """Turns the state an agent left into rewards. Constructed as `cls(options)` for each trial.

    A class may say `needs_environment = False`: it judges `episode` and does not look into the sandbox, of which there may
    be none. A class may have a static method `reward_files(options) -> tuple[str, ...]`: files in the sandbox where it looks
    for rewards before the usual ones; they come first in `TrialView.reward_files`, and stale ones are removed.

    A class may have a method `task_faults(self, task: TaskOutline) -> Iterable[TaskFault]`: why it cannot verify a task. It is
    asked once per task before anything starts, and by `rollout tasks check`; must be quick, and runs no foreign code.
    """

    api_version: ClassVar[tuple[int, int]]
    options_type: ClassVar[type[Struct]]

    def __init__(self, options: Any) -> None: ...

    async def verify(self, trial: TrialView) -> VerifyResult:
        """Raises VerifierError and its kinds. The deadline is core's: the call is cancelled."""
        ...


class RewardFunc(Protocol):
    """One part of a rubric. Constructed as `cls(options)` for each trial.

    A plain function may be registered instead: one whose parameter is called `trial` is called with the TrialView, any other
    is a Python verifier (`evaluate(task, episode)` ...) and is called in a process of its own. A class that looks into the
    sandbox says `needs_environment = True`. It may have a method `task_faults`, as verifiers have.
    """

    api_version: ClassVar[tuple[int, int]]
    options_type: ClassVar[type[Struct]]

    def __init__(self, options: Any) -> None: ...

    async def score(self, trial: TrialView) -> float | Mapping[str, float] | VerifyResult:
        """Raises VerifierError and its kinds: there is no verdict, which is not 0."""
        ...


class Metric(Protocol):
    """A streaming aggregate over trials. One instance per (agent, dataset, reward key); constructed as `cls(options)`.

    It sees every finished trial, errored ones too, and must say how it counts those: in `MetricValue.basis`.
    """

    api_version: ClassVar[tuple[int, int]]
    options_type: ClassVar[type[Struct]]

    def __init__(self, options: Any) -> None: ...

    def add(self, score: Score) -> None: ...

    def values(self) -> Sequence[MetricValue]:
        """What stands now; may be called after every trial, so it must be cheap."""
        ...


class RegistryContext(Struct, frozen=True, kw_only=True):
    """What a registry source knows of where it runs."""

    base_dir: Path
    """Relative paths in the job file are relative to this."""
    cache_dir: Path
    offline: bool = False
    """Use only what is cached; anything that is not is a TaskNotFoundError that says so."""
    revisions: dict[tuple[str, str], str] = {}
    """What branches are in this job: (address, name) to commit. Sources fill it in; a job gives all of them the same one, so
    that a branch that moves meanwhile is not two commits in one job."""


class RegistrySource(Protocol):
    """Knows datasets by name and puts their tasks on this machine. Constructed as `cls(options, context)`."""

    api_version: ClassVar[tuple[int, int]]
    options_type: ClassVar[type[Struct]]

    def __init__(self, options: Any, context: RegistryContext) -> None: ...

    async def datasets(self) -> Sequence[DatasetInfo]: ...

    async def fetch(
        self, name: str, version: str | None, *, select: Callable[[str], bool] = lambda name: True
    ) -> Sequence[TaskFolder]:
        """The tasks of one dataset, as folders on this machine, in the registry's order; only names that `select` accepts.

        Raises:
            TaskNotFoundError: no such dataset or version (the text lists what there is), or a task cannot be had.
        """
        ...


class Executor(Protocol):
    """Where trials run. Constructed as `cls(options, concurrency)`."""

    api_version: ClassVar[tuple[int, int]]
    options_type: ClassVar[type[Struct]]

    def __init__(self, options: Any, concurrency: int) -> None: ...

    async def run(
        self,
        trials: AsyncIterator[TrialSpec],
        run_trial: Callable[[TrialSpec], Awaitable[TrialResult]],
        done: Callable[[TrialSpec, TrialResult], None],
    ) -> None:
        """Run trials until the iterator ends, at most `concurrency` at once.

        Pull a trial only when it can start: the iterator is lazy and job-sized. It may wait (for a retry's time), and it
        ends only when every trial pulled from it was given to `done`. `run_trial` never raises but for cancellation; an
        executor that runs trials elsewhere passes the spec as JSON to `rollout trial run` and gives `done` what it wrote.
        Cancelling `run` cancels the trials under way and waits for their teardown.
        """
        ...

    async def aclose(self) -> None: ...
