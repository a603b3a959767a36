"""`rollout datasets list`: what a registry offers, or what a job uses."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from rollout.core.errors import TaskError, UsageError

if TYPE_CHECKING:
    from rollout.core.config.job import DatasetConfig, JobConfig, RegistryConfig
    from rollout.core.types import DatasetInfo


@click.group(name="datasets")
def command() -> None:
    """List the datasets of a registry."""


@command.command(name="list")
@click.argument("source")
@click.option("--ref", help="Branch, tag or commit, when SOURCE is a git repository.")
@click.option("--offline", is_flag=True, help="Use only what was fetched before.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_datasets(source: str, ref: str | None, offline: bool, as_json: bool) -> None:
    """List the datasets of SOURCE.

    SOURCE is a registry.json (a file, an http(s) address, or a git repository that holds one), a folder of tasks, or a job
    file: then its folders of tasks and its registries' datasets are listed.
    """
    try:
        datasets = asyncio.run(_datasets(source, ref, offline))
    except TaskError as error:
        raise UsageError(str(error)) from error
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(datasets), indent=2))
    else:
        _print_table(datasets)


async def _datasets(source: str, ref: str | None, offline: bool) -> list[DatasetInfo]:
    """Whatever SOURCE is: decided by its form, and for a local file by its content."""
    from rollout.core.config.job import RegistryConfig

    here = Path.cwd()
    if source.startswith(("ssh://", "git@", "git+", "file://")) or source.rstrip("/").endswith(".git") or ref is not None:
        return await _of_registry(RegistryConfig(git=source.removeprefix("git+"), ref=ref), here, offline)
    if source.startswith(("http://", "https://")):
        return await _of_registry(RegistryConfig(url=source), here, offline)
    path = Path(source)
    if not path.exists():
        raise UsageError(f"{source}: no such file or folder; give a registry.json, an address, a folder of tasks or a job file")
    if path.is_dir() and not (path / "registry.json").is_file():
        return [_of_folder(path)]
    if path.is_dir() or _is_registry(path):
        return await _of_registry(RegistryConfig(path=str(path.absolute())), here, offline)
    return await _of_job(path, offline)


def _is_registry(path: Path) -> bool:
    """A list, or `{"datasets": [...]}` without agents; anything else is a job file, whose own reader says what is wrong."""
    from rollout.core.config.document import read_document

    document: Any = read_document(path)
    return isinstance(document, list) or (isinstance(document, dict) and "datasets" in document and "agents" not in document)


async def _of_registry(registry: RegistryConfig, base_dir: Path, offline: bool) -> list[DatasetInfo]:
    from rollout.core.plugins import decode_options, find
    from rollout.core.protocols import RegistryContext
    from rollout.core.tasks.cache import cache_dir

    plugin = find("registries", registry.plugin)
    options = decode_options(plugin, registry.plugin_options, "registry")
    context = RegistryContext(base_dir=base_dir, cache_dir=cache_dir(os.environ), offline=offline)
    return list(await plugin.cls(options, context).datasets())


async def _of_job(path: Path, offline: bool) -> list[DatasetInfo]:
    from rollout.core.config.load import load_job

    job = load_job(path)
    config: JobConfig = job.config
    listed: list[DatasetInfo] = []
    seen: list[RegistryConfig] = []
    for dataset in config.datasets:
        if dataset.path is not None:
            listed.append(_of_folder(job.base_dir / Path(os.path.expanduser(dataset.path)), dataset))
        elif dataset.registry is not None and dataset.registry not in seen:
            seen.append(dataset.registry)
            listed += await _of_registry(dataset.registry, job.base_dir, offline)
    return listed


def _of_folder(path: Path, config: DatasetConfig | None = None) -> DatasetInfo:
    from rollout.core.tasks.directory import load_dataset
    from rollout.core.types import DatasetInfo

    dataset = load_dataset(path, split=config.split if config else None, name=config.name if config else None)
    unusable = f" ({len(dataset.invalid)} cannot be used)" if dataset.invalid else ""
    count = len(dataset) + (len(dataset.row_faults) if dataset.rows is not None else len(dataset.invalid))
    return DatasetInfo(name=dataset.name, description=f"{path}{unusable}", task_count=count)


def _print_table(datasets: list[DatasetInfo]) -> None:
    rows = [("NAME", "VERSION", "TASKS", "DESCRIPTION")]
    for dataset in datasets:
        count = "" if dataset.task_count is None else str(dataset.task_count)
        rows.append((dataset.name, dataset.version or "", count, " ".join(dataset.description.split())))
    name, version, tasks = (max(len(row[column]) for row in rows) for column in range(3))
    for row in rows:
        click.echo(f"{row[0]:<{name}}  {row[1]:<{version}}  {row[2]:>{tasks}}  {row[3]}".rstrip())
