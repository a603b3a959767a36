"""Running a planned job: feeding the executor, retrying, storing every result as it comes, ending well whatever happens."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from rollout.core.aio import run_shielded
from rollout.core.errors import HostLostError, RolloutError, StoreError, TeardownError, boundary, describe
from rollout.core.files import make_folder, write_atomic
from rollout.core.job.events import (
    Event,
    EventSink,
    JobFinished,
    JobStarted,
    MetricsUpdated,
    TrialFinished,
    TrialRetried,
    TrialStarted,
    WarningRaised,
)
from rollout.core.job.feed import TrialFeed
from rollout.core.job.plan import Plan
from rollout.core.job.results import Counted, JobResult, Tally
from rollout.core.job.spending import Spending
from rollout.core.job.store import CONFIG, LOCK, RESULT, SCRATCH_OWNER, JobStore, read_json
from rollout.core.records import SCHEMA_VERSION, TrialResult, TrialSpec
from rollout.core.trial.images import Images
from rollout.core.trial.installs import Installs
from rollout.core.trial.python_processes import VERIFIERS, PythonProcesses
from rollout.core.trial.redact import Redactor, secrets_of, without_secret_options
from rollout.core.trial.services import Services
from rollout.core.trial.stepped import rollout_of
from rollout.core.types import Struct, primary_reward

logger = logging.getLogger(__name__)

_METRICS_EVERY_SEC = 0.5
_MOVES = 5
"""How often one trial is tried again because the machine it was on was lost, besides `retry.max_retries`."""

EXIT_OK = 0
EXIT_TRIALS_ERRORED = 1
EXIT_BUDGET = 4
EXIT_INTERRUPTED = 130


class JobOutcome(Struct, frozen=True, kw_only=True):
    """How a job ended."""

    exit_code: int
    """0 all trials finished, whatever the reward; 1 some errored; 4 not all were run, for want of budget; 130 interrupted."""
    result: JobResult


async def run_job(plan: Plan, on_event: EventSink = lambda event: None) -> JobOutcome:
    """Run what is left of a planned job, and let go of its folder.

    Cancelling the call ends the job well: no new trial starts, those under way are torn down, the result is written and
    `JobFinished` with exit code 130 is sent, then the cancellation goes on.

    Raises:
        StoreError: results cannot be written. What was finished before is kept.
    """
    assert plan.store is not None, "a dry run cannot be run"
    try:
        return await _Run(plan, plan.store, on_event).run()
    finally:
        for line in await run_shielded(plan.aclose()):
            logger.warning("%s: %s", plan.name, line)


class _Run:
    """One run of a job."""

    def __init__(self, plan: Plan, store: JobStore, on_event: EventSink) -> None:
        self._plan = plan
        self._store = store
        self._on_event = on_event
        self._feed = TrialFeed(plan.trials())
        totals: Counter[tuple[str, str]] = Counter()
        for agent in plan.agents:
            for dataset in plan.datasets:
                totals[agent.spec.name, dataset.name] += len(dataset.tasks) * plan.config.n_attempts
        self._tally = Tally(plan.metrics, totals)
        self._primary: list[float] = [0.0, 0.0]
        self._spending = Spending(plan.config.budget, store)
        self._stopped: str | None = None
        self._moves: Counter[str] = Counter()
        self._ahead: asyncio.Task[None] | None = None
        self._images = _earlier_images(plan)
        self._image_contents = _earlier_contents(plan)
        self._warnings_sent = 0
        self._metrics_sent = 0.0
        self._began = time.monotonic()
        self._started_at = datetime.now(UTC)
        self._releasing: set[asyncio.Task[None]] = set()
        self._failure: StoreError | None = None
        self._services = self._make_services()

    async def run(self) -> JobOutcome:
        cancelled: asyncio.CancelledError | None = None
        await self._begin()
        seconds = self._plan.config.budget.wall_sec
        clock = None
        if seconds is not None:
            left = max(seconds - (time.monotonic() - self._began), 0.0)
            clock = asyncio.get_running_loop().call_later(left, self._stop, f"its {seconds:g} s are over")
        try:
            await self._plan.executor.run(self._feed, self._run_trial, self._done)
        except asyncio.CancelledError as error:
            cancelled = error
        except StoreError as error:
            self._failure = error
        finally:
            if clock is not None:
                clock.cancel()
        self._feed.stop()
        try:
            await run_shielded(self._stop_ahead())
            await run_shielded(self._services.aclose())
            await run_shielded(self._wait_for_background())
        except asyncio.CancelledError as error:
            cancelled = error
        if self._failure is not None:
            raise self._failure
        outcome = await self._finish(cancelled is not None)
        if cancelled is not None:
            raise cancelled
        return outcome

    async def _stop_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.wait([self._ahead])
            if not self._ahead.cancelled() and (error := self._ahead.exception()) is not None:
                self._warn(f"images were not made ahead of their trials: {describe(error)}")

    def _make_services(self) -> Services:
        plan = self._plan
        tasks = [task for dataset in plan.datasets for task in dataset.kinds]
        blocks = [agent.spec.env for agent in plan.agents]
        blocks += [block for task in tasks for block in (task.verifier.env, task.spec.env) if block]
        blocks += [block for agent in plan.agents for server in agent.spec.mcp_servers for block in server.blocks]
        blocks += [block for task in tasks for server in task.spec.mcp_servers for block in server.blocks]
        blocks += [step.env for task in tasks for step in task.spec.steps]
        blocks += [environment.env for task in tasks for environment in task.environments if environment.env]
        redactor = Redactor(secrets_of(blocks, plan.environ))
        environment = plan.config.environment
        images = Images(
            plan.backend,
            force=environment.force_build,
            delete=environment.delete,
            logs=plan.directory / "images",
            redactor=redactor,
            users=plan.pending_by_image(),
            at_once=environment.n_concurrent_builds,
        )
        installs = Installs(
            plan.backend, images, force=environment.force_build, logs=plan.directory / "images", redactor=redactor
        )
        return Services(
            backend=plan.backend,
            images=images,
            installs=installs,
            hooks=plan.hooks,
            environ=plan.environ,
            redactor=redactor,
            python=PythonProcesses(plan.backend_context.work_dir / VERIFIERS),
            plugins=plan.plugins,
        )

    async def _reap(self) -> Sequence[str]:
        """What an earlier run left is removed; a machine that does not answer now is cleaned by the next run, or by `clean`."""
        plan = self._plan
        try:
            return await plan.backend.reap(plan.job_id)
        except TeardownError as error:
            if (plan.directory / CONFIG).exists():  # there was an earlier run
                self._warn(str(error))
            return error.removed

    async def _begin(self) -> None:
        plan, store = self._plan, self._store
        with boundary(RolloutError, "removing what an earlier run left behind"):
            for line in await self._reap():
                self._warn(f"an earlier run left {line}; removed")
        # So that `rollout clean` finds the job of a scratch folder whose process was killed.
        make_folder(plan.backend_context.work_dir)
        write_atomic(plan.backend_context.work_dir / SCRATCH_OWNER, f"{plan.directory}\n".encode())
        store.write(CONFIG, _config_record(plan))
        self._write_lock()
        for trial in plan.finished:
            self._count(trial)
        self._send(
            JobStarted(
                time=datetime.now(UTC),
                job_id=plan.job_id,
                job_name=plan.name,
                directory=str(plan.directory),
                total_trials=plan.total,
                kept_trials=plan.kept,
                rerun=dict(plan.rerun),
                concurrency=plan.config.n_concurrent_trials,
                agents=[agent.spec.name for agent in plan.agents],
                datasets=[dataset.name for dataset in plan.datasets],
            )
        )
        self._send_warnings()
        if plan.total > plan.kept:
            self._check_budget()
        if plan.hooks.implemented("rollout_job_planned"):
            await plan.hooks.notify("rollout_job_planned", job=plan, trials=plan.total - plan.kept)
        if plan.hooks.implemented("rollout_job_started"):
            await plan.hooks.notify("rollout_job_started", job=plan)

    async def _run_trial(self, spec: TrialSpec) -> TrialResult:
        """What the executor calls for each trial that runs in this process."""
        if self._ahead is None:  # not earlier: where trials run elsewhere, their images are made there
            self._ahead = asyncio.ensure_future(self._services.images.prepare_ahead(self._plan.images()))
        self._send(TrialStarted(time=datetime.now(UTC), trial_id=spec.trial_id, try_number=spec.try_number))
        rollout = rollout_of(spec, self._services)
        try:
            return await rollout.run()
        except asyncio.CancelledError:
            # Interrupted in its teardown: the executor will not hear of it any more, but what was finished is kept.
            if rollout.finished is not None:
                self._done(spec, rollout.finished)
            raise

    def _done(self, spec: TrialSpec, result: TrialResult) -> None:
        """What the executor calls with each result: store it, or try again."""
        error = result.error
        self._spending.add(result, spec.try_number)
        self._check_budget()
        again = error is not None and result.status == "errored" and self._stopped is None and self._may_retry(spec, result)
        if error is not None and again:
            wait = self._plan.config.retry.wait_sec(spec.try_number)
            self._send(
                TrialRetried(
                    time=datetime.now(UTC), trial_id=spec.trial_id, try_number=spec.try_number, error=error, wait_sec=wait
                )
            )
            self._feed.retry(msgspec.structs.replace(spec, try_number=spec.try_number + 1), wait)
            return
        self._store.add_trial(result)
        self._count(result)
        self._send(TrialFinished(time=datetime.now(UTC), trial_id=spec.trial_id, result=result))
        if self._plan.hooks.implemented("rollout_trial_finished"):
            self._in_background(self._plan.hooks.notify("rollout_trial_finished", trial=spec, result=result))
        images = self._services.images
        for environment in spec.environments:
            if (unused := images.release(environment.digest)) is not None:
                self._in_background(images.remove(unused))
        self._feed.finished()
        self._send_warnings()
        if time.monotonic() - self._metrics_sent >= _METRICS_EVERY_SEC:
            self._send_metrics()

    def _check_budget(self) -> None:
        if (why := self._spending.exceeded()) is not None:
            self._stop(why)

    def _stop(self, why: str) -> None:
        """The budget is used up: nothing more starts, and what is under way ends by itself."""
        if self._stopped is None:
            self._stopped = f"the job's budget is used up: {why}"
            self._feed.stop()
            self._warn(f"{self._stopped}; no more trials are started")

    def _may_retry(self, spec: TrialSpec, result: TrialResult) -> bool:
        retry, error = self._plan.config.retry, result.error
        assert error is not None
        if error.type in retry.exclude:
            return False
        moves = self._moves[spec.trial_id]
        if error.type == HostLostError.code and moves < _MOVES:
            self._moves[spec.trial_id] += 1
            return True
        wanted = error.retryable or error.type in retry.include
        return wanted and spec.try_number - moves <= retry.max_retries

    def _in_background(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._releasing.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._releasing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._warn(str(error))

    async def _wait_for_background(self) -> None:
        if self._releasing:
            await asyncio.wait(set(self._releasing))

    async def _finish(self, cancelled: bool) -> JobOutcome:
        plan, tally = self._plan, self._tally
        scored, unscored, errored = (tally.count(status) for status in ("scored", "unscored", "errored"))
        not_run = plan.total - scored - unscored - errored
        stopped = self._stopped if not_run else None
        exit_code = EXIT_TRIALS_ERRORED if errored or not_run else EXIT_OK
        exit_code = EXIT_INTERRUPTED if cancelled else EXIT_BUDGET if stopped is not None else exit_code
        ended_at = datetime.now(UTC)
        duration = round(time.monotonic() - self._began, 6)
        plan.warnings += plan.hooks.failure_lines()
        self._send_warnings()
        total, count = self._primary
        result = JobResult(
            job_id=plan.job_id,
            job_name=plan.name,
            cancelled=cancelled,
            exit_code=exit_code,
            total_trials=plan.total,
            completed_trials=scored + unscored,
            failed_trials=errored,
            skipped_trials=not_run,
            mean_reward=total / count if count else None,
            mean_reward_errors_as_zero=total / (count + errored) if count + errored else None,
            total_cost=tally.cost,
            spent=self._spending.total,
            stopped=stopped,
            total_duration_sec=duration,
            started_at=self._started_at,
            ended_at=ended_at,
            groups=tally.groups(),
            metrics=tally.reports(),
            warnings=list(plan.warnings),
        )
        self._write_lock()
        self._store.write(RESULT, result)
        if plan.hooks.implemented("rollout_job_finished"):
            await plan.hooks.notify("rollout_job_finished", job=plan, result=result)
        self._send_metrics()
        self._send(
            JobFinished(
                time=ended_at,
                job_id=plan.job_id,
                directory=str(plan.directory),
                exit_code=exit_code,
                cancelled=cancelled,
                scored=scored,
                unscored=unscored,
                errored=errored,
                not_run=not_run,
                duration_sec=duration,
                stopped=stopped,
            )
        )
        return JobOutcome(exit_code=exit_code, result=result)

    def _count(self, trial: Counted) -> None:
        self._tally.add(trial)
        reward = primary_reward(trial.rewards)
        if reward is not None:
            self._primary[0] += reward
            self._primary[1] += 1

    def _write_lock(self) -> None:
        plan = self._plan
        images = {**self._images, **self._services.images.prepared}
        contents = {**self._image_contents, **plan.image_contents}
        self._store.write(
            LOCK,
            {
                "schema_version": SCHEMA_VERSION,
                "job_id": plan.job_id,
                "plugins": plan.plugins,
                "environment": plan.config.environment.type,
                "images": images,
                "image_contents": {image: contents[image] for image in sorted(set(images.values())) if image in contents},
                "tasks": [
                    {
                        "dataset": dataset.name,
                        "name": task.spec.name,
                        **({} if dataset.shared is None else {"rows": len(dataset.tasks)}),
                        "digest": task.spec.digest,
                        "environment_digest": task.environment.digest,
                        "git_commit_id": task.spec.git_commit_id,
                        "path": task.spec.path,
                    }
                    for dataset in plan.datasets
                    for task in dataset.kinds
                ],
            },
        )

    def _warn(self, message: str) -> None:
        self._plan.warnings.append(message)
        self._send_warnings()

    def _send_warnings(self) -> None:
        """The plan's list grows while trials run, because backends warn too."""
        for message in self._plan.warnings[self._warnings_sent :]:
            self._warnings_sent += 1
            self._send(WarningRaised(time=datetime.now(UTC), message=message))

    def _send_metrics(self) -> None:
        self._metrics_sent = time.monotonic()
        self._send(MetricsUpdated(time=datetime.now(UTC), metrics=self._tally.reports()))

    def _send(self, event: Event) -> None:
        if not isinstance(event, MetricsUpdated):
            self._store.add_event(event)
        self._on_event(event)


def _earlier_images(plan: Plan) -> dict[str, str]:
    """The images that trials of an earlier run were made on, as far as the job still has their tasks."""
    images = read_json(plan.directory, LOCK).get("images")
    wanted = {environment.digest for dataset in plan.datasets for task in dataset.kinds for environment in task.environments}
    return {digest: image for digest, image in images.items() if digest in wanted} if isinstance(images, dict) else {}


def _earlier_contents(plan: Plan) -> dict[str, str]:
    contents = read_json(plan.directory, LOCK).get("image_contents")
    return dict(contents) if isinstance(contents, dict) else {}


def _config_record(plan: Plan) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "job_id": plan.job_id,
        "job_name": plan.name,
        "base_dir": str(plan.base_dir),
        "config": without_secret_options(msgspec.to_builtins(plan.config)),
    }
