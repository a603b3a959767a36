"""A task: a folder with an instruction, a configuration, an environment and tests; and everything that can be wrong with one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rollout.core.config.load import load_task_config
from rollout.core.config.task import VERIFIER_KINDS, TaskConfig
from rollout.core.errors import ConfigError, TaskError, TaskNotFoundError
from rollout.core.tasks.dataset_folder import DatasetFolder
from rollout.core.tasks.tree import digest_lines, digest_of, link_fault, walk
from rollout.core.tasks.verifier_declaration import TEST_SCRIPT, DeclaredVerifier, declared_verifier

INSTRUCTION = "instruction.md"
CONFIG = "task.toml"
SOLUTIONS = ("solution/solve.sh", "solve.sh")
"""Where a solution may be, the first that exists wins."""

_MAX_INSTRUCTION_BYTES = 16 * 1024 * 1024
_MAX_NAME = 300


class FolderRow(NamedTuple):
    """A row of a data set whose task is a folder."""

    text: str | None
    """Its instruction; None when it has none, and that of the folder counts."""
    values: dict[str, Any]
    """As metadata."""
    digest: str


@dataclass(frozen=True)
class LoadedTask:
    """One loaded, valid task."""

    name: str
    path: Path
    """The folder on the host, absolute, links resolved."""
    config: TaskConfig
    """Its task.toml over its data set's dataset.toml."""
    verifier: DeclaredVerifier
    dataset: DatasetFolder | None = None
    warnings: tuple[str, ...] = ()
    git_url: str | None = None
    git_commit_id: str | None = None
    row: FolderRow | None = None
    """The row that leads to the folder, where one does."""

    def instruction(self) -> str:
        """The text of instruction.md.

        Raises:
            TaskError: it has become unreadable since the task was loaded.
        """
        try:
            return (self.path / INSTRUCTION).read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise TaskError(f"{self.path / INSTRUCTION}: cannot be read: {error}") from error

    @property
    def environment_dir(self) -> Path | None:
        """The task's `environment/`, or else its data set's, if there is one."""
        folders = (self.path, self.dataset.path) if self.dataset else (self.path,)
        return next((folder / "environment" for folder in folders if (folder / "environment").is_dir()), None)

    @property
    def has_solution(self) -> bool:
        folders = [step_folder(self.path, step.name) for step in self.config.steps] or [self.path]
        return all(any((folder / name).is_file() for name in SOLUTIONS) for folder in folders)

    @property
    def digest(self) -> str:
        """SHA-256 over the whole folder: paths, x bits, contents, link targets. Files are read once, when first asked."""
        return self._digests[0]

    @property
    def environment_digest(self) -> str:
        """SHA-256 over what an image is made of: `environment/` and `docker_image`."""
        return self._digests[1]

    @cached_property
    def _digests(self) -> tuple[str, str]:
        lines = digest_lines(self.path)
        image = (self.config.environment.docker_image or "").encode("utf-8", "surrogateescape")
        environment = [line for line in lines if line.startswith((b"environment/", b"environment\0"))]
        directory = self.environment_dir
        if not environment and directory is not None:
            environment = [b"environment/" + line for line in digest_lines(directory)]
        return digest_of(lines), digest_of([*environment, b"docker_image\0" + image])


class Fault(NamedTuple):
    """One thing that makes a task unusable."""

    file: str
    """Relative to the task."""
    message: str
    located: bool = False
    """The message already names the file (and the line)."""


def load_task(
    path: Path,
    *,
    name: str | None = None,
    dataset: DatasetFolder | None = None,
    git_url: str | None = None,
    git_commit_id: str | None = None,
) -> LoadedTask:
    """Read and check one task. `name` is the folder's unless a registry says otherwise.

    Raises:
        TaskNotFoundError: there is no such folder.
        TaskError: one line per fault, each with the file.
    """
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "does not exist"
        raise TaskNotFoundError(f"{path}: {what}; a task is a folder with {CONFIG}, {INSTRUCTION} and {TEST_SCRIPT}")
    root = Path(os.path.realpath(path))
    name = name or root.name
    config, verifier, warnings, faults = examine(root, dataset)
    if fault := name_fault(name):
        faults.insert(0, Fault("", fault))
    if config is None or verifier is None or faults:
        raise TaskError("\n".join(_fault_lines(path, faults)))
    return LoadedTask(name, root, config, verifier, dataset, tuple(warnings), git_url, git_commit_id)


class Examined(NamedTuple):
    """A task folder's parts, as far as they can be used, what is doubtful, and all its faults."""

    config: TaskConfig | None
    verifier: DeclaredVerifier | None
    warnings: list[str]
    faults: list[Fault]


