"""From a job file to a plan: plugins found, options decoded, data sets loaded, everything checked before anything starts."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from rollout.core.aio import run_shielded
from rollout.core.config.interpolate import looks_secret, unset_names
from rollout.core.config.job import AgentConfig, DatasetConfig, JobConfig
from rollout.core.config.load import JobFile
from rollout.core.errors import ConfigError, PluginError, RolloutError, TaskError, UsageError, boundary
from rollout.core.hooks import HookBus
from rollout.core.job.plan import Plan, PlannedAgent, PlannedDataset, PlannedTask, trial_id_of
from rollout.core.job.store import CONFIG, FinishedTrial, JobStore, read_json, read_trials
from rollout.core.plugins import Plugin, decode_options, find, versions
from rollout.core.protocols import (
    DOCKER_IMAGE,
    EXEC_USER,
    GPUS,
    NETWORK_NONE,
    BackendContext,
    EnvironmentBackend,
    RegistryContext,
)
from rollout.core.quantity import parse_bytes, parse_cpus
from rollout.core.records import AgentSpec, TaskSpec, Timeouts, VerifierSpec
from rollout.core.tasks.cache import cache_dir
from rollout.core.tasks.directory import load_dataset
from rollout.core.tasks.task import LoadedTask, load_task
from rollout.core.trial.deadlines import effective_timeout
from rollout.core.trial.paths import FolderNames, environment_name, short_hash
from rollout.core.types import EnvironmentSpec, Network, Resources

_DEFAULT_VERIFIER = "script"
_DEFAULT_RESOURCES = Resources(cpus=1, memory_bytes=2 * 10**9, storage_bytes=10 * 10**9)


@dataclass(frozen=True)
class PlanOptions:
    """What the command line adds to a job file for one run."""

    fresh: bool = False
    """Start over in a new folder instead of resuming."""
    offline: bool = False
    """Fetch nothing: only what is cached."""
    skip_invalid: bool = False
    """Leave out tasks that cannot be read instead of refusing to start."""
    agents: Sequence[str] = ()
    """Only agents whose name matches one of these globs; a plugin's name that is not in the job is added."""
    tasks: Sequence[str] = ()
    """Only tasks whose name matches one of these globs."""
    dry_run: bool = False
    """Plan only: no folder is made and no lock taken."""
    check: Callable[[Plan], None] = lambda plan: None
    """Called with the plan before the job's folder is made; it refuses the job by raising."""


async def plan_job(job: JobFile, options: PlanOptions = PlanOptions(), environ: Mapping[str, str] = os.environ) -> Plan:
    """Plan a job, and open its folder unless it is a dry run.

    Raises:
        UsageError and its kinds: something is wrong with the job, its tasks or this machine, or the job's folder cannot be
            written; nothing was started. All faulty tasks are in one message.
    """
    try:
        return await _Planner(job, options, environ).plan()
    except UsageError:
        raise
    except RolloutError as error:
        raise UsageError(str(error)) from error


