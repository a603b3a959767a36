"""What `rollout tasks check` looks for: everything that stops a task from being used, and what will surprise its author."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from rollout.core.config.load import load_task_config
from rollout.core.errors import TaskError, TaskNotFoundError
from rollout.core.tasks.check_dataset import Place, check_dataset, check_verifier, line_of_key
from rollout.core.tasks.dataset_folder import DATASET, DatasetFolder
from rollout.core.tasks.directory import LoadedDataset, load_dataset
from rollout.core.tasks.task import CONFIG, INSTRUCTION, SOLUTIONS, LoadedTask, examine
from rollout.core.tasks.tree import walk
from rollout.core.tasks.verifier_declaration import TEST_SCRIPT
from rollout.core.types import Struct, TaskOutline

NO_SOLUTION = "no-solution"
"""Code of a finding: the task has no solution."""

Severity = Literal["error", "warning"]

_MAX_SCANNED_BYTES = 1024 * 1024
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_ENVIRONMENT_FILES = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml", "compose.yaml", "image.def")
_SECRET_PLACES = re.compile(rb"""(?<![\w./$}*-])/(?:solution|oracle)(?=/|["'\s;)]|$)""")
_NEEDS_NETWORK = re.compile(rb"^\s*(?:sudo )?(apt-get|apt|curl|wget|uvx|uv|pip3?|npm|apk|dnf|git clone)\b(?! --version)", re.M)


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that is wrong or odd."""

    severity: Severity
    code: str
    """Stable name of the check, for instance `crlf`."""
    task: str
    file: str
    """Path of the file or folder, below the path that was checked as it was given."""
    line: int | None = None
    message: str

    def __str__(self) -> str:
        return f"{self.file}{f':{self.line}' if self.line else ''}: {self.severity}: {self.message}"


class Checked(NamedTuple):
    """What came of checking."""

    tasks: int
    findings: list[Finding]
    usable: int = 0
    """How many of the tasks can be run."""

    @property
    def errors(self) -> int:
        return sum(finding.severity == "error" for finding in self.findings)


def check_paths(paths: Sequence[Path]) -> Checked:
    """Check every task in folders of tasks, or single tasks.

    Raises:
        TaskNotFoundError: there is no task at one of the paths.
    """
    tasks = usable = 0
    findings: list[Finding] = []
    for path in paths:
        try:
            dataset = load_dataset(path)
        except TaskNotFoundError:
            raise
        except TaskError as unusable:
            findings.append(_located(str(unusable), path))
            continue
        tasks += len(dataset) + (len(dataset.row_faults) if dataset.rows is not None else len(dataset.invalid))
        usable += len(dataset)
        findings += _of_dataset(dataset)
        if dataset.rows is not None:
            continue
        root = path.resolve()
        known: set[tuple[str, int | None, str]] = set()
        for task in dataset.tasks:
            shown = path / task.path.relative_to(root) if task.path.is_relative_to(root) else task.path
            # What is wrong with what tasks share is said once.
            new = {(found.file, found.line, found.message): found for found in check_task(task, shown)}
            findings += [found for place, found in new.items() if place not in known]
            known.update(new)
        for folder, error in dataset.invalid:
            findings += _faults(folder, dataset.folder) or [
                Finding(severity="error", code="dataset", task=folder.name, file=str(folder), message=_after(str(error), folder))
            ]
    return Checked(tasks, findings, usable)


def _of_dataset(dataset: LoadedDataset) -> Iterator[Finding]:
    """What is odd about the data set as a whole, and what is wrong with its rows."""
    for place in check_dataset(dataset):
        yield _finding_at(place, dataset.name)
    if dataset.rows is not None:
        for file, error in dataset.invalid:
            match = re.match(r":(\d+): (.*)", str(error).removeprefix(str(file)), re.DOTALL)
            line, message = (int(match[1]), match[2]) if match else (None, str(error).removeprefix(f"{file}: "))
            yield Finding(severity="error", code="row", task=dataset.name, file=str(file), line=line, message=message)


def _finding_at(place: Place, task: str) -> Finding:
    severity: Severity = "error" if place.severity == "error" else "warning"
    return Finding(severity=severity, code=place.code, task=task, file=str(place.file), line=place.line, message=place.message)


def _located(message: str, path: Path) -> Finding:
    """A data set that cannot be read at all; its message starts with the file, and the line if that is known."""
    match = re.match(r"(?P<file>[^:]+)(?::(?P<line>\d+))?(?::\d+)?: (?P<what>.*)", message, re.DOTALL)
    if match is None:
        return Finding(severity="error", code="dataset", task=path.name, file=str(path), message=message)
    line = int(match["line"]) if match["line"] else None
    return Finding(severity="error", code="dataset", task=path.name, file=match["file"], line=line, message=match["what"])


def check_task(task: LoadedTask, shown: Path | None = None) -> list[Finding]:
    """What is odd about a task that can be used. `shown` is how its folder is called in the findings."""
    return list(_Inspection(task, shown or task.path))


class _Inspection:
    """The checks of one task, each a method that yields findings."""

    def __init__(self, task: LoadedTask, shown: Path) -> None:
        self._task = task
        self._shown = shown
        self._root = task.path
        self._files = sorted(entry for entry in walk(task.path) if entry.kind == "file")

    def __iter__(self) -> Iterator[Finding]:
        yield from self._configuration()
        yield from self._scripts()
        yield from self._environment()
        yield from self._tests()
        yield from self._solution()
        yield from self._lfs()

    def _finding(self, code: str, file: str, message: str, line: int | None = None, severity: Severity = "warning") -> Finding:
        return Finding(
            severity=severity, code=code, task=self._task.name, file=str(self._shown / file), line=line, message=message
        )

    def _read(self, file: str) -> bytes:
        """The file's content when it is small enough to be a script or text; empty otherwise."""
        path = self._root / file
        return path.read_bytes() if path.is_file() and path.stat().st_size <= _MAX_SCANNED_BYTES else b""

    def _below(self, folder: str) -> Iterable[str]:
        return (entry.path for entry in self._files if entry.path.startswith(f"{folder}/"))

    def _configuration(self) -> Iterator[Finding]:
        source = self._read(CONFIG).decode("utf-8", "replace")
        _, in_config = load_task_config(self._root / CONFIG)
        for warning in in_config:
            yield self._finding("task.toml", CONFIG, warning, line_of_key(source, warning.partition(":")[0]))
        for warning in self._task.warnings[len(in_config) :]:
            yield self._finding("task", "", warning)

    def _scripts(self) -> Iterator[Finding]:
        started = {TEST_SCRIPT, *SOLUTIONS}
        for path, _, executable in self._files:
            is_started = path in started
            if not is_started and not path.endswith((".sh", ".bash")):
                continue
            content = self._read(path)
            if b"\r\n" in content:
                line = content.count(b"\n", 0, content.index(b"\r\n")) + 1
                severity: Severity = "error" if is_started else "warning"
                yield self._finding("crlf", path, "has Windows line ends, which shells take as part of a word", line, severity)
            if is_started and not content.startswith(b"#!"):
                yield self._finding("no-shebang", path, "no shebang: it is started with bash; write #!/bin/bash first", 1)
            elif is_started and not executable:
                yield self._finding("not-executable", path, "not executable: others start it directly; chmod +x")

    def _environment(self) -> Iterator[Finding]:
        has_file = any((self._root / "environment" / name).is_file() for name in _ENVIRONMENT_FILES)
        if self._task.environment_dir is not None and not has_file and self._task.config.environment.docker_image is None:
            yield self._finding("no-dockerfile", "environment", "no Dockerfile here and no docker_image in task.toml")

    def _tests(self) -> Iterator[Finding]:
        tests = list(self._below("tests"))
        for step in self._task.config.steps:
            tests += self._below(f"steps/{step.name}/tests")
        dataset = self._task.dataset
        outline = TaskOutline(directory=self._shown, dataset_directory=dataset.path if dataset else None)
        files = [self._shown / CONFIG, *((dataset.path / DATASET,) if dataset else ())]
        for place in check_verifier(self._task.verifier, outline, files):
            yield _finding_at(place, self._task.name)
        # A test may leave the reward to a program that the environment brings along.
        scripted = self._task.verifier.plugin == "script"
        if scripted and not any(b"reward" in self._read(path).lower() for path in [*tests, *self._below("environment")]):
            yield self._finding("no-reward", TEST_SCRIPT, "nothing writes /logs/verifier/reward.txt or reward.json")
        for path in tests:
            content = self._read(path)
            if b"\0" not in content and (line := _line_of(content, _SECRET_PLACES)):
                message = "the solution is not in the environment while tests run, unless the oracle put it there"
                yield self._finding("solution-in-tests", path, message, line)
        own = self._task.config.verifier.network_mode
        mode = self._task.config.environment.network_mode if own is None else own
        cut_off = mode in ("no-network", "none") or (mode is None and self._task.config.environment.allow_internet is False)
        if cut_off and (line := _line_of(self._read(TEST_SCRIPT), _NEEDS_NETWORK)):
            yield self._finding("network", TEST_SCRIPT, "downloads something, and task.toml cuts the network off", line)

    def _solution(self) -> Iterator[Finding]:
        if not self._task.has_solution:
            yield self._finding(
                NO_SOLUTION, "", "no solution/solve.sh: the oracle agent cannot prove that the task can be solved"
            )

    def _lfs(self) -> Iterator[Finding]:
        for entry in self._files:
            path = self._root / entry.path
            if path.stat().st_size < 1024 and path.read_bytes().startswith(_LFS_POINTER):
                yield self._finding(
                    "lfs-pointer", entry.path, "a Git LFS pointer instead of the file; install git-lfs and fetch it"
                )


def _faults(folder: Path, dataset: DatasetFolder | None = None) -> list[Finding]:
    """The faults of a task that cannot be loaded, each with its place."""
    try:
        faults = examine(folder, dataset).faults
    except TaskNotFoundError:
        return []
    findings = []
    for fault in faults:
        file = folder / fault.file
        message = _after(fault.message, file)
        line = re.match(r"(?:line )?(\d+)(?::\d+)?:? +", message)
        if line is None and fault.file == INSTRUCTION:
            line = re.match(r"line (\d+) ", message)
        code = fault.file if fault.file in (CONFIG, INSTRUCTION, TEST_SCRIPT) else "task"
        findings.append(
            Finding(
                severity="error",
                code=code.rpartition("/")[2],
                task=folder.name,
                file=str(file),
                line=int(line[1]) if line else None,
                message=message[line.end() :] if line and fault.located else message,
            )
        )
    return findings


def _after(message: str, path: Path) -> str:
    """The message without the path that the finding names anyway."""
    for prefix in (f"{path}:", f"{path.name}:"):
        if message.startswith(prefix):
            return message[len(prefix) :].lstrip()
    return message


def _line_of(content: bytes, pattern: re.Pattern[bytes]) -> int | None:
    found = pattern.search(content)
    return content.count(b"\n", 0, found.end()) + 1 if found else None
