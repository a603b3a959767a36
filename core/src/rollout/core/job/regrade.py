"""Verifying the trials of an earlier job again: with today's tests, or with another verifier, from what was kept of them.

Each new verdict is a further line of `trials.jsonl`, which from then on counts; the verdict before is in it. A trial that was
verified again by the same verifier and tests is left alone, so that an interrupted regrade goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import msgspec

from rollout.core.aio import run_shielded
from rollout.core.config.interpolate import expand, unset_names
from rollout.core.config.job import JobConfig, VerifierConfig
from rollout.core.errors import (
    ConfigError,
    NotKeptError,
    RolloutError,
    SandboxError,
    StoreError,
    UsageError,
    VerifierError,
    VerifierTimeoutError,
    boundary,
)
from rollout.core.files import write_atomic
from rollout.core.job.report import load_report
from rollout.core.job.results import JobResult
from rollout.core.job.single import services_for
from rollout.core.job.store import CONFIG, RESULT, TRIALS, JobStore, StoredTrial, read_json, read_trials
from rollout.core.job.task_planner import fingerprint_of
from rollout.core.plugins import decode_options, find
from rollout.core.protocols import Verifier
from rollout.core.records import MANIFEST, EarlierVerdict, TrialResult, TrialSpec, VerifierSpec, to_json
from rollout.core.tasks.cache import cache_dir
from rollout.core.tasks.task import load_task
from rollout.core.tasks.tree import tree_digest
from rollout.core.trial.artifacts import read_manifest
from rollout.core.trial.deadlines import deadline, foreign
from rollout.core.trial.output import PhaseOutput
from rollout.core.trial.paths import environment_name, short_hash
from rollout.core.trial.python_processes import PythonProcesses
from rollout.core.trial.recorded import read_spec, recorded_view
from rollout.core.trial.redact import Redactor, secrets_of
from rollout.core.trial.reverify import Reverification
from rollout.core.trial.rewards import check_rewards
from rollout.core.trial.services import Services
from rollout.core.trial.verdict import write_verdict
from rollout.core.types import Struct, VerifyResult, primary_reward

REGRADES = "regrades"

What = Literal["regraded", "unchanged", "impossible", "failed"]
"""regraded: there is a new verdict. unchanged: this verifier gave the last one already. impossible: what the verifier looks at
was not kept, or the agent never came to its end. failed: the verifier failed; the old verdict stands."""


class RegradeOptions(Struct, frozen=True, kw_only=True):
    verifier: VerifierConfig | None = None
    """Instead of the trials' own."""
    agents: tuple[str, ...] = ()
    """Only trials of agents that match one of these globs."""
    tasks: tuple[str, ...] = ()
    """Only trials of tasks that match one of these globs."""
    again: bool = False
    """Verify also what this verifier has verified before."""
    concurrency: int = 4


class Regraded(Struct, frozen=True, kw_only=True):
    """What came of one trial."""

    trial_id: str
    what: What
    reason: str = ""
    before: float | None = None
    """The reward before."""
    after: float | None = None


async def regrade(
    directory: Path, options: RegradeOptions, environ: Mapping[str, str], report: Callable[[Regraded], None]
) -> list[Regraded]:
    """Verify the trials of a job's folder again; `report` hears of each as it is done.

    Raises:
        UsageError and its kinds: no job's folder, a job that runs, a verifier that is not there. Nothing was changed.
        StoreError: results cannot be written.
    """
    config = _job_config(directory)
    store = JobStore(directory)
    store.open()
    try:
        run = _Regrade(directory, options, environ, store, _job_verifier(config), str(config["job_id"]))
        try:
            return await run.run(report)
        finally:
            await run_shielded(run.aclose())
    finally:
        store.close()


