"""`rollout tasks migrate`: Terminal-Bench 1 tasks (task.yaml) as task folders that run here. The source is not touched.

Harbor's and rLLM's tasks are read as they stand and need none of it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rollout.core.config.document import read_document
from rollout.core.errors import ConfigError, TaskError, UsageError
from rollout.core.tasks.task import CONFIG, INSTRUCTION, load_task

OLD_CONFIG = "task.yaml"
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml")
_NOT_ENVIRONMENT = {OLD_CONFIG, "run-tests.sh", "solution.sh", "solution.yaml", "tests", *_COMPOSE}
_IMAGES = {"python-3-13": "python:3.13-slim-bookworm", "ubuntu-24-04": "ubuntu:24.04"}
"""The base images of Terminal-Bench 1, and the public ones that they were made of; their working directory is /app."""
_BASE = re.compile(r"(?m)^(\s*FROM\s+(?:--\S+\s+)*)ghcr\.io/laude-institute/t-bench/([\w-]+)(?::\S+)?(.*)$", re.IGNORECASE)
_AGENT_SEC, _TEST_SEC = 360.0, 60.0
"""Terminal-Bench's defaults."""

_TEST = """\
#!/bin/bash
# Runs the task's own run-tests.sh; its exit code is the verdict.
export TEST_DIR=/tests T_BENCH_TEST_DIR=/tests
bash /tests/run-tests.sh
if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


class Migrated(NamedTuple):
    """One task that was written."""

    source: Path
    folder: Path
    notes: tuple[str, ...]
    """What somebody should look at."""


def migrate(source: Path, target: Path) -> list[Migrated]:
    """Write every Terminal-Bench 1 task at or below `source` to a folder of the same name below `target`.

    Raises:
        UsageError: there is none, or a folder is there already; nothing was written.
        TaskError: a task cannot be read; those before it were written.
    """
    sources = sorted(_tasks(source))
    if not sources:
        raise UsageError(f"{source}: no {OLD_CONFIG} at it or below it{_read_as_it_stands(source)}")
    taken = [folder for folder in (target / old.name for old in sources) if folder.exists()]
    if taken:
        raise UsageError(f"{taken[0]}: exists already; name another folder with --to")
    return [_migrate(old, target / old.name) for old in sources]


def _tasks(source: Path) -> Iterator[Path]:
    if (source / OLD_CONFIG).is_file():
        yield source.resolve()
    elif source.is_dir():
        for folder in source.iterdir():
            if folder.is_dir() and not folder.is_symlink() and not folder.name.startswith("."):
                yield from _tasks(folder)


def _read_as_it_stands(source: Path) -> str:
    ready = source.is_dir() and any(next(source.rglob(name), None) for name in (CONFIG, "dataset.toml"))
    return "; what is there is read as it stands: name the folder in a job's `datasets`" if ready else ""


def _migrate(old: Path, folder: Path) -> Migrated:
    try:
        said = read_document(old / OLD_CONFIG)
    except ConfigError as error:
        raise TaskError(str(error)) from error
    if not isinstance(said, dict) or not isinstance(said.get("instruction"), str):
        raise TaskError(f"{old / OLD_CONFIG}: has no `instruction`")
    notes: list[str] = []
    environment: dict[str, Any] = {}
    folder.mkdir(parents=True)
    _copy_environment(old, folder / "environment", notes)
    _copy_compose(old, folder / "environment", environment, notes)
    _copy_tests(old, folder / "tests")
    _copy_solution(old, folder / "solution", notes)
    (folder / INSTRUCTION).write_text(said["instruction"].rstrip() + "\n", "utf-8")
    (folder / CONFIG).write_text(_toml(said, environment), "utf-8")
    if said.get("run_tests_in_same_shell"):
        notes.append("ran its tests in the agent's shell; here they get a shell of their own")
    if said.get("parser_name", "pytest") != "pytest":
        notes.append(f"was scored by the parser {said['parser_name']!r}; here run-tests.sh's exit code decides")
    load_task(folder)
    return Migrated(old, folder, tuple(notes))


def _copy_environment(old: Path, target: Path, notes: list[str]) -> None:
    target.mkdir()
    for path in sorted(old.iterdir()):
        if path.name in _NOT_ENVIRONMENT or path.name.startswith(".git"):
            continue
        if path.is_dir():
            shutil.copytree(path, target / path.name, symlinks=True)
        else:
            shutil.copy2(path, target / path.name)
    dockerfile = target / "Dockerfile"
    if not dockerfile.is_file():
        notes.append("has no Dockerfile at its top; write environment/Dockerfile")
        return
    text = dockerfile.read_text("utf-8")
    dockerfile.write_text(_BASE.sub(_base_image, text), "utf-8")
    if re.search(r"(?m)^\s*(COPY|ADD)\s.*\btests/", text) and (old / "tests").is_dir():
        shutil.copytree(old / "tests", target / "tests", symlinks=True)
        notes.append("its Dockerfile copies tests/ into the image, where the agent sees them")


def _base_image(match: re.Match[str]) -> str:
    image = _IMAGES.get(match[2])
    return f"{match[1]}{image}{match[3]}\nWORKDIR /app" if image else match[0]


def _copy_compose(old: Path, target: Path, environment: dict[str, Any], notes: list[str]) -> None:
    """The usual compose file says nothing that a task folder does not; what it says besides is kept."""
    file = next((old / name for name in _COMPOSE if (old / name).is_file()), None)
    if file is None:
        return
    try:
        said = read_document(file)
    except ConfigError as error:
        raise TaskError(str(error)) from error
    services = said.get("services") if isinstance(said, dict) else None
    if not isinstance(services, dict) or not services:
        return
    main_name = "client" if "client" in services else next(iter(services))
    main = services[main_name] if isinstance(services[main_name], dict) else {}
    variables = main.get("environment") or {}
    if isinstance(variables, list):
        variables = dict(str(item).partition("=")[::2] for item in variables)
    own = {str(name): str(value) for name, value in variables.items() if "T_BENCH_" not in str(value) and name != "TEST_DIR"}
    if own:
        environment["env"] = own
    if isinstance(main.get("working_dir"), str):
        environment["workdir"] = main["working_dir"]
    for key in sorted(main.keys() & {"privileged", "cap_add", "devices", "user", "entrypoint", "network_mode"}):
        notes.append(f"its compose file sets {key!r} of {main_name}, which was left out")
    context = main.get("build", {}).get("context", ".") if isinstance(main.get("build"), dict) else main.get("build", ".")
    if context not in (".", "./", None):
        notes.append(f"builds in {context!r}, not at its top; move those files to environment/")
    others = {name: service for name, service in services.items() if name != main_name}
    if others:
        kept = {key: main[key] for key in ("depends_on", "networks") if key in main}
        rest = {key: value for key, value in said.items() if key not in ("services", "version")}
        text = yaml.safe_dump({"services": {"main": kept, **others}, **rest}, sort_keys=False)
        (target / "docker-compose.yaml").write_text(text, "utf-8")
        notes.append(f"has {len(others) + 1} services: {main_name} is now main; look at environment/docker-compose.yaml")


def _copy_tests(old: Path, target: Path) -> None:
    if (old / "tests").is_dir():
        shutil.copytree(old / "tests", target, symlinks=True)
    target.mkdir(exist_ok=True)
    script = old / "run-tests.sh"
    if not script.is_file():
        raise TaskError(f"{script}: missing; it verifies the work")
    shutil.copy2(script, target / "run-tests.sh")
    (target / "test.sh").write_text(_TEST, "utf-8")
    (target / "test.sh").chmod(0o755)


def _copy_solution(old: Path, target: Path, notes: list[str]) -> None:
    if (old / "solution.sh").is_file():
        target.mkdir()
        shutil.copy2(old / "solution.sh", target / "solve.sh")
    elif (old / "solution.yaml").is_file():
        steps = read_document(old / "solution.yaml")
        commands = [str(step["command"]) for step in steps if isinstance(step, dict) and "command" in step]
        target.mkdir()
        (target / "solve.sh").write_text("\n".join(["#!/bin/bash", *commands, ""]), "utf-8")
        notes.append("its solution was typed into a terminal; solution/solve.sh runs the same lines as a script")
    else:
        notes.append("has no solution")
        return
    (target / "solve.sh").chmod(0o755)


def _toml(said: dict[str, Any], environment: dict[str, Any]) -> str:
    known = ("difficulty", "category", "tags", "author_name", "author_email")
    estimates = ("estimated_duration_sec", "expert_time_estimate_min", "junior_time_estimate_min")
    metadata = {key: said[key] for key in (*known, *estimates) if said.get(key) is not None}
    tables: dict[str, dict[str, Any]] = {
        "metadata": metadata,
        "agent": {"timeout_sec": float(said.get("max_agent_timeout_sec") or _AGENT_SEC)},
        "verifier": {"timeout_sec": float(said.get("max_test_timeout_sec") or _TEST_SEC)},
        "environment": {key: value for key, value in environment.items() if key != "env"},
        "environment.env": environment.get("env", {}),
    }
    lines = ['version = "1.0"']
    for name, table in tables.items():
        if table:
            lines += ["", f"[{name}]", *(f"{json.dumps(key)} = {_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """A TOML value. JSON's texts are TOML's, but for DEL."""
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return json.dumps(value).replace("\x7f", "\\u007f")
    return json.dumps(value) if isinstance(value, bool | int | float) else json.dumps(str(value))
