"""Job files and task.toml as checked Structs: precedence, dialects, and faults in one line with file, line and key."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from rollout.core.config.dataset import DatasetFile, DatasetTable
from rollout.core.config.dialects import ALIASES
from rollout.core.config.document import open_document
from rollout.core.config.job import JobConfig
from rollout.core.config.place import PlacePath, dotted
from rollout.core.config.shape import Fault, Shape
from rollout.core.config.sources import Tree
from rollout.core.config.task import VERIFIER_KINDS, TaskConfig
from rollout.core.errors import ConfigError

_MAX_MESSAGE = 460
_AT = re.compile(r"(?P<problem>.*?)(?: - at `(?P<path>\$[^`]*)`)?", re.DOTALL)
_PART = re.compile(r"\.([^.\[]+)|\[([0-9]+)\]")
_Config = TypeVar("_Config", bound=msgspec.Struct)


class JobFile(NamedTuple):
    """A job as it will be run, and what it was made of."""

    config: JobConfig
    path: Path | None
    base_dir: Path
    """Absolute; relative paths of the job are relative to it."""
    origins: dict[str, str]
    """Every value's path (`agents[0].env.X`) to where it came from: `job.yaml:12`, `ROLLOUT_JOBS_DIR`, `--set`, `default`."""
    warnings: tuple[str, ...]


