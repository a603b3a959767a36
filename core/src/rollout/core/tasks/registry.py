"""registry.json: datasets by name and version, whose tasks are folders of git repositories."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec

from rollout.core.errors import ConfigError, TaskNotFoundError
from rollout.core.tasks.git import GitCache, repository_path
from rollout.core.tasks.git_url import git_address
from rollout.core.tasks.task import name_fault
from rollout.core.types import DatasetInfo, TaskFolder

_MAX_REPOSITORIES_AT_ONCE = 4


class RegistryTask(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a registry's dataset. Other keys are somebody else's and are ignored."""

    name: str | None = None
    """The last part of `path` when unset."""
    git_url: str | None = None
    """https, ssh or file address, or a path relative to the registry; unset means the place the registry itself is in."""
    git_commit_id: str | None = None
    """Commit, tag or branch; HEAD when unset."""
    path: str | None = None
    """Folder in the repository; the repository itself when unset."""

    @property
    def title(self) -> str:
        return self.name or PurePosixPath(self.path or "").name


class RegistryDataset(msgspec.Struct, frozen=True, kw_only=True):
    """One version of one dataset."""

    name: str
    version: str | int | float | None = None
    description: str | None = None
    tasks: list[RegistryTask]

    @property
    def version_text(self) -> str | None:
        return None if self.version is None else str(self.version)


class Origin(NamedTuple):
    """Where a registry comes from, which decides what its addresses may mean."""

    name: str
    """For messages."""
    base_dir: Path | None = None
    """What local paths are relative to; None: the registry was downloaded, and may not name anything on this machine."""
    repository: str | None = None
    """Address of the git repository that holds it."""
    commit: str | None = None


class Registry(NamedTuple):
    """A registry that was read."""

    datasets: list[RegistryDataset]
    origin: Origin

    def infos(self) -> list[DatasetInfo]:
        return [
            DatasetInfo(
                name=dataset.name,
                version=dataset.version_text,
                description=dataset.description or "",
                task_count=len(dataset.tasks),
            )
            for dataset in self.datasets
        ]

    def find(self, name: str, version: str | None) -> RegistryDataset:
        """The dataset of that name and version; without a version (or with an empty one) the first of that name.

        Raises:
            TaskNotFoundError: there is none; the text lists what there is.
            ConfigError: that version is there twice.
        """
        named = [dataset for dataset in self.datasets if dataset.name == name]
        if not named:
            names = list(dict.fromkeys(dataset.name for dataset in self.datasets))
            raise TaskNotFoundError(f"dataset {name!r} not found in {self.origin.name}{_alternatives(name, names)}")
        matching = [dataset for dataset in named if dataset.version_text == version] if version else named[:1]
        if not matching:
            versions = [dataset.version_text or "(no version)" for dataset in named]
            raise TaskNotFoundError(
                f"dataset {name!r} version {version!r} not found in {self.origin.name}{_alternatives(str(version), versions)}"
            )
        if len(matching) > 1:
            raise ConfigError(f"{self.origin.name}: dataset {name!r} version {version!r} is there {len(matching)} times")
        return matching[0]


def registry_of(document: Any, origin: Origin) -> Registry:
    """A registry from its JSON: a list of datasets, or `{"datasets": [...]}`.

    Raises:
        ConfigError: it is something else; the text says where.
    """
    if isinstance(document, dict) and "datasets" in document:
        document = document["datasets"]
    if not isinstance(document, list):
        raise ConfigError(f"{origin.name}: a registry is a list of datasets, each with name, version and tasks")
    try:
        datasets = msgspec.convert(document, list[RegistryDataset])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{origin.name}: {_in_words(error)}") from error
    _refuse_misspelt(document, origin)
    return Registry(datasets, origin)


