"""Small job folders for integration tests: tasks that need nothing but a shell, and a way to run the real command on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ssh_machines
from require import APPTAINER, DOCKER_IMAGE

WRITE_ONE = "echo 1 > /logs/verifier/reward.txt\n"
CHECK_ANSWER = """#!/bin/bash
if [ "$(cat /app/answer.txt 2>/dev/null)" = "42" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
SOLVE = "#!/bin/bash\necho 42 > /app/answer.txt\n"


def write_task(
    folder: Path,
    *,
    instruction: str = "Write 42 to /app/answer.txt.\n",
    tests: str = CHECK_ANSWER,
    solution: str = SOLVE,
    toml: str = "",
) -> Path:
    """A task folder; `toml` is added to a minimal task.toml."""
    for name, text in {
        "instruction.md": instruction,
        "task.toml": f'version = "1.0"\n{toml}',
        "environment/Dockerfile": "FROM debian:trixie-slim\nWORKDIR /app\n",
        "tests/test.sh": tests,
        "solution/solve.sh": solution,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def write_job(folder: Path, job: dict[str, Any]) -> Path:
    """A job file (JSON is a job file too) beside its tasks, with `type: local` unless it says otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    defaults: dict[str, Any] = {"environment": {"type": "local"}, "agents": [{"name": "oracle"}], "datasets": [{"path": "tasks"}]}
    path = folder / "job.json"
    path.write_text(json.dumps({**defaults, **job}))
    return path


def environment_of(kind: str, folder: Path) -> dict[str, Any]:
    """`environment:` of a job in `folder`, on what tests/components make ready for this type."""
    options: dict[str, dict[str, Any]] = {
        "docker": {"pull": "never"},
        "apptainer": {
            "program": str(APPTAINER / "usr/bin/apptainer"),
            "bases": {DOCKER_IMAGE: str(APPTAINER / "base.sif")},
            "cache": str(folder / "cache"),
            "scratch": str(folder / "scratch"),
        },
        "ssh": ssh_machines.options(8),
    }
    return {"type": kind, "options": options.get(kind, {})}


def environ(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a run that touches no cache of the user's."""
    return {**os.environ, "ROLLOUT_CACHE_DIR": str(folder / "cache"), **more}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "rollout", *map(str, arguments)]


def rollout(folder: Path, *arguments: str | Path, timeout: float = 120, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder` to its end."""
    return subprocess.run(
        command(*arguments), cwd=folder, env=environ(folder, **more), capture_output=True, text=True, timeout=timeout, check=False
    )


def memory_peak(folder: Path, job: Path) -> int:
    """Run a job to its end; the peak resident memory of our process, in bytes."""
    program = (
        "import re, runpy, sys\n"
        "try:\n    runpy.run_module('rollout', run_name='__main__')\n"
        "finally:\n    print(*re.findall('VmHWM:\\\\s+(\\\\d+)', open('/proc/self/status').read()), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(job), "--display", "none"],
        cwd=folder,
        env=environ(folder),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    return int(done.stderr.splitlines()[-1]) * 1024  # not ru_maxrss, which counts what our parent had when it forked


def trial_results(job_dir: Path) -> dict[str, dict[str, Any]]:
    """The lines of trials.jsonl by trial; a trial that finished twice is an error."""
    results: dict[str, dict[str, Any]] = {}
    for line in (job_dir / "trials.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert record["trial_id"] not in results, f"{record['trial_id']} finished twice"
        results[record["trial_id"]] = record
    return results


def host_processes(needle: str) -> list[int]:
    """Processes of the machine whose command line holds `needle`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if needle in command:
                found.append(int(entry.name))
    return found
