"""What a dataset.toml may say. Keys may stand at the top or under `[dataset]`; what is under `[dataset]` wins."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from rollout.core.config.task import TaskAgentConfig, TaskEnvironmentConfig, TaskVerifierConfig
from rollout.core.types import Struct


class EvaluationConfig(Struct, frozen=True, kw_only=True):
    """`[evaluation]`, the older way to name the data set's verifier."""

    module: str
    """The Python file: `tests.evaluate` or `tests/evaluate.py`."""
    function: str = "evaluate"


class DatasetTable(Struct, frozen=True, kw_only=True):
    """`[dataset]`."""

    name: Annotated[str, Meta(min_length=1, max_length=300)] | None = None
    """The folder's name when unset."""
    type: Literal["simple", "sandbox"] | None = None
    """`simple`: rows. `sandbox`: a folder per task. When unset, rows if there are any."""
    version: str = "1.0"
    """Version of the data."""
    description: str = ""
    category: str = ""
    """Free text; `vlm` gives agents the images that a row names."""
    split: str = "test"
    """Which `data/<split>.jsonl` is read unless the job says otherwise."""
    data: str | None = None
    """The file of rows, relative to the data set, instead of `data/<split>.jsonl`."""
    template: Literal["v1", "strict"] = "v1"
    """How instruction.md.tpl is rendered. `v1`: a field that a row lacks is empty. `strict`: it is an error."""
    instruction_field: str | None = None
    """The field of a row that holds its instruction."""
    metadata_fields: list[str] = []
    """The fields of a row that verifiers see; all when empty."""
    default_agent: str | None = None
    """The agent of a job that names none."""
    default_sandbox: str | None = None
    """The environment type of a job that names none."""
    tasks: list[Any] = []
    """The task folders, in this order: their paths, or tables with `path`. All folders with a task.toml when empty."""
    evaluation: EvaluationConfig | None = None


class DatasetFile(DatasetTable, frozen=True, kw_only=True):
    """A dataset.toml. Every key is optional; an unknown one is a warning, because data sets are written by others."""

    dataset: DatasetTable = DatasetTable()
    agent: TaskAgentConfig = TaskAgentConfig()
    """Defaults of every task's `[agent]`."""
    verifier: TaskVerifierConfig = TaskVerifierConfig()
    """Defaults of every task's `[verifier]`, key by key."""
    environment: TaskEnvironmentConfig = TaskEnvironmentConfig()
    """Defaults of every task's `[environment]`, key by key."""

    @property
    def task_paths(self) -> list[str]:
        """The folders that `tasks` lists."""
        return [entry["path"] if isinstance(entry, dict) else entry for entry in self.tasks]

    def __post_init__(self) -> None:
        for index, entry in enumerate((*self.tasks, *self.dataset.tasks)):
            path = entry.get("path") if isinstance(entry, dict) else entry
            if not isinstance(path, str) or not path.strip():
                raise ValueError(f"tasks[{index}]: write a path, or a table with `path`")
