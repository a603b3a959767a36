"""The `flow` agent: Python code that works on a task, `run(task, config)`, in this process."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import field

from rollout.builtin.flow.sandbox import FlowSandbox
from rollout.core.aio import in_own_thread
from rollout.core.episodes import Episode, FlowConfig, Trajectory
from rollout.core.errors import AgentError, AgentInstallError, ConfigError, boundary
from rollout.core.protocols import API_VERSION, AgentContext
from rollout.core.tasks.python_source import function_in_file, function_in_module
from rollout.core.trial.live import PREFIX, find_live
from rollout.core.types import AgentTurn, Struct


class FlowOptions(Struct, frozen=True, kw_only=True):
    import_path: str
    """`package.module:name` or `file.py:name`, relative to the job file: a function `(task, config)`, or a class or an object
    with `arun` or `run`."""
    base_url: str | None = None
    """Where the flow finds its model; `config.base_url`."""
    model: str | None = None
    """Which model; `config.model`."""
    sampling_params: dict[str, Any] = field(default_factory=dict)
    """`config.sampling_params`."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """`config.metadata`."""
    environment: bool = False
    """Start the task's environment and give it to the flow as `env`: an Environment to one with `arun`, and to one with `run`
    a sandbox with `exec(command)`, `upload_file`, `upload_dir` and `download`."""

    def __post_init__(self) -> None:
        if not self.import_path.startswith(PREFIX) and not all(self.import_path.rpartition(":")[::2]):
            raise ValueError(f"`import_path` is {self.import_path!r}; write `package.module:name` or `file.py:name`")


class FlowAgent:
    """Calls the flow, a synchronous one in a thread. It returns an Episode, a Trajectory, its answer as text, or None."""

    api_version = API_VERSION
    options_type = FlowOptions

    @staticmethod
    def needs_environment(options: FlowOptions) -> bool:
        return options.environment

    @staticmethod
    def identity(options: FlowOptions, base_dir: Path) -> str | None:
        """The hash of the flow's file, where that lies beside the job file.

        Raises:
            ConfigError: there is no such file or module, it is not Python, or what it has of that name is no flow.
        """
        if options.import_path.startswith(PREFIX):
            return None
        name, _, attribute = options.import_path.rpartition(":")
        file = base_dir / (name if name.endswith(".py") else f"{name.replace('.', '/')}.py")
        is_here = file.is_file() or name.endswith(".py")
        if not is_here and name in sys.modules:
            return None
        found = function_in_file(file, attribute) if is_here else function_in_module(name, attribute, (base_dir,))
        if found.fault is not None:
            raise ConfigError(f"{found.fault}; `import_path` names it")
        if found.signature is not None:
            try:
                found.signature.bind(None, None, **({"env": None} if "env" in found.signature.parameters else {}))
            except TypeError as error:
                raise ConfigError(f"{found.file}:{found.line}: {attribute}{found.signature} is no flow: {error}") from error
        if not is_here:
            return None
        try:
            return hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror}; `import_path` names it") from error

    def __init__(self, options: FlowOptions, context: AgentContext) -> None:
        self._options = options
        self._context = context
        self._flow: Any = None

    async def install(self) -> None:
        """Raises AgentInstallError: there is no such flow."""
        with boundary(AgentInstallError, self._options.import_path):
            self._flow = find_flow(self._options.import_path, self._context.base_dir)

    async def connect(self) -> FlowAgent:
        return self

    async def prompt(self, text: str) -> AgentTurn:
        """Raises AgentError: the flow raised, or returned something else."""
        options, context = self._options, self._context
        config = FlowConfig(
            base_url=options.base_url,
            model=options.model,
            session_uid=f"{context.task.id}:{context.attempt - 1}",
            metadata=dict(options.metadata),
            sampling_params=dict(options.sampling_params),
        )
        episode = as_episode(await call_flow(self._flow, context, config), context)
        return AgentTurn(output=episode.answer, episode=episode)

    async def close(self) -> None:
        pass


async def call_flow(flow: Any, context: AgentContext, config: FlowConfig) -> Any:
    """What the flow returns. `arun` is preferred to `run`; one that has a parameter `env` gets the trial's environment."""
    function = getattr(flow, "arun", None) or getattr(flow, "run", None) or flow
    wants_env = "env" in inspect.signature(function).parameters
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        return await function(context.task, config, **({"env": context.environment} if wants_env else {}))
    known = {"env": FlowSandbox(context)} if wants_env else {}
    returned = await in_own_thread(lambda: function(context.task, config, **known))
    return await returned if inspect.isawaitable(returned) else returned


def as_episode(returned: Any, context: AgentContext) -> Episode:
    """Raises AgentError: it is neither an episode, nor a trajectory, nor text, nor None; or holds what is no data."""
    if isinstance(returned, Trajectory):
        returned = Episode(trajectories=[returned])
    elif returned is None or isinstance(returned, str):
        made = Trajectory(name=context.name, task=context.task.id, input=context.task.text, output=returned)
        returned = Episode(trajectories=[made])
    if not isinstance(returned, Episode):
        kind = type(returned).__name__
        raise AgentError(f"the flow returned {kind}; it must be an Episode, a Trajectory, its answer as text, or None")
    try:
        return Episode.from_dict(returned.to_dict())
    except (TypeError, ValueError) as error:
        raise AgentError(f"the flow's episode cannot be recorded: {error}") from error


def find_flow(import_path: str, base_dir: Path) -> Any:
    """The flow of that name; of a class, an instance.

    Raises:
        ImportError, TypeError, or whatever its module raises
    """
    if import_path.startswith(PREFIX):
        return find_live(import_path)
    name, _, attribute = import_path.rpartition(":")
    found: Any = _module(name, base_dir)
    for part in attribute.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise ImportError(f"{name} has no `{attribute}`")
    flow = found() if inspect.isclass(found) else found
    if not callable(flow) and not any(callable(getattr(flow, method, None)) for method in ("run", "arun")):
        raise TypeError(f"is a {type(flow).__name__}; a flow is a function, or has `run` or `arun`")
    return flow


_loading = threading.Lock()


def _module(name: str, base_dir: Path) -> ModuleType:
    with _loading:
        if not name.endswith(".py"):
            sys.path.insert(0, str(base_dir))
            try:
                return importlib.import_module(name)
            finally:
                sys.path.remove(str(base_dir))
        file = (base_dir / name).resolve()
        known = f"rollout_flow_{abs(hash(str(file))):x}"
        if known not in sys.modules:
            spec = importlib.util.spec_from_file_location(known, file)
            if spec is None or spec.loader is None or not file.is_file():
                raise ImportError(f"{file}: no such file")
            module = sys.modules[known] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[known]
                raise
        return sys.modules[known]