def load_job(path: Path, *, sets: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> JobFile:
    """Read a job file and lay `ROLLOUT_*` and `--set` over it, in this order.

    Variables in `env:` stay `${NAME}`; whether they are set is looked at when the job is planned.

    Raises:
        ConfigError: one line; all unknown keys and wrong values of the file are in it.
    """
    tree = Tree(open_document(path))
    where = str(tree.source(()).name)
    if tree.value is None:
        raise ConfigError(f"{where}: is empty; a job needs `agents` and `datasets`")
    if not isinstance(tree.value, dict):
        what = "a list" if isinstance(tree.value, list) else "a single value"
        hint = "; a registry is named in a job, under `datasets`" if isinstance(tree.value, list) else ""
        raise ConfigError(f"{where}: is {what}; a job is a mapping with `agents` and `datasets`{hint}")
    tree.overlay_variables(environ)
    tree.overlay_sets(sets)
    shape = Shape(tree, lenient=False)
    config = _convert(shape, tree, JobConfig)
    _refuse_shared_names(config, tree)
    origins = {dotted(leaf): _origin(tree, leaf, where, path.name) for leaf in _leaves(msgspec.to_builtins(config), ())}
    warnings = tuple(_message(tree, fault) for fault in shape.warnings)
    return JobFile(config, path, path.absolute().parent, origins, warnings)


def load_task_config(path: Path, dataset: DatasetFile | None = None) -> tuple[TaskConfig, tuple[str, ...]]:
    """Read a task.toml, and what is doubtful about it. Unknown keys are doubtful, not wrong: tasks are written by others.

    What it leaves unsaid of `[agent]`, `[verifier]` and `[environment]` is taken from its data set, key by key. A verifier
    that it declares itself replaces the data set's.

    Raises:
        ConfigError: it cannot be read, or a value is of the wrong type; one line.
    """
    tree = Tree(open_document(path))
    shape = Shape(tree, lenient=True)
    config = _convert(shape, tree, TaskConfig)
    warnings = [f"{dotted(fault.path)}: {fault.problem}" for fault in shape.warnings]
    if not {"version", "schema_version"} & tree.value.keys():
        warnings.append('`version` is missing; write version = "1.0"')
    elif not re.fullmatch(r"1(\.[0-9]+)*", config.version):
        warnings.append(f"version: {config.version[:40]!r} is not 1.x, which is what is read")
    return _over_dataset(config, tree.value, dataset), tuple(warnings)


def load_dataset_file(path: Path) -> tuple[DatasetFile, tuple[str, ...]]:
    """Read a dataset.toml, and what is doubtful about it.

    Raises:
        ConfigError: it cannot be read, or a value is of the wrong type; one line.
    """
    tree = Tree(open_document(path))
    shape = Shape(tree, lenient=True)
    config = _convert(shape, tree, DatasetFile)
    warnings = tuple(f"{dotted(fault.path)}: {fault.problem}" for fault in shape.warnings)
    under = tree.value.get("dataset", {}).keys() & set(DatasetTable.__struct_fields__)
    return msgspec.structs.replace(config, **{key: getattr(config.dataset, key) for key in under}), warnings


def _over_dataset(config: TaskConfig, given: Mapping[str, Any], dataset: DatasetFile | None) -> TaskConfig:
    if dataset is None:
        return config
    agent = _over(dataset.agent, config.agent, given.get("agent"))
    environment = _over(dataset.environment, config.environment, given.get("environment"))
    defaults = dataset.verifier
    if config.verifier.declared:
        defaults = msgspec.structs.replace(defaults, **dict.fromkeys(VERIFIER_KINDS), function="evaluate")
    verifier = _over(defaults, config.verifier, given.get("verifier"))
    return msgspec.structs.replace(config, agent=agent, environment=environment, verifier=verifier)


def _over(defaults: _Config, config: _Config, given: Mapping[str, Any] | None) -> _Config:
    """`config` where it was given, `defaults` elsewhere."""
    struct = type(config)
    aliases = {name: str(alias.path[0]) for name, alias in ALIASES.get(struct, {}).items()}
    keys = {aliases.get(key, key) for key in given or ()} & set(struct.__struct_fields__)
    said = {key: getattr(config, key) for key in keys}
    if "env" in said:
        said["env"] = {**msgspec.structs.asdict(defaults)["env"], **said["env"]}
    return msgspec.structs.replace(defaults, **said)


def _convert(shape: Shape, tree: Tree, struct: type[_Config]) -> _Config:
    value = shape.struct(struct)
    if shape.faults:
        raise ConfigError(_all_in_one(tree, shape.faults))
    try:
        return msgspec.convert(value, struct)
    except msgspec.ValidationError as error:
        raise ConfigError(_message(tree, _fault_of(error))) from error


def _fault_of(error: msgspec.ValidationError) -> Fault:
    match = _AT.fullmatch(str(error))
    assert match is not None
    path: PlacePath = tuple(name or int(index) for name, index in _PART.findall(match["path"] or ""))
    return Fault(path, match["problem"])


def _message(tree: Tree, fault: Fault) -> str:
    source = tree.source(fault.path)
    key = f"{dotted(fault.path)}: " if fault.path and source.path != fault.path else ""
    return f"{source}: {key}{fault.problem}"


def _all_in_one(tree: Tree, faults: Sequence[Fault]) -> str:
    """All faults on one line, in the order of the file, as far as the line is readable."""
    ordered = sorted(faults, key=lambda fault: tree.source(fault.path).line or 0)
    text = _message(tree, ordered[0])
    if len(text) > _MAX_MESSAGE:
        text = f"{text[:_MAX_MESSAGE]}..."
    main = tree.source(ordered[0].path).name
    for done, fault in enumerate(ordered[1:], start=1):
        source = tree.source(fault.path)
        place = (f"line {source.line}: " if source.line else "") if source.name == main else f"{source}: "
        more = f"{dotted(fault.path)}: {fault.problem}" if fault.path else fault.problem
        addition = f" | {place}{more}"
        if len(text) + len(addition) > _MAX_MESSAGE:
            return f"{text} | and {len(ordered) - done} more"
        text += addition
    return text


def _refuse_shared_names(config: JobConfig, tree: Tree) -> None:
    first: dict[str, int] = {}
    for index, agent in enumerate(config.agents):
        other = first.setdefault(agent.name, index)
        if other != index:
            line = tree.source(("agents", other, "name")).line
            where = f"agents[{other}]{f' (line {line})' if line else ''}"
            problem = f"{agent.name[:60]!r} is the name of {where} too, and results are kept by name; rename one and set `type`"
            raise ConfigError(_message(tree, Fault(("agents", index, "name"), problem)))


def _leaves(value: Any, path: PlacePath) -> Iterator[PlacePath]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield path


def _origin(tree: Tree, path: PlacePath, where: str, name: str) -> str:
    source = tree.given(path)
    if source is None:
        return "default"
    if source.name == where:
        return f"{name}:{source.line}" if source.line else name
    return source.name.partition(" ")[0]