async def fetch_dataset(
    registry: Registry, name: str, version: str | None, select: Callable[[str], bool], cache: GitCache
) -> list[TaskFolder]:
    """Put the selected tasks of a dataset on this machine, in the registry's order.

    Raises:
        TaskNotFoundError, ConfigError: see `Registry.find` and `GitCache.folders`.
    """
    dataset = registry.find(name, version)
    origin = registry.origin
    _refuse_clashes(dataset, origin)
    chosen = [task for task in dataset.tasks if select(task.title)]
    places = [_place(task, origin) for task in chosen]

    sources: dict[tuple[str, str | None], list[str]] = {}
    for address, revision, path in places:
        if address is not None:
            sources.setdefault((address, revision), []).append(path)
    turn = asyncio.Semaphore(_MAX_REPOSITORIES_AT_ONCE)

    async def fetch(address: str, revision: str | None, paths: Sequence[str]) -> tuple[str, dict[str, Path]]:
        async with turn:
            return await cache.folders(address, revision, paths)

    results = await _all_or_first_error([fetch(*source, paths) for source, paths in sources.items()])
    fetched = dict(zip(sources, results, strict=True))
    folders = []
    for task, (address, revision, path) in zip(chosen, places, strict=True):
        if address is None:
            folders.append(TaskFolder(name=task.title, path=Path(path)))
            continue
        commit, at = fetched[address, revision]
        folders.append(TaskFolder(name=task.title, path=at[path], git_url=address, git_commit_id=commit))
    return folders


def _place(task: RegistryTask, origin: Origin) -> tuple[str | None, str | None, str]:
    """(git address, revision, path in it) of a task, or (None, None, folder) for one beside a local registry."""
    try:
        path = repository_path(task.path or "")
        if task.git_url is not None:
            return git_address(task.git_url, origin.base_dir), task.git_commit_id, path
        if origin.repository is not None:
            return origin.repository, task.git_commit_id or origin.commit, path
    except ConfigError as error:
        raise ConfigError(f"{origin.name}: task {task.title!r}: {error}") from error
    if origin.base_dir is None:
        raise ConfigError(f"{origin.name}: task {task.title!r} has no git_url; a downloaded registry has no folder of its own")
    folder = origin.base_dir / path
    if not folder.resolve().is_relative_to(origin.base_dir.resolve()):
        raise ConfigError(f"{origin.name}: task {task.title!r}: {path} is a link out of the registry's folder")
    if not folder.is_dir():
        raise TaskNotFoundError(f"{origin.name}: task {task.title!r}: no folder {folder}")
    return None, None, str(folder)


def _refuse_clashes(dataset: RegistryDataset, origin: Origin) -> None:
    where = f"{origin.name}: dataset {dataset.name!r}"
    if not dataset.tasks:
        raise TaskNotFoundError(f"{where} has no tasks")
    seen: dict[str, str] = {}
    for index, task in enumerate(dataset.tasks):
        if fault := name_fault(task.title):
            raise ConfigError(f"{where}: tasks[{index}]: {fault}")
        other = seen.setdefault(task.title.casefold(), task.title)
        if other != task.title:
            raise ConfigError(f"{where}: the tasks {other!r} and {task.title!r} differ only in case; rename one of them")
        if len(seen) <= index:
            raise ConfigError(f"{where}: two tasks are called {task.title!r}; rename one of them")


def _refuse_misspelt(document: Iterable[dict[str, Any]], origin: Origin) -> None:
    """A key that nearly is one of ours is a slip: taken for somebody else's, a commit would be ignored in silence."""

    def look(item: dict[str, Any], known: Sequence[str], where: str) -> None:
        for key in item.keys() - set(known):
            unused = [name for name in known if name not in item]
            if close := get_close_matches(str(key).lower().replace("-", "_"), unused, 1, 0.85):
                raise ConfigError(f"{origin.name}: {where}: unknown key {key!r}; did you mean {close[0]!r}?")

    for index, dataset in enumerate(document):
        look(dataset, RegistryDataset.__struct_fields__, f"[{index}]")
        for number, task in enumerate(dataset["tasks"]):
            look(task, RegistryTask.__struct_fields__, f"[{index}].tasks[{number}]")


def _alternatives(wanted: str, there: Sequence[str]) -> str:
    """`; did you mean ...? It has ...`, at most twenty of them."""
    close = get_close_matches(wanted, there, 1)
    listed = ", ".join(there[:20]) + (f" and {len(there) - 20} more" if len(there) > 20 else "")
    return (f"; did you mean {close[0]!r}?" if close else ";") + f" It has {listed or 'no datasets'}"


def _in_words(error: msgspec.ValidationError) -> str:
    message, _, place = str(error).partition(" - at `$")
    return f"{place.rstrip('`') or 'registry'}: {message}"


async def _all_or_first_error(work: Sequence[Any]) -> list[Any]:
    """The results in order; when one fails, the others are cancelled and its error is raised as it is."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