class _Planner:
    """The steps of planning, and what they find out on the way."""

    def __init__(self, job: JobFile, options: PlanOptions, environ: Mapping[str, str]) -> None:
        self._options = options
        self._environ = environ
        self._base_dir = job.base_dir
        self._config = _select_agents(job.config, options.agents)
        self._warnings = list(job.warnings)
        self._plugins: list[Plugin] = []
        self._name = self._config.name or (job.path.stem if job.path else "job")
        self._where = str(job.path.name) if job.path else "job"
        self._verifiers: dict[bytes, VerifierSpec] = {}
        # One for the whole job: a branch that moves while it is planned is one commit in it.
        self._registries = RegistryContext(
            base_dir=job.base_dir, cache_dir=cache_dir(environ), offline=options.offline, revisions={}
        )

    async def plan(self) -> Plan:
        config = self._config
        directory = self._directory()
        earlier = read_json(directory, CONFIG)
        job_id = str(earlier.get("job_id") or environment_name(self._name, unique=secrets.token_hex(4), limit=48))

        where, executor, verifier = config.environment, config.executor, config.verifier
        backend_plugin, backend_options = self._plugin("environments", where.type, where.options, "environment")
        executor_plugin, executor_options = self._plugin("executors", executor.type, executor.options, "executor")
        self._verifier = verifier.chosen() or (_DEFAULT_VERIFIER, {})
        verifier_plugin, verifier_options = self._plugin("verifiers", *self._verifier, "verifier")
        with boundary(ConfigError, f"{self._where}: verifier ({verifier_plugin.info.name})"):
            verifier_plugin.cls(verifier_options)  # finds what it is made of
        metrics = [
            (metric.type, *self._plugin("metrics", metric.type, metric.options, f"metrics[{index}]"))
            for index, metric in enumerate(config.metrics)
        ]
        for plugin, metric_options in ((plugin, decoded) for _, plugin, decoded in metrics):
            plugin.cls(metric_options)
        agents = self._agents()
        hooks = HookBus.load(self._environ)
        self._warnings += hooks.problems

        loaded = await self._load_datasets()
        context = self._backend_context(job_id, directory, loaded)
        backend: EnvironmentBackend = backend_plugin.cls(backend_options, context)
        plan = Plan(
            config=config,
            base_dir=self._base_dir,
            job_id=job_id,
            name=self._name,
            directory=directory,
            agents=agents,
            datasets=[],
            backend=backend,
            backend_context=context,
            executor=executor_plugin.cls(executor_options, config.n_concurrent_trials),
            metrics=metrics,
            hooks=hooks,
            environ=self._environ,
            plugins=versions(self._plugins),
            warnings=self._warnings,
        )
        try:
            plan.datasets = self._plan_datasets(loaded, agents, backend)
            self._check_variables(plan.datasets)
            if not plan.total:
                raise UsageError(f"{self._where}: no task is left to run; look at task_names, exclude_task_names and --task")
            self._options.check(plan)
            if not self._options.dry_run:
                plan.store = JobStore(directory)
                plan.store.open()
            _keep_finished(plan)
        except BaseException:
            await run_shielded(plan.aclose())
            raise
        return plan

    def _directory(self) -> Path:
        """The job's folder; with `--fresh` the first of name, name-2, name-3 ... that is not taken."""
        jobs_dir = Path(self._config.jobs_dir).expanduser().absolute()
        names = FolderNames()
        folder = names(self._name)
        directory = jobs_dir / folder
        number = 2
        while self._options.fresh and directory.exists():
            directory = jobs_dir / f"{folder}-{number}"
            number += 1
        return directory

    def _plugin(self, kind: str, name: str, options: Mapping[str, Any], where: str) -> tuple[Plugin, Any]:
        plugin = find(kind, name)
        self._plugins.append(plugin)
        return plugin, decode_options(plugin, options, f"{self._where}: {where}")

    def _agents(self) -> list[PlannedAgent]:
        names = FolderNames()
        return [self._agent(index, agent, names) for index, agent in enumerate(self._config.agents)]

    def _agent(self, index: int, agent: AgentConfig, names: FolderNames) -> PlannedAgent:
        try:
            self._plugin("agents", agent.plugin, agent.plugin_options, f"agents[{index}]")
        except PluginError as error:
            if not agent.type and not agent.inline and "no agent" in str(error):
                raise PluginError(f"{error}; or give `execute:` to define it here") from error
            raise
        for key, value in agent.env.items():
            if looks_secret(key) and value and "$" not in value:
                self._warnings.append(f"agents[{index}].env.{key} holds a secret literally; write ${{{key}}} and set it outside")
        spec = AgentSpec(name=agent.name, plugin=agent.plugin, options=agent.plugin_options, env=agent.env, user=agent.user)
        return PlannedAgent(
            spec=spec,
            folder=names(agent.name),
            override_timeout_sec=agent.override_timeout_sec,
            max_timeout_sec=agent.max_timeout_sec,
            fingerprint=_fingerprint(spec),
        )

    async def _load_datasets(self) -> list[tuple[str, list[LoadedTask]]]:
        """Every dataset's name and tasks. All tasks that cannot be read are reported in one error."""
        loaded: list[tuple[str, list[LoadedTask]]] = []
        faults: list[str] = []
        for index, dataset in enumerate(self._config.datasets):
            name, tasks, invalid = await self._load_dataset(index, dataset)
            faults += invalid
            if any(name == other for other, _ in loaded):
                name = f"{name}-{short_hash(f'{dataset.path}{dataset.registry}{dataset.version}')}"
                self._warnings.append(f"two datasets have one name: datasets[{index}] is called {name}")
            loaded.append((name, tasks))
        if faults and not self._options.skip_invalid:
            raise _task_faults(faults, "cannot be used")
        self._warnings += [f"left out: {fault}" for fault in faults]
        for _, tasks in loaded:
            self._warnings += [f"{task.path}: {warning}" for task in tasks for warning in task.warnings]
        return loaded

    async def _load_dataset(self, index: int, dataset: DatasetConfig) -> tuple[str, list[LoadedTask], list[str]]:
        wanted = self._selector(dataset)
        if dataset.path is not None:
            path = self._base_dir / Path(dataset.path).expanduser()
            found = load_dataset(path)
            name = dataset.name or path.resolve().name
            tasks = [task for task in found.tasks if wanted(task.name)]
            invalid = [str(error) for fault, error in found.invalid if wanted(_relative(fault, path))]
            return name, tasks[: dataset.n_tasks], invalid
        registry = dataset.registry
        assert registry is not None
        assert dataset.name is not None
        plugin, options = self._plugin("registries", registry.plugin, registry.plugin_options, f"datasets[{index}].registry")
        taken: set[str] = set()

        def select(task: str) -> bool:
            if not wanted(task) or (dataset.n_tasks is not None and task not in taken and len(taken) >= dataset.n_tasks):
                return False
            taken.add(task)
            return True

        folders = await plugin.cls(options, self._registries).fetch(dataset.name, dataset.version, select=select)
        tasks, invalid = [], []
        for folder in folders:
            try:
                tasks.append(load_task(folder.path, name=folder.name, git_url=folder.git_url, git_commit_id=folder.git_commit_id))
            except TaskError as error:
                invalid.append(str(error))
        return dataset.name, tasks, invalid

    def _selector(self, dataset: DatasetConfig) -> Callable[[str], bool]:
        def matches(name: str, globs: Sequence[str]) -> bool:
            return any(fnmatchcase(name, glob) for glob in globs)

        def wanted(name: str) -> bool:
            return (
                (not dataset.task_names or matches(name, dataset.task_names))
                and not matches(name, dataset.exclude_task_names)
                and (not self._options.tasks or matches(name, self._options.tasks))
            )

        return wanted

    def _backend_context(
        self, job_id: str, directory: Path, loaded: Sequence[tuple[str, Sequence[LoadedTask]]]
    ) -> BackendContext:
        cache = cache_dir(self._environ)
        task_parents = {task.path.parent for _, tasks in loaded for task in tasks}
        private = {directory.parent, cache, self._base_dir, *task_parents} - {Path("/")}
        return BackendContext(
            job_id=job_id,
            work_dir=cache / "work" / job_id,
            cache_dir=cache / self._config.environment.type,
            concurrency=self._config.n_concurrent_trials,
            private_paths=tuple(sorted(path.absolute() for path in private)),
            base_dir=self._base_dir,
            delete=self._config.environment.delete,
            offline=self._options.offline,
            warn=self._warn_once,
        )

    def _warn_once(self, message: str) -> None:
        if message not in self._warnings:
            self._warnings.append(message)

    def _plan_datasets(
        self, loaded: Sequence[tuple[str, Sequence[LoadedTask]]], agents: Sequence[PlannedAgent], backend: EnvironmentBackend
    ) -> list[PlannedDataset]:
        faults: list[str] = []
        datasets: list[PlannedDataset] = []
        names = FolderNames()
        for name, tasks in loaded:
            task_names = FolderNames()
            planned = []
            for task in tasks:
                try:
                    plan = self._plan_task(name, task, task_names)
                    self._check_task(plan, agents, backend)
                    planned.append(plan)
                except TaskError as error:
                    faults.append(f"{task.name}: {error}")
            datasets.append(PlannedDataset(name, names(name), planned))
        if faults and not self._options.skip_invalid:
            raise _task_faults(faults, "cannot run here")
        self._warnings += [f"left out: {fault}" for fault in faults]
        return datasets

    def _plan_task(self, dataset: str, task: LoadedTask, names: FolderNames) -> PlannedTask:
        config, job = task.config, self._config
        spec = TaskSpec(
            name=task.name,
            dataset=dataset,
            path=str(task.path),
            digest=task.digest,
            git_commit_id=task.git_commit_id,
            source=config.source,
            metadata=config.metadata,
            env=config.solution.env,
            rllm=config.rllm is not None,
        )
        environment = EnvironmentSpec(
            task_name=task.name,
            directory=str(task.environment_dir) if task.environment_dir else None,
            digest=task.environment_digest,
            docker_image=config.environment.docker_image,
            resources=self._resources(task),
            network=_network(task),
            workdir=config.environment.workdir,
            env={**config.environment.env, **job.environment.env},
            build_timeout_sec=config.environment.build_timeout_sec * job.timeout_multiplier,
        )
        verifier = VerifierSpec(
            plugin=self._verifier[0],
            options=self._verifier[1],
            env={**config.verifier.env, **job.verifier.env},
            user=_user(config.verifier.user),
            disable=job.verifier.disable,
            agent_env=job.verifier.agent_env,
        )
        multiplier = job.timeout_multiplier
        timeouts = Timeouts(
            build_sec=config.environment.build_timeout_sec * multiplier,
            install_sec=config.agent.install_timeout_sec * multiplier,
            verifier_sec=effective_timeout(
                config.verifier.timeout_sec,
                override_sec=job.verifier.override_timeout_sec,
                max_sec=job.verifier.max_timeout_sec,
                multiplier=multiplier,
            ),
        )
        return PlannedTask(
            spec=spec,
            environment=environment,
            verifier=self._shared(verifier),
            agent_user=_user(config.agent.user),
            timeouts=timeouts,
            agent_timeout_sec=config.agent.timeout_sec,
            folder=names(task.name),
            fingerprint={
                "task": task.digest[:16],
                "environment": _fingerprint(
                    (job.environment.type, job.environment.options, environment.resources, environment.env)
                ),
                "verifier": _fingerprint((verifier, job.isolation)),
            },
        )

    def _shared(self, verifier: VerifierSpec) -> VerifierSpec:
        """One object for equal verifier specs: trials look plugins up by the object."""
        return self._verifiers.setdefault(msgspec.json.encode(verifier), verifier)

    def _resources(self, task: LoadedTask) -> Resources:
        job, asked = self._config.environment, task.config.environment
        default = _DEFAULT_RESOURCES if job.default_limits == "spec" else Resources()
        memory = f"{asked.memory_mb}Mi" if asked.memory_mb else asked.memory
        storage = f"{asked.storage_mb}Mi" if asked.storage_mb else asked.storage
        cpus = job.override_cpus if job.override_cpus is not None else asked.cpus
        memory = job.override_memory if job.override_memory is not None else memory
        storage = job.override_storage if job.override_storage is not None else storage
        return Resources(
            cpus=default.cpus if cpus is None else parse_cpus(cpus),
            memory_bytes=default.memory_bytes if memory is None else parse_bytes(memory)[0],
            storage_bytes=default.storage_bytes if storage is None else parse_bytes(storage)[0],
            gpus=asked.gpus or None,
        )

    def _check_task(self, task: PlannedTask, agents: Sequence[PlannedAgent], backend: EnvironmentBackend) -> None:
        """Refuse what this backend cannot do, before anything starts."""
        kind = self._config.environment.type
        has = backend.capabilities
        environment = task.environment
        named_users = {agent.spec.user or task.agent_user for agent in agents} | {task.verifier.user}
        wanted = {
            EXEC_USER: (named_users - {None}, "run commands as another user"),
            NETWORK_NONE: (environment.network == "none", "cut the network off"),
            GPUS: (environment.resources.gpus, "give GPUs to a trial"),
            DOCKER_IMAGE: (environment.docker_image and not environment.directory, f"use the image {environment.docker_image}"),
        }
        for capability, (needed, what) in wanted.items():
            if needed and capability not in has:
                raise TaskError(f"`environment.type: {kind}` cannot {what}, and the task needs it; try `type: docker`")
        backend.check(environment)

    def _check_variables(self, datasets: Sequence[PlannedDataset]) -> None:
        """Every `${NAME}` without default that the host does not set, over the whole job, in one error."""
        used: dict[str, list[str]] = {}

        def look(block: Mapping[str, str], where: str) -> None:
            for name in unset_names(block.values(), self._environ):
                used.setdefault(name, []).append(where)

        for index, agent in enumerate(self._config.agents):
            look(agent.env, f"agents[{index}].env")
        look(self._config.verifier.env, "verifier.env")
        look(self._config.environment.env, "environment.env")
        oracle = any(agent.plugin == "oracle" for agent in self._config.agents)
        for dataset in datasets:
            for task in dataset.tasks:
                where = f"task {task.spec.name}"
                look(task.environment.env, where)
                if not task.verifier.disable:
                    look(task.verifier.env, where)
                if oracle:
                    look(task.spec.env, where)
        if used:
            listed = ", ".join(f"{name} ({', '.join(dict.fromkeys(places))})" for name, places in sorted(used.items()))
            raise ConfigError(f"{self._where}: not set on this machine: {listed}; set them, or write ${{NAME:-default}}")