class _Regrade:
    """One regrade of one job."""

    def __init__(
        self,
        directory: Path,
        options: RegradeOptions,
        environ: Mapping[str, str],
        store: JobStore,
        job_verifier: VerifierConfig | None,
        job_id: str,
    ) -> None:
        self._directory = directory
        self._options = options
        self._environ = environ
        self._store = store
        self._job_verifier = job_verifier
        scratch = environment_name(job_id, unique=short_hash("regrade its records"))
        self._python = PythonProcesses(cache_dir(environ) / "work" / scratch, environ=environ)
        self._digests: dict[Path, str] = {}
        self._resources = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._services: Services | None = None
        if options.verifier is not None:
            chosen = options.verifier.chosen()
            if chosen is None:
                raise ConfigError("the verifier says neither `type` nor `rewards` nor `rubric`")
            self._check(VerifierSpec(plugin=chosen[0], options=chosen[1], env=options.verifier.env))

    async def run(self, report: Callable[[Regraded], None]) -> list[Regraded]:
        trials = self._trials()
        done: list[Regraded] = []

        async def work() -> None:
            for trial in trials:
                outcome = await self._trial(trial)
                done.append(outcome)
                report(outcome)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._options.concurrency):
                    group.create_task(work())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        finally:
            if any(outcome.what == "regraded" for outcome in done):
                self._write_result()
        return done

    async def aclose(self) -> None:
        await self._resources.aclose()
        await self._python.aclose()

    def _trials(self) -> Iterator[StoredTrial]:
        def wanted(name: str, globs: tuple[str, ...]) -> bool:
            return not globs or any(fnmatchcase(name, glob) for glob in globs)

        trials = [*read_trials(self._directory, StoredTrial)]
        chosen = [t for t in trials if wanted(t.agent_name, self._options.agents) and wanted(t.task_name, self._options.tasks)]
        if not chosen:
            raise UsageError(f"{self._directory}: no finished trial {'matches' if trials else 'is there'}")
        return iter(chosen)

    async def _trial(self, trial: StoredTrial) -> Regraded:
        before = primary_reward(trial.rewards)
        try:
            return await self._again(trial, before)
        except NotKeptError as error:
            return Regraded(trial_id=trial.trial_id, what="impossible", reason=str(error), before=before)
        except (StoreError, UsageError):
            raise
        except RolloutError as error:
            return Regraded(trial_id=trial.trial_id, what="failed", reason=str(error), before=before)

    async def _again(self, trial: StoredTrial, before: float | None) -> Regraded:
        folder = self._folder(trial)
        result, spec = _read_result(folder), read_spec(folder)
        for name, found in ((RESULT, result), (CONFIG, spec)):
            if found is None:
                state = "cannot be read" if (folder / name).exists() else "is missing"
                raise NotKeptError(f"{folder / name} {state}, which the trial recorded")
        if result is None or spec is None or result.trial_id != trial.trial_id:
            raise NotKeptError(f"{folder} holds the record of another trial")
        if result.timestamps.agent_execution_ended_at is None:
            raise NotKeptError("the agent did not come to its end")
        verifier = self._verifier(spec)
        plugin, decoded = self._check(verifier)
        key = fingerprint_of((verifier, self._tests(spec)))
        if result.verifier == key and result.status == "scored" and not self._options.again:
            return Regraded(trial_id=trial.trial_id, what="unchanged", before=before, after=before)
        log_dir = _next_folder(folder / REGRADES)
        now = msgspec.structs.replace(spec, verifier=verifier, directory=str(log_dir))
        redactor = Redactor(secrets_of((verifier.env, spec.agent.env if verifier.agent_env else {}), self._environ))
        began, started_at = time.monotonic(), datetime.now(UTC)
        looks = getattr(plugin.cls(decoded), "needs_environment", True)
        if looks and spec.isolation == "separate":
            _check_artifacts(folder / "artifacts")
            verdict = await self._in_fresh_environment(now, folder, redactor)
        else:
            verdict = await self._from_records(now, folder, log_dir, plugin.cls(decoded), redactor)
        seconds = round(time.monotonic() - began, 6)
        again = _with_verdict(result, verdict, key, started_at, seconds)
        write_verdict(log_dir, verdict, redactor)
        self._store.add_trial(again)  # first: a trial whose own record is older is verified once more, and none is forgotten
        write_atomic(folder / RESULT, to_json(again))
        return Regraded(trial_id=trial.trial_id, what="regraded", before=before, after=again.reward)

    async def _from_records(
        self, spec: TrialSpec, folder: Path, log_dir: Path, verifier: Verifier, redactor: Redactor
    ) -> VerifyResult:
        """What the verifier says of the trial's folder, without an environment."""
        output = PhaseOutput(log_dir, redactor)
        try:
            async with deadline(spec.timeouts.verifier_sec, VerifierTimeoutError, "the verifier"):
                with foreign(VerifierError, "verification", VerifierTimeoutError):
                    env = self._expanded(spec.verifier, spec)
                    verdict = await verifier.verify(recorded_view(folder, spec, self._python, env, output, log_dir))
                    return msgspec.structs.replace(verdict, rewards=check_rewards(verdict.rewards))
        except SandboxError as error:
            raise NotKeptError(str(error)) from error
        finally:
            output.close()

    async def _in_fresh_environment(self, spec: TrialSpec, folder: Path, redactor: Redactor) -> VerifyResult:
        """What the verifier says in an environment of its own, as a separate verifier's: the artifacts are all it gets."""
        async with self._opening:
            if self._services is None:
                self._services = await self._resources.enter_async_context(
                    services_for(spec, self._environ, scratch="regrade", concurrency=self._options.concurrency)
                )
        services = replace(self._services, redactor=redactor, _agents={}, _verifiers={})
        for environment in spec.environments:
            services.backend.check(environment)
        return await Reverification(spec, services).verify_again(folder)

    def _verifier(self, spec: TrialSpec) -> VerifierSpec:
        """What verifies the trial now: as told, else the job's own, else what its task declares today."""
        own = spec.verifier
        if (told := self._options.verifier) is not None:
            plugin, options = told.chosen() or (own.plugin, own.options)
            return msgspec.structs.replace(
                own, plugin=plugin, options=options, env={**own.env, **told.env}, agent_env=told.agent_env, disable=False
            )
        chosen = self._job_verifier.chosen() if self._job_verifier is not None else None
        if chosen is None and spec.task.row is None:
            declared = load_task(Path(spec.task.path), name=spec.task.name).verifier
            return msgspec.structs.replace(own, plugin=declared.plugin, options=declared.options, disable=False)
        return msgspec.structs.replace(own, disable=False)

    def _check(self, verifier: VerifierSpec) -> tuple[Any, Any]:
        """The plugin and its decoded options.

        Raises:
            UsageError and its kinds: it is not there, its options are wrong, or a variable is not set.
        """
        plugin = find("verifiers", verifier.plugin)
        decoded = decode_options(plugin, verifier.options, "verifier")
        with boundary(ConfigError, f"verifier ({plugin.info.name})"):
            plugin.cls(decoded)
        if unset := unset_names(verifier.env.values(), self._environ):
            raise ConfigError(
                f"not set on this machine: {', '.join(unset)} (verifier.env); set them, or write ${{NAME:-default}}"
            )
        return plugin, decoded

    def _expanded(self, verifier: VerifierSpec, spec: TrialSpec) -> dict[str, str]:
        blocks = (spec.agent.env, verifier.env) if verifier.agent_env else (verifier.env,)
        return {name: expand(text, self._environ) for block in blocks for name, text in block.items()}

    def _tests(self, spec: TrialSpec) -> list[str]:
        """Digests of the tests that stand today: the task's and its data set's."""
        folders = {Path(spec.task.path), Path(spec.task.dataset_dir or spec.task.path)}
        tests = sorted(folder / "tests" for folder in folders if (folder / "tests").is_dir())
        for folder in tests:
            if folder not in self._digests:
                self._digests[folder] = tree_digest(folder)
        return [self._digests[folder] for folder in tests]

    def _folder(self, trial: StoredTrial) -> Path:
        parts = Path(trial.trial_id).parts
        if ".." in parts or Path(trial.trial_id).is_absolute():
            raise NotKeptError(f"{trial.trial_id!r} is not a trial's name")
        return self._directory / trial.trial_id

    def _write_result(self) -> None:
        """The job's `result.json` with the figures of the new verdicts."""
        try:
            result = msgspec.json.decode((self._directory / RESULT).read_bytes(), type=JobResult)
        except (OSError, msgspec.DecodeError):
            return  # an interrupted job may have none; the next run of the job writes it
        report = load_report(self._directory)
        rewards = [trial.reward for trial in report.trials if trial.status == "scored" and trial.reward is not None]
        errored = sum(trial.status == "errored" for trial in report.trials)
        done = sum(trial.status in ("scored", "unscored") for trial in report.trials)
        count = len(rewards) + errored
        self._store.write(
            RESULT,
            msgspec.structs.replace(
                result,
                completed_trials=done,
                failed_trials=errored,
                mean_reward=sum(rewards) / len(rewards) if rewards else None,
                mean_reward_errors_as_zero=sum(rewards) / count if count else None,
                groups=report.groups,
                metrics=report.metrics,
            ),
        )


