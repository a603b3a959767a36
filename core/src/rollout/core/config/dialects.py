"""Other spellings of what a job or a task may say: aliases that mean the same, and hints for those that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rollout.core.config.job import (
    AgentConfig,
    DatasetConfig,
    EnvironmentConfig,
    JobConfig,
    MetricConfig,
    RegistryConfig,
    RetryConfig,
    VerifierConfig,
)
from rollout.core.config.place import PlacePath
from rollout.core.config.rewards import RewardConfig
from rollout.core.config.task import TaskConfig, TaskEnvironmentConfig, TaskVerifierConfig


class Alias(NamedTuple):
    """Another name of a key."""

    path: PlacePath
    """The key it stands for, from the same mapping."""
    convert: Callable[[Any], Any] = lambda value: value
    """From what is written under the alias.

    Raises:
        ValueError: not what the alias takes.
    """


def _mebibytes(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ValueError("expected a whole number of MiB above 0")
    return f"{value}Mi"


ALIASES: dict[type, dict[str, Alias]] = {
    JobConfig: {"job_name": Alias(("name",))},
    EnvironmentConfig: {
        "override_memory_mb": Alias(("override_memory",), _mebibytes),
        "override_storage_mb": Alias(("override_storage",), _mebibytes),
    },
    DatasetConfig: {
        "registry_path": Alias(("registry", "path")),
        "registry_url": Alias(("registry", "url")),
    },
    TaskConfig: {"schema_version": Alias(("version",))},
    TaskVerifierConfig: {"timeout": Alias(("timeout_sec",))},
    TaskEnvironmentConfig: {"cpu": Alias(("cpus",))},
}
"""Harbor's names of the same things."""

_OPTIONS = "write `options`"
_OWN_PLUGIN = "register the class as a plugin (docs/plugins.md) and name it with `type`"
_ONE_MULTIPLIER = "`timeout_multiplier` scales every timeout"

HINTS: dict[type, dict[str, str]] = {
    JobConfig: {
        "orchestrator": "write its `n_concurrent_trials` and `retry` at the top level of the job",
        "debug": "write `log_level: debug`",
        "quiet": "use the flag `--display none`",
        "tasks": "write `datasets: [{path: ...}]`; the path may be a single task",
        "agent_timeout_multiplier": _ONE_MULTIPLIER,
        "verifier_timeout_multiplier": _ONE_MULTIPLIER,
        "agent_setup_timeout_multiplier": _ONE_MULTIPLIER,
        "environment_build_timeout_multiplier": _ONE_MULTIPLIER,
        "artifacts": "whatever is in /logs/artifacts is kept, and what a task.toml lists under `artifacts`",
        "plugins": "an installed plugin needs no mention",
        "instruction_path": "the instruction is in $ROLLOUT_TASK_INSTRUCTION and the file $ROLLOUT_TASK_INSTRUCTION_FILE",
        "schema_version": "a job file has no version",
        "version": "a job file has no version",
    },
    EnvironmentConfig: {
        "kwargs": _OPTIONS,
        "provider_config": _OPTIONS,
        "import_path": _OWN_PLUGIN,
        "preserve_env": "write `delete: false`",
        "cpus": "write `override_cpus`",
        "memory": "write `override_memory`",
        "storage": "write `override_storage`",
        "memory_mb": "write `override_memory`",
        "storage_mb": "write `override_storage`",
    },
    VerifierConfig: {"kwargs": _OPTIONS, "import_path": _OWN_PLUGIN, "timeout_sec": "write `override_timeout_sec`"},
    AgentConfig: {
        "kwargs": _OPTIONS,
        "import_path": _OWN_PLUGIN,
        "model_name": "the model is one of the agent plugin's `options`, or a variable in `env`",
        "model": "the model is one of the agent plugin's `options`, or a variable in `env`",
        "install_script": "write `install`",
        "run_script": "write `execute`",
        "run": "write `execute`",
        "command": "write `execute`",
        "timeout_sec": "write `override_timeout_sec`",
    },
    MetricConfig: {"kwargs": _OPTIONS, "name": "write `type`"},
    DatasetConfig: {
        "repo": "write `registry: {git: ...}`",
        "ref": "write `version`",
        "download_dir": "set ROLLOUT_CACHE_DIR",
        "url": "write `registry: {url: ...}`",
        "git": "write `registry: {git: ...}`",
    },
    RegistryConfig: {
        "repo": "write `git`",
        "name": "`name` goes beside `registry`",
        "version": "`version` goes beside `registry`",
    },
    RetryConfig: {
        "include_exceptions": "write `include`, with error codes",
        "exclude_exceptions": "write `exclude`, with error codes",
        "max_attempts": "write `max_retries`, which is one less",
        "initial_delay_ms": "write `min_wait_sec`",
        "max_delay_ms": "write `max_wait_sec`",
        "multiplier": "write `wait_multiplier`",
    },
}
"""What to write instead of keys of Harbor and of other programs that mean something else or need another form."""

ITEM_FORMS: dict[type, str] = {AgentConfig: "name", DatasetConfig: "path", MetricConfig: "type", RewardConfig: "type"}
"""The key that a bare text in the list was probably meant for."""
