"""From a loaded task, or the rows of a file, to what its trials share: environment, verifier, timeouts, fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from rollout.core.config.dataset import DatasetFile
from rollout.core.config.job import EnvironmentConfig, JobConfig
from rollout.core.config.task import (
    StepAgentConfig,
    StepConfig,
    StepVerifierConfig,
    TaskAgentConfig,
    TaskConfig,
    TaskEnvironmentConfig,
    TaskVerifierConfig,
)
from rollout.core.egress.rules import Rules
from rollout.core.episodes import Task
from rollout.core.errors import TaskError, UsageError
from rollout.core.job.planned import PlannedTask
from rollout.core.job.planned_rows import PlannedRows
from rollout.core.plugins import find
from rollout.core.quantity import parse_bytes, parse_cpus
from rollout.core.records import Isolation, StepSpec, TaskSetup, TaskSpec, Timeouts, VerifierSpec
from rollout.core.tasks.dataset_folder import DATASET, read_dataset_folder
from rollout.core.tasks.rows import RowDataset
from rollout.core.tasks.task import CONFIG, LoadedTask, load_task
from rollout.core.tasks.tree import digest_lines, digest_of
from rollout.core.tasks.verifier_declaration import DeclaredVerifier, declared_verifier
from rollout.core.tasks.view import lifts, of_row
from rollout.core.trial.deadlines import effective_timeout
from rollout.core.trial.isolation import AGENT_USER, OWN_USER, stricter
from rollout.core.types import EnvironmentSpec, Network, NetworkAccess, Resources

_Networked = TaskEnvironmentConfig | TaskAgentConfig | TaskVerifierConfig | StepAgentConfig | StepVerifierConfig

FindVerifier = Callable[[str, Mapping[str, Any]], Any]
"""Name and options to the verifier, the same one for the same options. Raises UsageError and its kinds."""

ENVIRONMENT_FILES = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml", "compose.yaml")
"""What makes a folder of tests the environment of a separate verifier."""

_NETWORK_MODES: dict[str, Network] = {"public": "public", "no-network": "none", "none": "none", "allowlist": "allowlist"}
_DEFAULT_RESOURCES = Resources(cpus=1, memory_bytes=2 * 10**9, storage_bytes=10 * 10**9)


def _shaping_options(environment: EnvironmentConfig) -> dict[str, Any]:
    """The options that say what environments are like, without those that only say where they are: see `placement`."""
    if not environment.options:
        return {}  # and no plugin is loaded for a job that may need none
    placement: frozenset[str] = getattr(find("environments", environment.type).cls, "placement", frozenset())
    return {name: value for name, value in environment.options.items() if name not in placement}


class TaskPlanner:
    """Plans the tasks of one job."""

    def __init__(self, config: JobConfig, find_verifier: FindVerifier) -> None:
        self._config = config
        self._find_verifier = find_verifier
        self._shaping_options = _shaping_options(config.environment)
        self._verifiers: dict[bytes, VerifierSpec] = {}
        self._digests: dict[Path, str] = {}

    def task(self, dataset: str, task: LoadedTask, folder: str) -> PlannedTask:
        """One task folder.

        Raises:
            TaskError: what it asks for cannot be.
        """
        config = task.config
        spec = TaskSpec(
            name=task.name,
            dataset=dataset,
            path=str(task.path),
            digest=task.digest,
            dataset_dir=str(task.dataset.path) if task.dataset else None,
            git_commit_id=task.git_commit_id,
            source=config.source,
            metadata=config.metadata,
            env=config.solution.env,
            rllm=config.rllm is not None or task.dataset is not None,
        )
        return self._planned(of_row(spec, task), config, task.environment_dir, task.environment_digest, task.verifier, folder)

    def rows(self, dataset: str, rows: RowDataset) -> PlannedRows:
        """All rows of a file. Raises TaskError."""
        file, path = rows.folder.config, rows.folder.path
        config = TaskConfig(agent=file.agent, verifier=file.verifier, environment=file.environment)
        spec = TaskSpec(
            name=dataset,
            dataset=dataset,
            path=str(path),
            digest=self._digest(rows.file),
            dataset_dir=str(path),
            row={},
            rllm=True,
        )
        directory, digest = self._environment(path, config)
        return PlannedRows(rows, self._planned(spec, config, directory, digest, rows.verifier, dataset))

    def given(self, dataset: str, task: Task, folder: str) -> PlannedTask:
        """A task that was given from Python: what verifies it, and where it runs, is read from its folders.

        Raises:
            TaskError: they cannot be used.
        """
        path = task.task_dir.resolve()
        data = read_dataset_folder(task.dataset_dir)
        content = list(task.instruction) if isinstance(task.instruction, list) else None
        if (path / CONFIG).is_file():
            planned = self.task(dataset, load_task(path, name=task.id, dataset=data), folder)
            return replace(planned, spec=msgspec.structs.replace(planned.spec, instruction=task.text, content=content))
        file = data.config if data else DatasetFile()
        config = TaskConfig(agent=file.agent, verifier=file.verifier, environment=file.environment)
        try:
            row = Task(task.id, "", task.metadata).to_dict()["metadata"]
        except TypeError as error:
            raise TaskError(f"its metadata cannot be recorded: {error}") from error
        spec = TaskSpec(
            name=task.id,
            dataset=dataset,
            path=str(path),
            digest=hashlib.sha256(msgspec.json.encode((task.id, task.text, content, row), order="deterministic")).hexdigest(),
            dataset_dir=str(path),
            instruction=task.text,
            content=content,
            row=row,
            rllm=True,
        )
        declared = declared_verifier(config.verifier, path, path, file)
        if declared is None:
            if self._config.verifier.chosen() is None and not self._config.verifier.disable:
                raise TaskError(f"{path}: no verifier: give an evaluator, or declare one in {DATASET}")
            declared = DeclaredVerifier("script")
        directory, digest = self._environment(path, config)
        return self._planned(spec, config, directory, digest, declared, folder)

    def _environment(self, path: Path, config: TaskConfig) -> tuple[Path | None, str]:
        """The folder that a data set's image is built from, and its digest."""
        directory = path / "environment" if (path / "environment").is_dir() else None
        lines = digest_lines(directory) if directory else []
        return directory, digest_of([*lines, b"docker_image\0" + (config.environment.docker_image or "").encode()])

    def _planned(
        self, spec: TaskSpec, config: TaskConfig, directory: Path | None, digest: str, declared: DeclaredVerifier, folder: str
    ) -> PlannedTask:
        job, changed = self._config, msgspec.structs.replace
        spec = changed(spec, setup=_setup(config, Path(spec.path), directory, rllm=spec.rllm))
        environment = EnvironmentSpec(
            task_name=spec.name,
            directory=str(directory) if directory else None,
            digest=digest,
            docker_image=config.environment.docker_image,
            resources=self._resources(config.environment),
            **self._network(config.environment),
            workdir=config.environment.workdir,
            env={**config.environment.env, **job.environment.env},
            build_timeout_sec=config.environment.build_timeout_sec * job.timeout_multiplier,
        )
        isolation = stricter(job.isolation, "separate" if config.separate_verifier else "default")
        steps = tuple(self._step(config, step) for step in config.steps)
        separate = None
        if "separate" in {isolation, *(step.isolation for step in steps)}:
            separate = self._verifier_environment(config, environment, declared.tests or Path(spec.path) / "tests")
        agent_network = self._access(config.agent) if config.agent.network_mode is not None else None
        verifier_network = None
        if config.verifier.network_mode is not None and isolation != "separate":
            verifier_network = self._access(config.verifier, extra=False)
        of_steps = [access for step in steps for access in (step.agent_network, step.verifier_network)]
        environment = _with_later(environment, agent_network, verifier_network, *of_steps)
        verifier = self._verifier(config, declared, Path(spec.path))
        timeouts = Timeouts(
            build_sec=config.environment.build_timeout_sec * job.timeout_multiplier,
            install_sec=config.agent.install_timeout_sec * job.timeout_multiplier,
            verifier_sec=self._verifier_sec(config.verifier.timeout_sec),
        )
        outside = declared.files
        if outside is not None and spec.row is None and outside.is_relative_to(spec.path):
            outside = None  # it is in the task's own digest
        where: list[Any] = [job.environment.type, self._shaping_options, environment.resources, environment.env]
        if job.environment.extra_allowed_hosts:
            where.append(job.environment.extra_allowed_hosts)
        if directory is not None and not (spec.row is None and directory.is_relative_to(spec.path)):
            where.append(digest)  # it is not in the task's own digest
        if spec.row is not None and (config.environment.mcp_servers or config.environment.skills_dir):
            where += [config.environment.mcp_servers, config.environment.skills_dir]  # of a folder they are in its own digest
        judged: list[object] = [verifier, isolation]
        if separate is not None:
            judged.append(separate)
        if outside is not None:
            judged.append(self._digest(outside))
        return PlannedTask(
            spec=changed(
                spec,
                artifacts=config.kept_artifacts,
                collect=tuple(config.verifier.collect),
                healthcheck=config.environment.healthcheck,
                mcp_servers=tuple(config.environment.mcp_servers),
                skills_dir=config.environment.skills_dir,
                steps=steps,
                step_strategy=config.multi_step_reward_strategy or "mean",
                agent_network=agent_network if environment.later_networks else None,
                verifier_network=verifier_network if environment.later_networks else None,
            ),
            environment=environment,
            verifier=verifier,
            agent_user=user_text(config.agent.user) or (AGENT_USER if isolation in OWN_USER else None),
            timeouts=timeouts,
            agent_timeout_sec=config.agent.timeout_sec,
            folder=folder,
            fingerprint={
                "task": spec.digest[:16],
                "environment": fingerprint_of(where),
                "verifier": fingerprint_of(judged),
            },
            needs_environment=self._needs_environment(verifier, declared),
            isolation=isolation,
            verifier_environment=separate,
        )

    def _network(self, asked: TaskEnvironmentConfig) -> dict[str, Any]:
        access = self._access(asked)
        return {"network": access.mode, "allowed_hosts": access.hosts}

    def _access(self, asked: _Networked, *, extra: bool = True) -> NetworkAccess:
        """What may be reached; with what the job adds, which is for agents."""
        access, added = _access_of(asked), tuple(self._config.environment.extra_allowed_hosts) if extra else ()
        if access.mode == "public" or not added:
            return access
        return NetworkAccess(mode="allowlist", hosts=tuple(dict.fromkeys((*access.hosts, *added))))

    def _step(self, config: TaskConfig, step: StepConfig) -> StepSpec:
        return StepSpec(
            name=step.name,
            agent_sec=step.agent.timeout_sec or config.agent.timeout_sec,
            verifier_sec=self._verifier_sec(step.verifier.timeout_sec or config.verifier.timeout_sec),
            env=step.verifier.env,
            min_reward=step.thresholds,
            healthcheck=step.healthcheck,
            artifacts=step.kept_artifacts,
            isolation=_step_isolation(self._config.isolation, config, step),
            agent_user=user_text(step.agent.user),
            verifier_user=user_text(step.verifier.user),
            agent_network=self._access(step.agent) if step.agent.network_mode is not None else None,
            verifier_network=self._access(step.verifier, extra=False) if step.verifier.network_mode is not None else None,
        )

    def _verifier_sec(self, task_sec: float) -> float:
        job = self._config
        return effective_timeout(
            task_sec,
            override_sec=job.verifier.override_timeout_sec,
            max_sec=job.verifier.max_timeout_sec,
            multiplier=job.timeout_multiplier,
        )

    def _verifier_environment(self, config: TaskConfig, agents: EnvironmentSpec, tests: Path) -> EnvironmentSpec | None:
        """The environment of a separate verifier; None when it is to be like the agent's."""
        own, mode = config.verifier.environment, config.verifier.network_mode
        built = next((name for name in ENVIRONMENT_FILES if (tests / name).is_file()), None)
        if own is None and built is None and mode is None and config.agent.network_mode is None:
            return None
        asked = own or config.environment
        access = self._access(config.verifier, extra=False) if mode is not None else self._access(asked, extra=False)
        environment = msgspec.structs.replace(
            agents,
            resources=self._resources(asked),
            network=access.mode,
            allowed_hosts=access.hosts,
            workdir=asked.workdir or agents.workdir,
            env={**asked.env, **self._config.environment.env},
            build_timeout_sec=asked.build_timeout_sec * self._config.timeout_multiplier,
        )
        changed = msgspec.structs.replace
        if own is not None and own.docker_image is not None:
            digest = digest_of([b"docker_image\0" + own.docker_image.encode()])
            return changed(environment, directory=None, docker_image=own.docker_image, digest=digest)
        if built is not None:
            return changed(environment, directory=str(tests), docker_image=None, digest=self._digest(tests))
        return environment

    def _verifier(self, config: TaskConfig, declared: DeclaredVerifier, task: Path) -> VerifierSpec:
        """What the job names, or else what the task declares. One object for equal specs: trials look plugins up by it."""
        job = self._config.verifier
        plugin, options = job.chosen() or (declared.plugin, declared.options)
        verifier = VerifierSpec(
            plugin=plugin,
            options=options,
            env={**config.verifier.env, **job.env},
            user=user_text(config.verifier.user),
            disable=job.disable,
            agent_env=job.agent_env,
            tests=str(declared.tests) if declared.tests not in (None, task / "tests") else None,
        )
        return self._verifiers.setdefault(msgspec.json.encode(verifier), verifier)

    def _needs_environment(self, verifier: VerifierSpec, declared: DeclaredVerifier) -> bool:
        if verifier.disable:
            return False
        try:
            found = self._find_verifier(verifier.plugin, verifier.options)
        except UsageError as error:
            raise TaskError(str(error)) from error
        return getattr(found, "needs_environment", True) or (self._config.verifier.chosen() is None and declared.sandbox)

    def _resources(self, asked: TaskEnvironmentConfig) -> Resources:
        job = self._config.environment
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

    def _digest(self, path: Path) -> str:
        """Of a folder or a file; computed once per job."""
        if path not in self._digests:
            if path.is_dir():
                self._digests[path] = digest_of(line for line in digest_lines(path) if b"__pycache__/" not in line)
            else:
                with path.open("rb") as file:
                    self._digests[path] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._digests[path]


