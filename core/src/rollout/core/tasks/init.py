"""A new task that works as it stands: the oracle solves it, doing nothing does not."""

from __future__ import annotations

from pathlib import Path

from rollout.core.errors import UsageError
from rollout.core.tasks.task import name_fault

_INSTRUCTION = """\
Create the file `/app/hello.txt`. It must hold the line `Hello, world!` and nothing else.
"""

_CONFIG = """\
version = "1.0"

[metadata]
difficulty = "easy"
category = "programming"
tags = []

[agent]
timeout_sec = 600.0

[verifier]
timeout_sec = 120.0

[environment]
build_timeout_sec = 600.0
cpus = "1"
memory = "2G"
storage = "10G"
"""

_DOCKERFILE = """\
FROM debian:bookworm-slim
WORKDIR /app
"""

_SOLUTION = """\
#!/bin/sh
# What the oracle agent runs: it proves that the task can be solved.
set -eu

echo 'Hello, world!' > /app/hello.txt
"""

_TEST = """\
#!/bin/sh
# Decides the reward: a number in /logs/verifier/reward.txt, or several in /logs/verifier/reward.json.

if [ "$(cat /app/hello.txt)" = 'Hello, world!' ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
"""

_FILES = {
    "instruction.md": _INSTRUCTION,
    "task.toml": _CONFIG,
    "environment/Dockerfile": _DOCKERFILE,
    "solution/solve.sh": _SOLUTION,
    "tests/test.sh": _TEST,
}


def init_task(name: str, parent: Path) -> Path:
    """Make the folder `parent/name` with a small working task in it.

    Raises:
        UsageError: the name is no folder's name, the folder is there already, or it cannot be written.
    """
    if fault := name_fault(name):
        raise UsageError(f"{fault}; a task's name is its folder's")
    if Path(name).name != name or name.startswith((".", "-")):
        raise UsageError(f"{name!r} cannot be a task's folder; `--dir` says where to put it")
    folder = parent / name
    try:
        folder.mkdir(parents=True)
        for path, text in _FILES.items():
            file = folder / path
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, "utf-8")
            if text.startswith("#!"):
                file.chmod(0o755)
    except FileExistsError as error:
        raise UsageError(f"{error.filename} is there already; nothing was changed") from error
    except OSError as error:
        raise UsageError(f"cannot write {error.filename}: {error.strerror}") from error
    return folder
