"""Sandboxes, an agent and a verifier without a machine: jobs run on them in microseconds, and fail where a test wants it.

world = FakeWorld(commands={"test.sh": reward(0.5)})
with world.installed():
    ...                                  # `environment: {type: fake}`, agent `fake`, verifier `fake` now exist
assert world.live == 0
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from msgspec import field

from rollout.core.errors import EnvironmentLostError, RolloutError, TransferError
from rollout.core.plugins import override
from rollout.core.protocols import (
    API_VERSION,
    DOCKER_IMAGE,
    EXEC_USER,
    LIVE_STDIO,
    NETWORK_NONE,
    AgentContext,
    BackendContext,
    NoOptions,
    Process,
    TrialView,
)
from rollout.core.types import (
    DEFAULT_TRANSFER_LIMITS,
    AgentTurn,
    Command,
    EnvironmentSpec,
    ExecResult,
    OutputSink,
    Struct,
    TransferLimits,
    TransferReport,
    VerifyResult,
)
from rollout.testing.host_process import start_on_host

Reaction = Callable[["FakeEnvironment", Command], Any]
"""What a command does: it may change `environment.files`, raise, wait (when async), and returns an exit code, an ExecResult,
or None for success."""

Fault = Callable[[EnvironmentSpec], Awaitable[None]]
"""Awaited before a step of a sandbox's life; it raises, hangs or returns."""

STEPS = ("prepare", "snapshot", "start", "exec", "upload", "download", "stop", "remove")
"""What a fault can be put on."""


def reward(value: float) -> Reaction:
    """A test script that writes `value` to the reward file."""
    text = f"{value}\n".encode()

    def react(environment: FakeEnvironment, command: Command) -> None:
        environment.files["/logs/verifier/reward.txt"] = text

    return react


def raising(error: BaseException, *, times: int | None = None) -> Fault:
    """A fault that raises `error`: always, or only the first `times` times."""
    left = times

    async def fault(spec: EnvironmentSpec) -> None:
        nonlocal left
        if left is None:
            raise error
        if left > 0:
            left -= 1
            raise error

    return fault


async def hanging(spec: EnvironmentSpec) -> None:
    """A fault that waits until it is cancelled."""
    await asyncio.Event().wait()


class FakeOptions(Struct, frozen=True, kw_only=True):
    reward: float = 1.0
    """What the tests of every task write to the reward file."""
    exec_sec: float = 0.0
    """How long every command takes, in seconds."""


class FakeWorld:
    """What the fake sandboxes of a test do, and what was done to them."""

    def __init__(
        self,
        *,
        commands: Mapping[str, Reaction] | None = None,
        faults: Mapping[str, Fault] | None = None,
        capabilities: frozenset[str] = frozenset({EXEC_USER, NETWORK_NONE, DOCKER_IMAGE}),
        record: bool = True,
        processes: bool = False,
    ) -> None:
        """`commands`: file name of a program or script to what it does; those not listed succeed and do nothing.
        `record` keeps every call in `calls`; switch it off where there are very many. `processes` lets `open` start programs,
        on this machine and with all its rights."""
        self.processes = processes
        if processes:
            capabilities |= {LIVE_STDIO}
        self.commands: dict[str, Reaction] = {"test.sh": reward(1.0), **(commands or {})}
        self.faults: dict[str, Fault] = dict(faults or {})
        self.capabilities = capabilities
        self.calls: list[tuple[str, str, Any]] = []
        """(step, trial's label or task's name, what), in the order in which they began."""
        self.live = 0
        """Sandboxes that were started and not stopped."""
        self.peak = 0
        """The most that were alive at once."""
        self.started = 0
        self.cancelled = 0
        """Commands that were cancelled while they ran."""
        self.images: dict[str, int] = {}
        """Image to how often it was prepared; removed ones are not in it."""
        self.closed = 0
        """Backends that were closed."""
        self._record = record

    @contextmanager
    def installed(self, name: str = "fake") -> Iterator[FakeWorld]:
        """Let `name` mean this world's environment, the FakeAgent and the FakeVerifier in this process."""
        with ExitStack() as stack:
            stack.enter_context(override("environments", name, self.backend))
            stack.enter_context(override("agents", name, FakeAgent))
            stack.enter_context(override("verifiers", name, FakeVerifier))
            yield self

    @property
    def backend(self) -> type[FakeBackend]:
        """The backend class whose sandboxes live in this world."""
        return type("FakeBackend", (FakeBackend,), {"world": self, "__module__": __name__})

    async def step(self, step: str, spec: EnvironmentSpec, what: Any = None) -> None:
        """Record a step and let its fault happen."""
        if self._record:
            self.calls.append((step, spec.labels.get("rollout.trial", spec.task_name), what))
        fault = self.faults.get(step)
        if fault is not None:
            await fault(spec)

    def steps(self, step: str) -> list[Any]:
        """What was recorded of one step."""
        return [what for name, _, what in self.calls if name == step]


