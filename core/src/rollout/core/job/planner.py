"""From a job file to a plan: plugins found, options decoded, data sets loaded, everything checked before anything starts."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from rollout.core.aio import run_shielded
from rollout.core.config.document import read_document
from rollout.core.config.interpolate import looks_secret, unset_names
from rollout.core.config.job import AgentConfig, DatasetConfig, EnvironmentConfig, JobConfig
from rollout.core.config.load import JobFile
from rollout.core.errors import ConfigError, PluginError, RolloutError, TaskError, UsageError, boundary
from rollout.core.hooks import HookBus
from rollout.core.job.equipment import equipment_of, skill_folders
from rollout.core.job.kept import KeptTrials
from rollout.core.job.plan import Plan, trial_id_of
from rollout.core.job.planned import PlannedAgent, PlannedDataset, PlannedTask, needs_environment
from rollout.core.job.planned_rows import PlannedRows, row_folder_key
from rollout.core.job.preflight import check_plugins, task_error
from rollout.core.job.store import CONFIG, JobStore, read_json
from rollout.core.job.task_planner import TaskPlanner, fingerprint_of
from rollout.core.plugins import Plugin, decode_options, find, named, versions
from rollout.core.protocols import (
    BESIDE,
    DOCKER_IMAGE,
    EXEC_USER,
    GPUS,
    NETWORK_ALLOWLIST,
    NETWORK_NONE,
    NETWORK_SWITCH,
    SERVICES,
    BackendContext,
    EnvironmentBackend,
    RegistryContext,
)
from rollout.core.records import MAIN_SERVICE, NO_ENVIRONMENT, AgentSpec
from rollout.core.tasks.cache import cache_dir
from rollout.core.tasks.dataset_folder import DATASET, dataset_around
from rollout.core.tasks.directory import LoadedDataset, load_dataset
from rollout.core.tasks.task import load_task
from rollout.core.tasks.tree import digest_lines, digest_of
from rollout.core.trial.isolation import OWN_USER, ROOT_NAMES
from rollout.core.trial.paths import FolderNames, environment_name, short_hash
from rollout.core.types import OUTLINED_ROWS


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


async def plan_job(
    job: JobFile,
    options: PlanOptions = PlanOptions(),
    environ: Mapping[str, str] = os.environ,
    given: Sequence[LoadedDataset] = (),
) -> Plan:
    """Plan a job, and open its folder unless it is a dry run. `given` are data sets besides those that the job names.

    Raises:
        UsageError and its kinds: something is wrong with the job, its tasks or this machine, or the job's folder cannot be
            written; nothing was started. All faulty tasks are in one message.
    """
    try:
        return await _Planner(job, options, environ, given).plan()
    except UsageError:
        raise
    except RolloutError as error:
        raise UsageError(str(error)) from error


class _Planner:
    """The steps of planning, and what they find out on the way."""

    def __init__(self, job: JobFile, options: PlanOptions, environ: Mapping[str, str], given: Sequence[LoadedDataset]) -> None:
        self._given = given
        self._options = options
        self._environ = environ
        self._base_dir = job.base_dir
        self._config = _select_agents(job.config, options.agents)
        self._warnings = list(job.warnings)
        self._plugins: list[Plugin] = []
        self._name = self._config.name or (job.path.stem if job.path else "job")
        self._where = str(job.path.name) if job.path else "job"
        said = job.origins.get("environment.type", "default") != "default"
        self._type_given = said or job.config.environment.type != EnvironmentConfig().type
        self._image_contents: dict[str, str] = {}
        self._verifiers: dict[tuple[str, bytes], Any] = {}
        # One for the whole job: a branch that moves while it is planned is one commit in it.
        self._registries = RegistryContext(
            base_dir=job.base_dir, cache_dir=cache_dir(environ), offline=options.offline, revisions={}
        )

    async def plan(self) -> Plan:
        config = self._config
        directory = self._directory()
        earlier = read_json(directory, CONFIG)
        job_id = str(earlier.get("job_id") or environment_name(self._name, unique=secrets.token_hex(4), limit=48))

        executor, verifier = config.executor, config.verifier
        if self._type_given:
            self._plugin("environments", config.environment.type, config.environment.options, "environment")
        executor_plugin, executor_options = self._plugin("executors", executor.type, executor.options, "executor")
        if (chosen := verifier.chosen()) is not None:
            self._verifier_plugin(*chosen)
        metrics = [
            (metric.type, *self._plugin("metrics", metric.type, metric.options, f"metrics[{index}]"))
            for index, metric in enumerate(config.metrics)
        ]
        for plugin, metric_options in ((plugin, decoded) for _, plugin, decoded in metrics):
            plugin.cls(metric_options)
        self._agents()  # a mistake in them is found before the data sets are read
        hooks = HookBus.load(self._environ)
        self._warnings += hooks.problems

        loaded = await self._load_datasets()
        self._take_defaults(loaded)
        config = self._config
        agents = self._agents()
        planned, faults = self._plan_datasets(loaded)
        if not self._needs_environment(planned, agents):
            config = self._in_environment(NO_ENVIRONMENT, {})
        where = config.environment
        backend_plugin, backend_options = self._plugin("environments", where.type, where.options, "environment")
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
            finished=KeptTrials(directory),
            backend=backend,
            backend_context=context,
            executor=executor_plugin.cls(executor_options, config.n_concurrent_trials),
            metrics=metrics,
            hooks=hooks,
            environ=self._environ,
            plugins=versions(self._plugins),
            warnings=self._warnings,
            image_contents=self._image_contents,
        )
        try:
            plan.datasets = self._runnable(planned, agents, backend, faults)
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
        jobs_dir = Path(os.path.expanduser(self._config.jobs_dir)).absolute()
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

    def _verifier_plugin(self, name: str, options: Mapping[str, Any]) -> Any:
        """A verifier and all that it is made of; the same one for the same options."""
        key = name, msgspec.json.encode(options)
        if key not in self._verifiers:
            plugin, decoded = self._plugin("verifiers", name, options, "verifier")
            with boundary(ConfigError, f"{self._where}: verifier ({plugin.info.name})"):
                self._verifiers[key] = plugin.cls(decoded)
        return self._verifiers[key]

    def _agents(self) -> list[PlannedAgent]:
        """Every agent.

        Raises:
            PluginError, ConfigError: one cannot be used. What variables are missing is said of all of them at once.
        """
        names = FolderNames()
        missing: list[str] = []
        agents = [self._agent(index, agent, names, missing) for index, agent in enumerate(self._config.agents)]
        if missing:
            raise ConfigError("\n".join(missing))
        return agents

    def _agent(self, index: int, agent: AgentConfig, names: FolderNames, missing: list[str]) -> PlannedAgent:
        raw = agent.plugin_options
        if agent.manifest is not None:
            raw = {**raw, "manifest": read_document(self._base_dir / Path(os.path.expanduser(agent.manifest)))}
        try:
            name, raw = named("agents", agent.plugin, raw)
            plugin, options = self._plugin("agents", name, raw, f"agents[{index}]")
        except PluginError as error:
            if not agent.type and not agent.inline and "no agent" in str(error):
                raise PluginError(f"{error}; or give `execute:` to define it here") from error
            raise
        for key, value in agent.env.items():
            if looks_secret(key) and value and "$" not in value:
                self._warnings.append(f"agents[{index}].env.{key} holds a secret literally; write ${{{key}}} and set it outside")
        identify = getattr(plugin.cls, "identity", None)
        try:
            identity = identify(options, self._base_dir) if identify is not None else None
        except ConfigError as error:
            raise ConfigError(f"{self._where}: agents[{index}]: {error}") from error
        env = agent.env
        if (agent_env := getattr(plugin.cls, "agent_env", None)) is not None:
            try:
                with boundary(ConfigError, f"{self._where}: agents[{index}]"):
                    env = {**agent_env(options, env, self._environ), **env}
            except ConfigError as error:
                missing.append(str(error))
        skills = skill_folders(agent.skills, self._base_dir, f"{self._where}: agents[{index}].skills")
        spec = AgentSpec(
            name=agent.name,
            plugin=name,
            options=raw,
            env=env,
            user=agent.user,
            mcp_servers=tuple(agent.mcp_servers),
            skills=tuple(map(str, skills)),
        )
        made_of: list[object] = [spec]
        if identity is not None:
            made_of.append(identity)
        made_of += [digest_of(digest_lines(skill)) for skill in skills]
        return PlannedAgent(
            spec=spec,
            folder=names(agent.name),
            override_timeout_sec=agent.override_timeout_sec,
            max_timeout_sec=agent.max_timeout_sec,
            fingerprint=fingerprint_of(made_of if len(made_of) > 1 else spec),
            needs_environment=_agent_needs_environment(plugin, options),
            answers_rows=getattr(plugin.cls, "answers_rows", False),
            needs_capabilities=getattr(plugin.cls, "needs_capabilities", frozenset()),
            equipment=equipment_of(plugin.cls, options),
            task_faults=partial(plugin.cls.task_faults, options) if hasattr(plugin.cls, "task_faults") else lambda task: (),
        )

    async def _load_datasets(self) -> list[LoadedDataset]:
        """Every dataset, under a name of its own. All tasks that cannot be read are reported in one error."""
        loaded = list(self._given)
        faults: list[tuple[str, str]] = []
        for index, dataset in enumerate(self._config.datasets):
            found = await self._load_dataset(index, dataset)
            faults += [("", str(error)) for _, error in found.invalid]
            if any(found.name == other.name for other in loaded):
                what = f"{dataset.path}{dataset.registry}{dataset.version}{dataset.split or ''}"
                found.name = f"{found.name}-{short_hash(what)}"
                self._warnings.append(f"two datasets have one name: datasets[{index}] is called {found.name}")
            loaded.append(found)
        if faults and not self._options.skip_invalid:
            raise task_error(faults, "cannot be used")
        self._warnings += [f"left out: {fault}" for _, fault in faults]
        for found in loaded:
            self._warnings += [f"{found.folder.path / DATASET}: {warning}" for warning in found.warnings] if found.folder else []
            self._warnings += [f"{task.path}: {warning}" for task in found.tasks for warning in task.warnings]
        return loaded

    async def _load_dataset(self, index: int, dataset: DatasetConfig) -> LoadedDataset:
        wanted = self._selector(dataset)
        if dataset.path is not None:
            path = self._base_dir / Path(os.path.expanduser(dataset.path))
            found = load_dataset(
                path, split=dataset.split, select=wanted, limit=dataset.n_tasks, row_key=row_folder_key, name=dataset.name
            )
            if found.rows is None:
                found.tasks = [task for task in found.tasks if wanted(task.name)][: dataset.n_tasks]
                found.invalid = [(fault, error) for fault, error in found.invalid if wanted(_relative(fault, path))]
            return found
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
        found = LoadedDataset(self._base_dir, name=dataset.name)
        for folder in folders:
            try:
                found.tasks.append(
                    load_task(
                        folder.path,
                        name=folder.name,
                        dataset=dataset_around(folder.path) if folder.git_url is None else None,
                        git_url=folder.git_url,
                        git_commit_id=folder.git_commit_id,
                    )
                )
            except TaskError as error:
                found.invalid.append((folder.path, error))
        return found

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

    def _backend_context(self, job_id: str, directory: Path, loaded: Sequence[LoadedDataset]) -> BackendContext:
        cache = cache_dir(self._environ)
        task_parents = {task.path.parent for found in loaded for task in found.tasks}
        task_parents |= {found.folder.path for found in loaded if found.folder}
        task_parents |= {task.dataset_dir.absolute() for found in loaded for task in found.given}
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
            resolved=self._image_contents.__setitem__,
        )

    def _warn_once(self, message: str) -> None:
        if message not in self._warnings:
            self._warnings.append(message)

    def _take_defaults(self, loaded: Sequence[LoadedDataset]) -> None:
        """What the job leaves unsaid and its data sets say: the agent, and where trials run."""
        files = [found.folder.config for found in loaded if found.folder]
        if not self._config.agents:
            agents = dict.fromkeys(file.default_agent for file in files if file.default_agent)
            if not agents:
                raise ConfigError(f"{self._where}: `agents` is missing, and no dataset.toml names a default_agent")
            self._config = msgspec.structs.replace(self._config, agents=[AgentConfig(name=str(name)) for name in agents])
        if not self._type_given:
            types = list(dict.fromkeys(file.default_sandbox for file in files if file.default_sandbox))
            if len(types) > 1:
                raise ConfigError(f"{self._where}: the data sets want {' and '.join(types)}; say which in `environment.type`")
            if types:
                self._in_environment(types[0], self._config.environment.options)

    def _in_environment(self, kind: str, options: dict[str, Any]) -> JobConfig:
        environment = msgspec.structs.replace(self._config.environment, type=kind, options=options)
        self._config = msgspec.structs.replace(self._config, environment=environment)
        return self._config

    def _needs_environment(self, planned: Sequence[PlannedDataset], agents: Sequence[PlannedAgent]) -> bool:
        return any(needs_environment(task, agent) for agent in agents for dataset in planned for task in dataset.kinds)

    def _plan_datasets(self, loaded: Sequence[LoadedDataset]) -> tuple[list[PlannedDataset], list[tuple[str, str]]]:
        """Every data set, and what is wrong with tasks that are left out of them."""
        planner = TaskPlanner(self._config, self._verifier_plugin)
        faults: list[tuple[str, str]] = []
        datasets: list[PlannedDataset] = []
        names = FolderNames()
        for found in loaded:
            tasks: list[PlannedTask] = []
            task_names = FolderNames()
            if found.rows is not None:
                if len(found.rows):
                    rows = planner.rows(found.name, found.rows)
                    datasets.append(PlannedDataset(found.name, names(found.name), rows, rows.shared))
                continue
            for task in found.tasks:
                try:
                    tasks.append(planner.task(found.name, task, task_names(task.name)))
                except TaskError as error:
                    faults.append((task.name, str(error)))
            ids: set[str] = set()
            for given in found.given:
                try:
                    if given.id in ids:
                        raise TaskError("another task has this id")
                    ids.add(given.id)
                    tasks.append(planner.given(found.name, given, task_names(given.id)))
                except TaskError as error:
                    faults.append((given.id, str(error)))
            datasets.append(PlannedDataset(found.name, names(found.name), tasks))
        return datasets, faults

    def _runnable(
        self,
        planned: Sequence[PlannedDataset],
        agents: Sequence[PlannedAgent],
        backend: EnvironmentBackend,
        faults: list[tuple[str, str]],
    ) -> list[PlannedDataset]:
        """The data sets without the tasks that cannot run here, which are an error unless they may be skipped."""
        datasets = []
        for dataset in planned:
            kept = []
            rows = dataset.tasks.rows.first(OUTLINED_ROWS) if isinstance(dataset.tasks, PlannedRows) else ()
            for task in dataset.kinds:
                try:
                    check_plugins(task, agents, self._verifier_plugin, self._environ, rows)
                    self._check_task(task, agents, backend)
                    kept.append(task)
                except TaskError as error:
                    faults.append((task.spec.name, str(error)))
            if dataset.shared is None:
                datasets.append(replace(dataset, tasks=kept))
            elif kept:
                datasets.append(dataset)
        if faults and not self._options.skip_invalid:
            raise task_error(faults, "cannot run here")
        self._warnings += [f"left out: {task}: {fault}" for task, fault in faults]
        return datasets

    def _check_task(self, task: PlannedTask, agents: Sequence[PlannedAgent], backend: EnvironmentBackend) -> None:
        """Refuse what this backend cannot do, before anything starts."""
        kind = self._config.environment.type
        needy = [agent for agent in agents if needs_environment(task, agent)]
        if not needy:
            return
        if kind == NO_ENVIRONMENT:
            who = "its verifier" if task.needs_environment else f"the agent {needy[0].spec.name}"
            raise TaskError(f"{who} needs an environment, and `environment.type` is none; try `type: docker`")
        users = {agent.spec.user or task.agent_user for agent in agents}
        own_user = task.isolation in OWN_USER
        for user in users if own_user else ():
            if user in ROOT_NAMES or user == task.verifier.user:
                whose = "the verifier's too" if user == task.verifier.user else "root"
                raise TaskError(f"`isolation: {task.isolation}` needs a user of its own for the agent, and {user} is {whose}")
        for agent in needy:
            if missing := sorted(agent.needs_capabilities - backend.capabilities):
                cannot = f"`environment.type: {kind}` has no {', '.join(missing)}"
                raise TaskError(f"{cannot}, and the agent {agent.spec.name} needs it; try `type: docker`")
        services = {item.service for item in task.spec.artifacts} | {hook.service for hook in task.spec.collect}
        services.discard(MAIN_SERVICE)
        named_users = (users | {task.verifier.user}) - {None}
        for step in task.spec.steps:
            named_users |= {step.agent_user, step.verifier_user} - {None}
            if own_user and step.agent_user is not None:
                raise TaskError(f"`isolation: {task.isolation}` has one user for the agent, and step {step.name} names another")
        beside = any((step.isolation or task.isolation) == "separate" for step in task.spec.steps)
        has = backend.capabilities
        for environment in task.environments:
            separation = f"keep the agent from the verifier with `isolation: {task.isolation}`"
            wanted = {
                EXEC_USER: (own_user or named_users, separation if own_user else "run commands as another user"),
                NETWORK_NONE: (environment.network == "none", "cut the network off"),
                NETWORK_ALLOWLIST: (environment.network == "allowlist", "keep to a list of allowed hosts"),
                NETWORK_SWITCH: (
                    environment.later_networks,
                    "change the network between the start of the environment, the agent and the verifier",
                ),
                GPUS: (environment.resources.gpus, "give GPUs to a trial"),
                BESIDE: (beside, "start a second environment, for the verifier of a step, while the agent's goes on"),
                SERVICES: (services, f"start the service {', '.join(sorted(services))}"),
                DOCKER_IMAGE: (
                    environment.docker_image and not environment.directory,
                    f"use the image {environment.docker_image}",
                ),
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
            for server in agent.mcp_servers:
                for block in server.blocks:
                    look(block, f"agents[{index}].mcp_servers, {server.name}")
        look(self._config.verifier.env, "verifier.env")
        look(self._config.environment.env, "environment.env")
        oracle = any(agent.plugin == "oracle" for agent in self._config.agents)
        for dataset in datasets:
            for task in dataset.kinds:
                where = f"task {task.spec.name}"
                for environment in task.environments:
                    look(environment.env, where)
                if not task.verifier.disable:
                    for block in (task.verifier.env, *(step.env for step in task.spec.steps)):
                        look(block, where)
                for block in (block for server in task.spec.mcp_servers for block in server.blocks):
                    look(block, where)
                if oracle:
                    look(task.spec.env, where)
        if used:
            listed = ", ".join(f"{name} ({', '.join(dict.fromkeys(places))})" for name, places in sorted(used.items()))
            raise ConfigError(f"{self._where}: not set on this machine: {listed}; set them, or write ${{NAME:-default}}")


def _keep_finished(plan: Plan) -> None:
    """Sort an earlier run's trials into those that are kept and those that run again, with the reason."""
    if plan.finished.read_earlier():
        for dataset in plan.datasets:
            for task in dataset.tasks:
                for agent in plan.agents:
                    fingerprint = {"agent": agent.fingerprint, **task.fingerprint}
                    for attempt in range(1, plan.config.n_attempts + 1):
                        trial_id = trial_id_of(agent, dataset, task, attempt)
                        reason = plan.finished.decide(trial_id, fingerprint)
                        if reason is not None:
                            plan.rerun[reason] += 1
                        elif trial_id in plan.finished:
                            plan.kept_of[dataset.folder] += 1
    plan.finished.decided()


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


def _agent_needs_environment(plugin: Plugin, options: Any) -> bool:
    """It does unless its class says otherwise."""
    said = getattr(plugin.cls, "needs_environment", True)
    return bool(said(options) if callable(said) else said)


def _relative(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name