def fingerprint_of(value: Any) -> str:
    """A short hash of anything that msgspec can encode."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:16]


def user_text(user: str | int | None) -> str | None:
    return None if user is None else str(user)


def _setup(config: TaskConfig, path: Path, directory: Path | None, *, rllm: bool) -> TaskSetup:
    """`files/` and `setup.sh` mean something in rLLM's format; elsewhere a Dockerfile may use the names for its own ends."""
    said = (config.rllm or {}).get("setup_commands", config.environment.setup_commands)
    if not isinstance(said, list) or not all(isinstance(command, str) for command in said):
        raise TaskError("[rllm] setup_commands: must be a list of texts")
    files, script = (directory / "files", directory / "setup.sh") if directory is not None and rllm else (None, None)
    has_files = files is not None and files.is_dir()
    return TaskSetup(
        files=str(files) if has_files else None,
        workdir=lifts(path, directory.parent if directory else None).workdir if has_files else None,
        script=str(script) if script is not None and script.is_file() else None,
        commands=tuple(said),
    )


def _access_of(asked: _Networked) -> NetworkAccess:
    """
    Raises:
        TaskError: there is no such mode, or a host cannot be listed.
    """
    mode = asked.network_mode
    if mode is None:
        closed = isinstance(asked, TaskEnvironmentConfig) and asked.allow_internet is False
        mode = "no-network" if closed else "public"
    if mode not in _NETWORK_MODES:
        raise TaskError(f"network_mode {mode!r} is not known; write public, no-network or allowlist")
    if asked.allowed_hosts and mode != "allowlist":
        raise TaskError(f'`allowed_hosts` goes with network_mode = "allowlist", and it is {mode}')
    try:
        Rules(asked.allowed_hosts)
    except ValueError as error:
        raise TaskError(f"allowed_hosts: {error}") from error
    return NetworkAccess(mode=_NETWORK_MODES[mode], hosts=tuple(asked.allowed_hosts))


def _step_isolation(job: Isolation, config: TaskConfig, step: StepConfig) -> Isolation | None:
    """None: it is the trial's."""
    mode = step.verifier.environment_mode
    if mode is None or (mode == "separate") == config.separate_verifier:
        return None
    return stricter(job, "separate") if mode == "separate" else job


def _with_later(environment: EnvironmentSpec, *phases: NetworkAccess | None) -> EnvironmentSpec:
    """The environment with what its network is to be in phases that ask for something else."""
    first = NetworkAccess(mode=environment.network, hosts=environment.allowed_hosts)
    asked = [access for access in phases if access is not None]
    if all(access == first for access in asked):
        return environment
    return msgspec.structs.replace(environment, later_networks=tuple(dict.fromkeys(asked)))