class FakeBackend:
    """An environment backend in memory. Without a FakeWorld every backend gets one of its own, made from its options."""

    api_version: ClassVar[tuple[int, int]] = API_VERSION
    options_type: ClassVar[type[Struct]] = FakeOptions
    world: FakeWorld | None = None

    def __init__(self, options: FakeOptions, context: BackendContext) -> None:
        self.context = context
        self._exec_sec = options.exec_sec
        self._world = self.world or FakeWorld(commands={"test.sh": reward(options.reward)}, record=False)
        self._specs: dict[str, EnvironmentSpec] = {}
        self._files: dict[str, dict[str, bytes]] = {}
        self.capabilities = self._world.capabilities

    def check(self, spec: EnvironmentSpec) -> None:
        pass

    async def prepare(self, spec: EnvironmentSpec, *, force: bool = False, sink: OutputSink | None = None) -> str:
        await self._world.step("prepare", spec, force)
        image = f"fake:{spec.digest[:12]}"
        self._specs[image] = spec
        self._world.images[image] = self._world.images.get(image, 0) + 1
        return image

    async def start(self, spec: EnvironmentSpec, image: str) -> FakeEnvironment:
        await self._world.step("start", spec, image)
        environment = FakeEnvironment(self._world, spec, self._exec_sec)
        environment.files.update(self._files.get(image, {}))
        return environment

    async def snapshot(
        self,
        spec: EnvironmentSpec,
        image: str,
        key: str,
        change: Callable[[FakeEnvironment], Awaitable[None]],
        *,
        force: bool = False,
    ) -> str:
        await self._world.step("snapshot", spec, key)
        environment = await self.start(spec, image)
        try:
            await change(environment)
        finally:
            await environment.stop()
        made = f"{image}+{key[:12]}"
        self._specs[made], self._files[made] = spec, environment.files
        self._world.images[made] = self._world.images.get(made, 0) + 1
        return made

    async def remove(self, image: str) -> None:
        await self._world.step("remove", self._specs[image], image)
        self._world.images.pop(image, None)

    async def reap(self, job_id: str) -> Sequence[str]:
        return ()

    async def aclose(self) -> None:
        self._world.closed += 1


