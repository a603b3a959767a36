"""Shell completion, as a shell does it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMPLETE = """
eval "$(rollout completion bash)"
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_rollout_completion rollout
printf '%s\\n' "${COMPREPLY[@]}"
"""


def environ() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "ROLLOUT_PLUGINS": ""}


def rollout(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rollout", *arguments]
    return subprocess.run(command, env=environ(), capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("rollout plug", ["plugins"]),
        ("rollout s", ["show", "schema"]),
        ("rollout plugins sh", ["show"]),
        ("rollout plugins e", ["environments", "executors", "exporters"]),
        ("rollout plugins --j", ["--json"]),
        ("rollout plugins show exec", ["executors"]),
        ("rollout plugins show agents or", ["oracle"]),
        ("rollout plugins show nothing or", [""]),
        ("rollout completion z", ["zsh"]),
    ],
)
def test_bash_offers_what_fits(line: str, offered: list[str]) -> None:
    done = subprocess.run(
        ["bash", "-c", COMPLETE, "bash", *line.split(" ")], env=environ(), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == offered
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_script_asks_the_command_itself(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rollout", "completion", shell],
        env=environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert f"_ROLLOUT_COMPLETE={shell}_complete" in done.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.stdout, text=True, capture_output=True, timeout=60, check=True)


def test_another_shell_is_refused_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rollout", "completion", "tcsh"],
        env=environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
