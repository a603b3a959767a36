"""`Runner` and `run_dataset`: agents written in Python on tasks from Python, over the same jobs as job files."""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from rollout.core.config.job import AgentConfig, EnvironmentConfig, JobConfig, VerifierConfig
from rollout.core.config.load import JobFile
from rollout.core.episodes import Episode, FlowConfig, Task, TerminationReason, Trajectory
from rollout.core.errors import AgentTimeoutError
from rollout.core.job.events import Event, TrialFinished
from rollout.core.job.planner import plan_job
from rollout.core.job.scheduler import run_job
from rollout.core.records import TrialResult
from rollout.core.tasks.directory import LoadedDataset
from rollout.core.trial.coercion import eval_output
from rollout.core.trial.live import live
from rollout.core.trial.recorded import EPISODE
from rollout.core.types import VerifyResult

_DEFAULT_CONCURRENCY = 64


class Runner:
    """Runs a flow on one task: environment if one is needed, flow, evaluator, teardown."""

    def __init__(
        self,
        agent_flow: Any,
        sandbox_backend: str | None = None,
        evaluator_override: Any = None,
        *,
        jobs_dir: str | Path | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """`agent_flow` has `arun` or `run(task, config)`, or is such a function; with a parameter `env` it gets the task's
        environment. `evaluator_override` is a function, an object with `evaluate`, or `package.module:name`, instead of what
        the task's data set declares. Records are kept in `jobs_dir` if it is given.
        """
        self._flow = agent_flow
        self._settings = _Settings(
            sandbox_backend=sandbox_backend, evaluator=evaluator_override, jobs_dir=jobs_dir, environ=environ
        )

    async def run(self, task: Task, config: FlowConfig | None = None) -> Episode:
        """Run the task and return the episode with its rewards: on every trajectory that has none yet.

        What went wrong is in `metadata["error"]`, with `termination_reason` error or timeout; rewards are then None where
        there is no verdict.

        Raises:
            UsageError and its kinds: the task cannot run here, or nothing verifies it.
        """
        settings = replace(self._settings, dataset_name=task.id)
        return (await _run([task], self._flow, config or FlowConfig(), settings))[0]


@dataclass(frozen=True)
class EvalItem:
    """What came of one attempt at one task."""

    idx: int
    attempt: int
    reward: float | None
    is_correct: bool
    error: str | None = None
    signals: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EvalResult:
    """What came of all of them. Attempts that errored count as incorrect."""

    dataset_name: str
    model: str | None
    agent: str
    score: float
    """correct / total"""
    total: int
    correct: int
    errors: int
    items: list[EvalItem]
    signal_averages: dict[str, float]
    timestamp: str
    attempts: int
    pass_at: dict[int, float]
    """pass@k for k up to `attempts`, unbiased (Chen et al. 2021)."""


async def run_dataset(
    tasks: Sequence[Task],
    agent_flow: Any,
    base_url: str | None = None,
    model: str | None = None,
    *,
    concurrency: int = _DEFAULT_CONCURRENCY,
    sandbox_backend: str | None = None,
    agent_name: str | None = None,
    dataset_name: str = "dataset",
    on_episode_complete: Callable[[Episode], Awaitable[None] | None] | None = None,
    evaluator: Any = None,
    sampling_params: Mapping[str, Any] | None = None,
    attempts: int = 1,
    jobs_dir: str | Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[EvalResult, list[Episode]]:
    """Run a flow on many tasks, at most `min(concurrency, agent_flow.max_concurrent)` at once.

    With `jobs_dir` the records stay in `<jobs_dir>/<dataset_name>`, and the same call resumes them.

    Raises:
        UsageError and its kinds: a task cannot run here, or nothing verifies it; nothing was started.
        StoreError: results cannot be written.
    """
    limit = getattr(agent_flow, "max_concurrent", None)
    settings = _Settings(
        sandbox_backend=sandbox_backend,
        evaluator=evaluator,
        jobs_dir=jobs_dir,
        environ=environ,
        concurrency=max(1, min(concurrency, limit) if limit else concurrency),
        attempts=attempts,
        dataset_name=dataset_name,
        agent_name=agent_name,
        on_episode=on_episode_complete,
    )
    config = FlowConfig(base_url=base_url, model=model, sampling_params=dict(sampling_params or {}))
    episodes = await _run(tasks, agent_flow, config, settings)
    agent = agent_name or _name_of(agent_flow)
    return _summary(episodes, dataset_name, model, agent, attempts), episodes


@dataclass(frozen=True)
class _Settings:
    sandbox_backend: str | None
    evaluator: Any
    jobs_dir: str | Path | None
    environ: Mapping[str, str]
    concurrency: int = 1
    attempts: int = 1
    dataset_name: str = "tasks"
    agent_name: str | None = None
    on_episode: Callable[[Episode], Awaitable[None] | None] | None = None


async def _run(tasks: Sequence[Task], flow: Any, config: FlowConfig, settings: _Settings) -> list[Episode]:
    """One job over the tasks; the episodes in the order of the tasks, attempts together."""
    with ExitStack() as stack:
        jobs_dir = settings.jobs_dir or stack.enter_context(tempfile.TemporaryDirectory(prefix="rollout-"))
        job = _job(stack, flow, config, settings, Path(jobs_dir))
        given = LoadedDataset(Path(jobs_dir), settings.dataset_name, given=tasks)
        plan = await plan_job(job, environ=settings.environ, given=[given])
        directory = plan.directory
        calls: list[asyncio.Future[None]] = []

        def on_event(event: Event) -> None:
            if isinstance(event, TrialFinished) and settings.on_episode is not None:
                called = settings.on_episode(_episode(directory, event.result))
                if inspect.isawaitable(called):
                    calls.append(asyncio.ensure_future(called))

        order = {
            (task.spec.name, attempt): position
            for position, (task, attempt) in enumerate(
                (task, attempt)
                for dataset in plan.datasets
                for task in dataset.tasks
                for attempt in range(1, settings.attempts + 1)
            )
        }
        await run_job(plan, on_event)
        await asyncio.gather(*calls)
        results = {}
        for line in (directory / "trials.jsonl").read_bytes().splitlines():
            result = msgspec.json.decode(line, type=TrialResult)
            position = order.get((result.task_name, result.attempt))
            if position is not None:
                results[position] = result
        return [_episode(directory, results[position]) for position in sorted(results)]


def _job(stack: ExitStack, flow: Any, config: FlowConfig, settings: _Settings, jobs_dir: Path) -> JobFile:
    options: dict[str, Any] = {"import_path": stack.enter_context(live(flow))}
    options |= {"base_url": config.base_url, "model": config.model}
    options |= {"sampling_params": config.sampling_params, "metadata": config.metadata}
    options["environment"] = bool(getattr(flow, "needs_env", False)) or _takes_env(flow)
    agent = AgentConfig(name=settings.agent_name or _name_of(flow), type="flow", options=options)
    verifier = VerifierConfig()
    if isinstance(settings.evaluator, str):
        known = {"import_path": settings.evaluator} if ":" in settings.evaluator else None
        verifier = VerifierConfig(type="python", options=known) if known else VerifierConfig(rewards=[settings.evaluator])
    elif settings.evaluator is not None:
        verifier = VerifierConfig(type="live", options={"name": stack.enter_context(live(settings.evaluator))})
    environment = EnvironmentConfig(type=settings.sandbox_backend) if settings.sandbox_backend else EnvironmentConfig()
    job = JobConfig(
        name=settings.dataset_name,
        jobs_dir=str(jobs_dir),
        n_attempts=settings.attempts,
        n_concurrent_trials=settings.concurrency,
        agents=[agent],
        datasets=[],
        environment=environment,
        verifier=verifier,
    )
    origins = {"environment.type": "sandbox_backend"} if settings.sandbox_backend else {}
    return JobFile(job, None, Path.cwd(), origins, ())


def _takes_env(flow: Any) -> bool:
    function = getattr(flow, "arun", None) or getattr(flow, "run", None) or flow
    return "env" in inspect.signature(function).parameters


def _name_of(flow: Any) -> str:
    named = flow if inspect.isroutine(flow) or inspect.isclass(flow) else type(flow)
    return str(getattr(flow, "name", None) or named.__name__).strip("<>")


def _episode(directory: Path, result: TrialResult) -> Episode:
    """A trial's episode with what came of it."""
    try:
        recorded = msgspec.json.decode((directory / result.trial_id / EPISODE).read_bytes())
        episode = Episode.from_dict(recorded)
    except FileNotFoundError:
        made = Trajectory(uid=result.trial_id, name=result.agent_name, task=result.task_name)
        episode = Episode(task=result.task_name, trajectories=[made])
    episode.id = f"{result.task_name}:{result.attempt - 1}"
    episode.task_id, episode.attempt = result.task_name, result.attempt
    if result.rewards:
        verdict = eval_output(VerifyResult(rewards=result.rewards))
        episode.is_correct = verdict.is_correct
        signals = {signal.name: signal.value for signal in verdict.signals}
        for trajectory in episode.trajectories:
            if trajectory.reward is None:
                trajectory.reward = verdict.reward
            if not trajectory.signals:
                trajectory.signals = dict(signals)
    if result.error is not None:
        timed_out = result.error.type == AgentTimeoutError.code
        episode.termination_reason = TerminationReason.TIMEOUT if timed_out else TerminationReason.ERROR
        episode.metadata["error"] = {"type": result.error.type, "message": result.error.message, "phase": result.error.phase}
    took = result.durations
    seconds = {
        "time/setup_s": took.environment_setup_sec,
        "time/agentflow_s": took.agent_execution_sec,
        "time/evaluator_s": took.verifier_sec,
        "time/rollout_s": took.total_sec,
    }
    episode.metrics |= {name: value for name, value in seconds.items() if value is not None}
    return episode


def _summary(episodes: Sequence[Episode], dataset: str, model: str | None, agent: str, attempts: int) -> EvalResult:
    numbers: dict[str, int] = {}
    items = []
    for episode in episodes:
        trajectory = episode.trajectories[-1] if episode.trajectories else Trajectory()
        error = episode.metadata.get("error")
        items.append(
            EvalItem(
                idx=numbers.setdefault(episode.task_id, len(numbers)),
                attempt=episode.attempt,
                reward=trajectory.reward,
                is_correct=episode.is_correct,
                error=error["message"] if error else None,
                signals=dict(trajectory.signals),
            )
        )
    signals = {name for item in items for name in item.signals}
    averages = {}
    for name in sorted(signals):
        values = [item.signals[name] for item in items if name in item.signals]
        averages[name] = sum(values) / len(values)
    correct = sum(item.is_correct for item in items)
    return EvalResult(
        dataset_name=dataset,
        model=model,
        agent=agent,
        score=correct / len(items) if items else 0.0,
        total=len(items),
        correct=correct,
        errors=sum(item.error is not None for item in items),
        items=items,
        signal_averages=averages,
        timestamp=datetime.now(UTC).isoformat(),
        attempts=attempts,
        pass_at={k: _pass_at(items, k) for k in range(1, attempts + 1)} if items else {},
    )


def _pass_at(items: Sequence[EvalItem], k: int) -> float:
    """The chance that one of k attempts is correct, averaged over tasks; a task with fewer attempts passes if any did."""
    counts: dict[int, list[int]] = {}
    for item in items:
        count = counts.setdefault(item.idx, [0, 0])
        count[0] += 1
        count[1] += item.is_correct
    chances = [float(right > 0) if n < k else 1.0 - math.comb(n - right, k) / math.comb(n, k) for n, right in counts.values()]
    return sum(chances) / len(chances)
