"""Whole jobs of `type: docker`, beside Harbor's on the same task when its command is given.

    python benchmarks/docker_jobs.py [--quick] [--json] [--harbor COMMAND] [--image debian:trixie-slim]

The task is trivial and in Harbor's format, the agent the oracle, the image built once before. Each side runs as its users run
it, as a process of its own: start-up, planning, records and removal are included. `CPU` is the process's and its children's,
the engine's not counted; `RSS` is the largest process. The ratio is Harbor's wall time to ours. Harbor waits ten seconds for a
container whose first process ignores SIGTERM, which is the one it starts itself; that is its default and is left as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LEVELS = ((1, 1), (16, 4), (64, 8))
QUICK_LEVELS = ((1, 1), (8, 4))
FILES = {
    "instruction.md": "Write 42 to /app/answer.txt.\n",
    "task.toml": 'version = "1.0"\n',
    "solution/solve.sh": "#!/bin/bash\necho 42 > /app/answer.txt\n",
    "tests/test.sh": "#!/bin/bash\ngrep -qx 42 /app/answer.txt && echo 1 > /logs/verifier/reward.txt\n",
}


def write_task(folder: Path, image: str) -> None:
    for name, text in {**FILES, "environment/Dockerfile": f"FROM {image}\nWORKDIR /app\n"}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if name.endswith(".sh") else 0o644)


def ours(folder: Path, trials: int, at_once: int, name: str) -> list[str]:
    job = {
        "name": name,
        "n_attempts": trials,
        "n_concurrent_trials": at_once,
        "environment": {"type": "docker", "delete": False, "options": {"pull": "never"}},
        "agents": [{"name": "oracle"}],
        "datasets": [{"path": "tasks"}],
    }
    (folder / f"{name}.json").write_text(json.dumps(job))
    return [sys.executable, "-m", "rollout", f"{name}.json", "--display", "none"]


def harbors(command: str, trials: int, at_once: int, name: str) -> list[str]:
    words = ["run", "-p", "tasks", "-a", "oracle", "-k", str(trials), "-n", str(at_once), "--job-name", name, "-o", "harbor"]
    return [*shlex.split(command), *words, "--no-delete", "-q"]


def rewards(folder: Path, name: str, side: str) -> list[float]:
    """What the trials of a job got, to see that both sides did the work."""
    if side == "rollout":
        lines = (folder / "jobs" / name / "trials.jsonl").read_text().splitlines()
        return [json.loads(line)["reward"] for line in lines]
    results = [json.loads(path.read_text()) for path in (folder / "harbor" / name).glob("*/result.json")]
    return [result["verifier_result"]["rewards"]["reward"] for result in results]


def measure(argv: list[str], folder: Path) -> dict[str, float]:
    """Run a command to its end in a process that only does that, so that its children's figures are the command's."""
    program = (
        "import json, resource, subprocess, sys\n"
        "code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss]))\n"
    )
    environ = {**os.environ, "ROLLOUT_CACHE_DIR": str(folder / "cache")}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program, *argv], cwd=folder, env=environ, capture_output=True, text=True, check=True
    )
    wall = time.perf_counter() - began
    code, cpu, rss_kb = json.loads(done.stdout)
    if code != 0:
        raise SystemExit(f"exit code {code}: {shlex.join(argv)}")
    return {"wall_sec": wall, "cpu_sec": cpu, "rss_mb": rss_kb / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller jobs")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--image", default="debian:trixie-slim", help="an image with bash that the engine has")
    parser.add_argument("--harbor", metavar="COMMAND", help="how Harbor is started here")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="rollout-benchmark-") as temporary:
        folder = Path(temporary)
        write_task(folder / "tasks" / "trivial", arguments.image)
        sides = ["rollout", *(["harbor"] if arguments.harbor else [])]

        def argv(side: str, trials: int, at_once: int, name: str) -> list[str]:
            return ours(folder, trials, at_once, name) if side == "rollout" else harbors(arguments.harbor, trials, at_once, name)

        for side in sides:
            measure(argv(side, 1, 1, "first"), folder)  # builds the image
        for trials, at_once in QUICK_LEVELS if arguments.quick else LEVELS:
            row: dict[str, Any] = {"trials": trials, "at_once": at_once}
            for side in sides:
                name = f"job-{trials}"
                row[side] = measure(argv(side, trials, at_once, name), folder)
                assert rewards(folder, name, side) == [1.0] * trials, f"{side} did not do the work"
            if arguments.harbor:
                row["wall_ratio"] = row["harbor"]["wall_sec"] / row["rollout"]["wall_sec"]
                row["cpu_ratio"] = row["harbor"]["cpu_sec"] / row["rollout"]["cpu_sec"]
            rows.append(row)
    if arguments.json:
        print(json.dumps(rows))
        return
    print("trials  at once  side       wall s   CPU s  RSS MB   Harbor's to ours: wall, CPU")
    for row in rows:
        for side in sides:
            cost = row[side]
            figures = f"{cost['wall_sec']:7.1f}  {cost['cpu_sec']:6.1f}  {cost['rss_mb']:6.0f}"
            ratios = f"   {row['wall_ratio']:.1f}, {row['cpu_ratio']:.1f}" if side == "harbor" else ""
            print(f"{row['trials']:6}  {row['at_once']:7}  {side:8}  {figures}{ratios}")


if __name__ == "__main__":
    main()