def _with_verdict(result: TrialResult, verdict: VerifyResult, key: str, started_at: datetime, seconds: float) -> TrialResult:
    """The trial's record with its new verdict; the one before joins `earlier_verdicts`."""
    earlier = EarlierVerdict(
        status=result.status,
        reward=result.reward,
        rewards=result.rewards,
        reward_source=result.reward_source,
        error=result.error,
        verifier_exit_code=result.verifier_exit_code,
        verifier=result.verifier or result.fingerprint.get("verifier", ""),
        verified_at=result.timestamps.verifier_ended_at,
    )
    agents_error = result.error if result.error is not None and result.error.phase in ("execute", "disconnect") else None
    changed = msgspec.structs.replace
    return changed(
        result,
        status="scored",
        reward=primary_reward(verdict.rewards),
        rewards=verdict.rewards,
        error=agents_error,
        verifier_exit_code=verdict.exit_code,
        reward_source=verdict.source,
        earlier_verdicts=(*result.earlier_verdicts, earlier),
        verifier=key,
        warnings=(*result.warnings, *verdict.warnings),
        durations=changed(result.durations, verifier_sec=seconds),
        timestamps=changed(result.timestamps, verifier_started_at=started_at, verifier_ended_at=datetime.now(UTC)),
    )


def _job_config(directory: Path) -> dict[str, Any]:
    """Raises UsageError: it is no job's folder, or its configuration was damaged."""
    config, file = read_json(directory, CONFIG), directory / CONFIG
    if read_spec(directory) is not None:
        raise UsageError(f"{directory} is the folder of one trial; name the job's folder, and choose with --task and --agent")
    if "job_id" in config:
        return config
    if file.is_file() and (directory / TRIALS).exists():
        raise UsageError(f"{file} is damaged: it is no job's configuration; its trials cannot be verified again without it")
    raise UsageError(f"{directory} is not a job's folder: it has no job's {CONFIG}")


def _check_artifacts(folder: Path) -> None:
    """Raises NotKeptError: what a fresh environment is to get is not there any more."""
    if not (folder / MANIFEST).is_file():
        raise NotKeptError(f"{folder / MANIFEST} is missing, which says what the verifier got of the agent's work")
    kept = [artifact for artifact in read_manifest(folder) if artifact.status == "kept"]
    gone = [artifact.source for artifact in kept if not os.path.lexists(folder / artifact.destination)]
    if gone:
        raise NotKeptError(f"artifacts of the trial are not in {folder} any more: {', '.join(gone)}")


def _job_verifier(config: dict[str, Any]) -> VerifierConfig | None:
    """The `verifier:` of the job as it was run."""
    job = config.get("config")
    try:
        return msgspec.convert(job, JobConfig).verifier if isinstance(job, dict) else None
    except msgspec.ValidationError:
        return None


def _read_result(folder: Path) -> TrialResult | None:
    try:
        return msgspec.json.decode((folder / "result.json").read_bytes(), type=TrialResult)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _next_folder(parent: Path) -> Path:
    """`1`, `2`, ... below `parent`, the first that is not there."""
    number = 1
    while (parent / str(number)).exists():
        number += 1
    return parent / str(number)
