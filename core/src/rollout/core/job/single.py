"""Running one trial from its spec alone: what `rollout trial run spec.json` does on a cluster node or another machine."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from rollout.core.aio import run_shielded
from rollout.core.errors import ConfigError
from rollout.core.hooks import HookBus
from rollout.core.plugins import decode_options, find
from rollout.core.protocols import BackendContext, EnvironmentBackend
from rollout.core.records import TrialResult, TrialSpec
from rollout.core.tasks.cache import cache_dir
from rollout.core.trial.images import Images
from rollout.core.trial.installs import Installs
from rollout.core.trial.paths import environment_name, short_hash
from rollout.core.trial.python_processes import VERIFIERS, PythonProcesses
from rollout.core.trial.redact import Redactor, secrets_of
from rollout.core.trial.services import Services
from rollout.core.trial.stepped import rollout_of


def read_spec(path: Path) -> TrialSpec:
    """A TrialSpec from a JSON file.

    Raises:
        ConfigError: it cannot be read or is not one.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=TrialSpec)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a trial's spec: {error}") from error


async def run_spec(spec: TrialSpec, environ: Mapping[str, str] = os.environ) -> TrialResult:
    """Run one trial in this process with a backend of its own; the result is also written to the trial's folder.

    Raises:
        UsageError and its kinds: the spec names a plugin or options that this machine does not have.
        StoreError
    """
    async with services_for(spec, environ, scratch=spec.trial_id) as services:
        for environment in spec.environments:
            services.backend.check(environment)
        for plugin, _ in (services.agent(spec.agent), services.verifier(spec.verifier)):
            services.plugins[plugin.info.dist] = plugin.info.version
        return await rollout_of(spec, services).run()


@asynccontextmanager
async def services_for(
    spec: TrialSpec, environ: Mapping[str, str], *, scratch: str, concurrency: int = 1
) -> AsyncIterator[Services]:
    """A backend of its own, and what else trials need, for trials in environments like those of `spec`.

    `scratch`: what the backend's scratch folder is called after.

    Raises:
        UsageError and its kinds: the spec names an environment or options that this machine does not have.
    """
    plugin = find("environments", spec.environment_type)
    options = decode_options(plugin, spec.environment_options, "environment")
    cache = cache_dir(environ)
    context = BackendContext(
        job_id=spec.job_id,
        work_dir=cache / "work" / environment_name(spec.job_id, unique=short_hash(scratch)),
        cache_dir=cache / spec.environment_type,
        concurrency=concurrency,
        private_paths=(_jobs_dir(spec), Path(spec.task.path).absolute().parent, cache),
        base_dir=Path(spec.base_dir),
        delete=False,
    )
    backend: EnvironmentBackend = plugin.cls(options, context)
    blocks = (spec.agent.env, spec.verifier.env, spec.task.env, *(environment.env for environment in spec.environments))
    told = (block for server in (*spec.task.mcp_servers, *spec.agent.mcp_servers) for block in server.blocks)
    redactor = Redactor(secrets_of((*blocks, *(step.env for step in spec.task.steps), *told), environ))
    logs = Path(spec.directory) / "images"
    images = Images(
        backend,
        force=False,
        delete=False,
        logs=logs,
        redactor=redactor,
        users=Counter(environment.digest for environment in spec.environments),
    )
    services = Services(
        backend=backend,
        images=images,
        installs=Installs(backend, images, force=False, logs=logs, redactor=redactor),
        hooks=HookBus.load(environ),
        environ=environ,
        redactor=redactor,
        python=PythonProcesses(context.work_dir / VERIFIERS),
        plugins={plugin.info.dist: plugin.info.version},
    )
    try:
        yield services
    finally:
        await run_shielded(services.aclose())
        await run_shielded(backend.aclose())
        shutil.rmtree(context.work_dir, ignore_errors=True)


def _jobs_dir(spec: TrialSpec) -> Path:
    """The folder above the job's: a trial must not see its siblings, whose folders hold answers."""
    directory = Path(spec.directory).absolute()
    inside_job = Path(spec.trial_id).parts
    is_in_job = directory.parts[-len(inside_job) :] == inside_job
    return directory.parents[len(inside_job)] if is_in_job else directory
