"""`rollout schema job|task|result`: the formats as JSON Schema, for editors and for programs that write or read them."""

from __future__ import annotations

import json

import click


@click.command("schema")
@click.argument("what", metavar="FORMAT", type=click.Choice(["job", "task", "result"]))
def command(what: str) -> None:
    """Print the JSON Schema of a FORMAT: job (job.yaml), task (task.toml) or result (a trial's result.json)."""
    from rollout.core.config.describe import schema
    from rollout.core.config.job import JobConfig
    from rollout.core.config.task import TaskConfig
    from rollout.core.records import TrialResult
    from rollout.core.types import Struct

    structs: dict[str, type[Struct]] = {"job": JobConfig, "task": TaskConfig, "result": TrialResult}
    click.echo(json.dumps(schema(structs[what]), indent=2, ensure_ascii=False))