class FakeEnvironment:
    """A sandbox that is a dictionary of files. Links and modes are not kept, and no command is really run."""

    def __init__(self, world: FakeWorld, spec: EnvironmentSpec, exec_sec: float = 0.0) -> None:
        self.spec = spec
        self.files: dict[str, bytes] = {}
        """Absolute path to content."""
        self.folders = {"/logs/agent", "/logs/verifier", "/logs/artifacts"}
        self.lost = False
        """Set it, and everything raises EnvironmentLostError from then on."""
        self.running = 0
        """Commands under way."""
        self.commands = world.commands
        """What programs do; the world's, so a change is for all its sandboxes."""
        self.world = world
        self._exec_sec = exec_sec
        self._stopped = False
        self._gone = False
        world.started += 1
        world.live += 1
        world.peak = max(world.peak, world.live)

    async def exec(self, command: Command, sink: OutputSink | None = None) -> ExecResult:
        self.running += 1
        try:
            await self._step("exec", command)
            if self._exec_sec:
                await asyncio.sleep(self._exec_sec)
            result = self._react(command)
            if inspect.isawaitable(result):
                result = await result
        except asyncio.CancelledError:
            self.world.cancelled += 1
            raise
        finally:
            self.running -= 1
        if not isinstance(result, ExecResult):
            return ExecResult(exit_code=result or 0)
        if sink is not None:
            for stream, data in (("stdout", result.stdout), ("stderr", result.stderr)):
                if data:
                    sink("stdout" if stream == "stdout" else "stderr", data)
        return result

    async def open(self, command: Command, sink: OutputSink | None = None) -> Process:
        """Start it on this machine, where the world allows that."""
        if not self.world.processes:
            raise RolloutError("a fake environment has no live processes, unless its FakeWorld says `processes=True`")
        await self._step("exec", command)
        return await start_on_host(command, sink, os.environ)

    async def upload(self, source: Path, target: str, *, owner: str | None = None) -> None:
        await self._step("upload", target)
        try:
            if os.path.isdir(source):
                self.folders.add(target)
                self._take_folder(os.fspath(source), target)
            else:
                self.files[target] = _read(source)
        except OSError as error:
            raise TransferError(f"{error.filename}: {error.strerror}") from error

    async def download(self, source: str, target: Path, limits: TransferLimits = DEFAULT_TRANSFER_LIMITS) -> TransferReport:
        await self._step("download", source)
        if source in self.files:
            os.makedirs(target.parent, exist_ok=True)
            return _write([(os.fspath(target), self.files[source])], limits)
        prefix = source.rstrip("/") + "/"
        inside = {path: data for path, data in self.files.items() if _wanted(path, prefix, limits)}
        folders = {path for path in self.folders if _wanted(path, prefix, limits)}
        if not inside and not folders and source not in self.folders:
            raise FileNotFoundError(source)
        wanted = {path.rpartition("/")[0] for path in inside} | folders | {source}
        for folder in sorted(wanted):
            os.makedirs(f"{target}/{folder[len(prefix) :]}", exist_ok=True)
        return _write([(f"{target}/{path[len(prefix) :]}", data) for path, data in inside.items()], limits)

    async def stop(self) -> None:
        if self._gone:
            return
        self._stopped = True
        await self.world.step("stop", self.spec)
        self._gone = True
        self.world.live -= 1

    async def _step(self, step: str, what: Any) -> None:
        self._check()
        await self.world.step(step, self.spec, what)
        self._check()

    def _check(self) -> None:
        if self.lost or self._stopped:
            raise EnvironmentLostError(f"the sandbox of {self.spec.task_name} is gone")

    def _react(self, command: Command) -> Any:
        # The last word first: `bash /tests/test.sh` is test.sh.
        for word in reversed(command.argv):
            reaction = self.commands.get(word.rpartition("/")[2])
            if reaction is not None:
                return reaction(self, command)
        return None

    def _take_folder(self, source: str, target: str) -> None:
        with os.scandir(source) as entries:
            for entry in entries:
                inside = f"{target}/{entry.name}"
                if entry.is_dir():
                    self.folders.add(inside)
                    self._take_folder(entry.path, inside)
                else:
                    self.files[inside] = _read(entry.path)


class FakeAgent:
    """An agent that runs the program `fake-agent` in its environment; FakeWorld.commands says what that does."""

    api_version: ClassVar[tuple[int, int]] = API_VERSION
    options_type: ClassVar[type[Struct]] = NoOptions

    def __init__(self, options: NoOptions, context: AgentContext) -> None:
        self._context = context

    async def install(self) -> None:
        pass

    async def connect(self) -> FakeAgent:
        return self

    async def prompt(self, text: str) -> AgentTurn:
        context = self._context
        command = Command(argv=("fake-agent",), env=context.env, cwd=context.workdir, user=context.user)
        result = await context.environment.exec(command, context.sink)
        return AgentTurn(exit_code=result.exit_code, out_of_memory=result.out_of_memory)

    async def close(self) -> None:
        pass


class FakeVerifierOptions(Struct, frozen=True, kw_only=True):
    rewards: dict[str, float] = field(default_factory=lambda: {"reward": 1.0})
    """The verdict on every trial."""


class FakeVerifier:
    """A verifier that looks at nothing."""

    api_version: ClassVar[tuple[int, int]] = API_VERSION
    options_type: ClassVar[type[Struct]] = FakeVerifierOptions

    def __init__(self, options: FakeVerifierOptions) -> None:
        self._rewards = options.rewards

    async def verify(self, trial: TrialView) -> VerifyResult:
        return VerifyResult(rewards=dict(self._rewards), source="fake")


def _read(path: str | Path) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _wanted(path: str, prefix: str, limits: TransferLimits) -> bool:
    return path.startswith(prefix) and not limits.excludes(path[len(prefix) :])


def _write(files: Sequence[tuple[str, bytes]], limits: TransferLimits) -> TransferReport:
    too_big = tuple((path, "too big") for path, data in files if len(data) > limits.max_file_bytes)
    fitting = [(path, data) for path, data in files if len(data) <= limits.max_file_bytes]
    for path, data in fitting:
        with open(path, "wb") as file:
            file.write(data)
    total = sum(len(data) for _, data in fitting)
    return TransferReport(files=len(fitting), total_bytes=total, skipped=too_big[:100], skipped_count=len(too_big))
