"""The formats as rows for the docs and as JSON Schema."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rollout.core.config.describe import fields, schema
from rollout.core.config.job import JobConfig
from rollout.core.config.task import TaskConfig
from rollout.core.records import TrialResult
from rollout.core.types import Struct


def test_every_key_of_a_job_is_a_row_with_its_docstring() -> None:
    rows = {row.path: row for row in fields(JobConfig)}
    assert rows["jobs_dir"].doc == "Where results go; relative to the working directory."
    assert (rows["jobs_dir"].type, rows["jobs_dir"].default) == ("text", '"jobs"')
    assert rows["n_attempts"].type == "integer >= 1"
    assert rows["datasets"].default is None
    assert rows["agents[].env"].type == "map of text"
    assert rows["datasets[].registry.url"].doc == "A registry.json behind http(s)."
    assert list(rows).index("environment") + 1 == list(rows).index("environment.type")


@pytest.mark.parametrize("struct", [JobConfig, TaskConfig, TrialResult])
def test_the_schema_has_every_key_and_its_description(struct: type[Struct]) -> None:
    found: dict[str, Any] = schema(struct)
    assert found["$ref"] == f"#/$defs/{struct.__name__}"
    properties = found["$defs"][struct.__name__]["properties"]
    assert list(properties) == [field.encode_name for field in msgspec.structs.fields(struct)]
    assert all(definition["description"] for name, definition in found["$defs"].items() if name == struct.__name__)
    described = {row.path: row.doc for row in fields(struct)}
    for name, definition in properties.items():
        assert definition.get("description", described[name]) == described[name]


def test_rows_of_blocks_say_what_the_block_is() -> None:
    rows = {row.path: row for row in fields(JobConfig)}
    assert rows["retry"].doc == "`retry:` another try for trials that errored. Every try's record is kept."
    assert rows["environment"].type == "block"
    assert rows["metrics"].type == "list of blocks"