def examine(root: Path, dataset: DatasetFolder | None = None) -> Examined:
    """Look at a task folder. Without a configuration or a verifier there is a fault."""
    faults: list[Fault] = []
    warnings: list[str] = []
    config: TaskConfig | None = None
    try:
        faults += _tree_faults(root)
    except OSError as error:
        return Examined(
            None, None, [], [Fault(os.path.relpath(error.filename or root, root), f"cannot be read: {error.strerror}")]
        )
    if any(fault.file in (CONFIG, INSTRUCTION) for fault in faults):
        return Examined(None, None, [], faults)

    try:
        if not (root / CONFIG).is_file():
            faults.append(Fault(CONFIG, "missing; an empty file will do"))
        else:
            config, config_warnings = load_task_config(root / CONFIG, dataset.config if dataset else None)
            warnings += config_warnings
    except ConfigError as error:
        faults.append(Fault(CONFIG, str(error), located=True))
    steps = config.steps if config is not None else []
    if not steps:
        faults = _instruction_faults(root, INSTRUCTION) + faults
    if config is not None:
        faults += [Fault(CONFIG, f"needs {wanted}, which Rollout does not do") for wanted in config.unsupported()]
    verifier = DeclaredVerifier("script") if steps else None
    for step in steps:
        faults += _step_faults(root, step.name)
    if steps and config is not None and config.verifier.declared:
        named = next(kind for kind in VERIFIER_KINDS if getattr(config.verifier, kind) is not None)
        warnings.append(f"verifier.{named}: is not used: a task with steps is verified by the tests/test.sh of each step")
    try:
        if not steps and (config is not None or not (root / TEST_SCRIPT).is_file()):
            folder = dataset.path if dataset else root
            verifier = declared_verifier((config or TaskConfig()).verifier, root, folder, dataset.config if dataset else None)
            if verifier is None:
                faults.append(Fault(TEST_SCRIPT, "missing; it verifies the work and writes /logs/verifier/reward.txt"))
    except TaskError as error:
        faults.append(Fault(CONFIG, str(error)))
    environment = root / "environment"
    if not environment.is_dir():
        if os.path.lexists(environment):
            faults.append(Fault("environment", "is not a folder"))
        elif config is not None and config.environment.docker_image is None and _needs_image(dataset, verifier):
            warnings.append("no environment/ and no docker_image: only a backend that needs neither can run it")
    return Examined(config, verifier, warnings, faults)


def _needs_image(dataset: DatasetFolder | None, verifier: DeclaredVerifier | None) -> bool:
    """Whether a task without an environment of its own may miss one."""
    inherits = dataset is not None and (dataset.path / "environment").is_dir()
    return not inherits and (verifier is None or verifier.plugin == "script")


def name_fault(name: str) -> str | None:
    """What is wrong with a task's or a dataset's name, if anything."""
    if not name.strip():
        return "a name must not be empty"
    if len(name) > _MAX_NAME:
        return f"the name {name[:40]!r}... has {len(name)} characters; {_MAX_NAME} are allowed"
    if not name.isprintable():
        return f"the name {name!r} has characters that cannot be printed"
    return None


def _fault_lines(path: Path, faults: Sequence[Fault]) -> list[str]:
    return [fault.message if fault.located else f"{path / fault.file}: {fault.message}" for fault in faults]


def _tree_faults(root: Path) -> list[Fault]:
    faults = []
    for entry in walk(root):
        if entry.kind == "special":
            faults.append(Fault(entry.path, "is neither a file, a folder nor a link"))
        elif entry.kind == "link" and (fault := link_fault(root, entry.path)):
            faults.append(Fault(entry.path, fault))
    return sorted(faults)


def step_folder(root: Path, name: str) -> Path:
    """Where the files of a step are."""
    return root / "steps" / name


def _step_faults(root: Path, name: str) -> list[Fault]:
    folder = step_folder(root, name)
    if not folder.is_dir():
        return [Fault(f"steps/{name}", "missing; it holds the step's instruction.md and tests/")]
    faults = _instruction_faults(root, f"steps/{name}/{INSTRUCTION}")
    if not any((place / TEST_SCRIPT).is_file() for place in (folder, root)):
        faults.append(Fault(f"steps/{name}/{TEST_SCRIPT}", "missing, and the task has none for all its steps either"))
    return faults


def _instruction_faults(root: Path, name: str) -> list[Fault]:
    path = root / name

    def fault(message: str) -> list[Fault]:
        return [Fault(name, message)]

    try:
        if not path.is_file():
            return fault("missing; it holds the task's instruction")
        if path.stat().st_size > _MAX_INSTRUCTION_BYTES:
            return fault(f"is larger than {_MAX_INSTRUCTION_BYTES // 1024**2} MiB")
        data = path.read_bytes()
    except OSError as error:
        return fault(f"cannot be read: {error.strerror}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return fault(f"line {line} is not UTF-8 (byte 0x{data[error.start]:02x})")
    if "\0" in text:
        return fault("holds a NUL character; it must be text")
    return [] if text.strip() else fault("is empty; write the task's instruction")