def _keep_finished(plan: Plan) -> None:
    """Sort an earlier run's trials into those that are kept and those that run again, with the reason."""
    earlier = {trial.trial_id: trial for trial in read_trials(plan.directory, FinishedTrial)}
    if not earlier:
        return
    for dataset in plan.datasets:
        for task in dataset.tasks:
            for agent in plan.agents:
                fingerprint = {"agent": agent.fingerprint, **task.fingerprint}
                for attempt in range(1, plan.config.n_attempts + 1):
                    trial = earlier.get(trial_id_of(agent, dataset, task, attempt))
                    if trial is None:
                        continue
                    reason = _why_again(trial, fingerprint)
                    if reason is None:
                        plan.finished[trial.trial_id] = trial
                    else:
                        plan.rerun[reason] += 1


def _why_again(trial: FinishedTrial, fingerprint: Mapping[str, str]) -> str | None:
    if trial.status in ("errored", "cancelled"):
        return trial.status
    for part, value in fingerprint.items():
        if trial.fingerprint.get(part) != value:
            return f"{part} changed"
    return None


def _select_agents(config: JobConfig, wanted: Sequence[str]) -> JobConfig:
    """The job with only the agents that were asked for; a name that is not in the job is taken as a plugin's."""
    if not wanted:
        return config
    chosen: list[AgentConfig] = []
    for pattern in wanted:
        matching = [agent for agent in config.agents if fnmatchcase(agent.name, pattern)]
        if not matching and any(character in pattern for character in "*?["):
            names = ", ".join(agent.name for agent in config.agents)
            raise UsageError(f"--agent {pattern}: no agent of the job matches; it has {names}")
        chosen += [agent for agent in matching or [AgentConfig(name=pattern)] if agent not in chosen]
    return msgspec.structs.replace(config, agents=chosen)


def _task_faults(faults: Sequence[str], what: str) -> TaskError:
    """One error for all of them: the fault itself when it is alone, otherwise a line each."""
    if len(faults) == 1:
        return TaskError(f"{faults[0]} (--skip-invalid leaves the task out)")
    return TaskError(f"{len(faults)} tasks {what} (--skip-invalid leaves them out):\n  " + "\n  ".join(faults))


def _network(task: LoadedTask) -> Network:
    asked = task.config.environment
    mode = task.config.agent.network_mode or asked.network_mode
    if mode in (None, "public"):
        return "none" if asked.allow_internet is False and mode is None else "public"
    if mode in ("no-network", "none"):
        return "none"
    raise TaskError(f"network_mode {mode!r} is not known; write public or no-network")


def _user(user: str | int | None) -> str | None:
    return None if user is None else str(user)


def _relative(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name


def _fingerprint(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:16]
