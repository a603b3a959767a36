"""What an agent's installation costs a job of several trials, which pays for it once.

    python benchmarks/agent_install.py [--quick] [--json] [--image debian:trixie-slim]

Two jobs on each of `local` and (where an engine answers and has the image) `docker`, as users run them: processes of their own,
start-up and records included. Both have the same trials, four at once; the agent of one has an install script that sleeps for
five seconds. `one + bare` is the sum to compare with: one installation, and the job without. The ratio is meant to stay at or
below 1.25; what is above 1 is the sandbox in which the agent is installed, and the image that is made of it. `per trial` is the
median of the trials alone, from their start to their end; `installing in each` is what the same job would take if every trial
installed, four at once. Figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

AT_ONCE = 4
TARGET_RATIO = 1.25
FILES = {
    "instruction.md": "Write 42 to /app/answer.txt.\n",
    "task.toml": 'version = "1.0"\n',
    "tests/test.sh": "#!/bin/bash\ngrep -qx 42 /app/answer.txt && echo 1 > /logs/verifier/reward.txt\n",
}
EXECUTE = "#!/bin/sh\necho 42 > /app/answer.txt\n"


def write_task(folder: Path, image: str) -> None:
    for name, text in {**FILES, "environment/Dockerfile": f"FROM {image}\nWORKDIR /app\n"}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def run(folder: Path, kind: str, name: str, trials: int, install: str | None) -> tuple[float, list[float]]:
    """Seconds of the whole job, and of each of its trials."""
    job = {
        "name": name,
        "n_attempts": trials,
        "n_concurrent_trials": AT_ONCE,
        "environment": {"type": kind, "options": {"pull": "never"} if kind == "docker" else {}},
        "agents": [{"name": "mine", "execute": EXECUTE, **({"install": install} if install else {})}],
        "datasets": [{"path": "tasks"}],
    }
    (folder / f"{name}.json").write_text(json.dumps(job))
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "rollout", f"{name}.json", "--display", "none"],
        cwd=folder,
        env={**os.environ, "ROLLOUT_CACHE_DIR": str(folder / "cache")},
        check=True,
    )
    took = time.perf_counter() - began
    records = [json.loads(line) for line in (folder / "jobs" / name / "trials.jsonl").read_text().splitlines()]
    assert [record["reward"] for record in records] == [1.0] * trials, f"{kind}: not every trial has its reward"
    return took, [record["durations"]["total_sec"] for record in records]


def measure(kind: str, image: str, trials: int, rounds: int, install_sec: float) -> dict[str, float]:
    totals: list[float] = []
    bares: list[float] = []
    with_install: list[float] = []
    without: list[float] = []
    with tempfile.TemporaryDirectory(prefix="rollout-bench-") as place:
        folder = Path(place)
        write_task(folder / "tasks" / "t", image)
        run(folder, kind, "warm", 1, None)
        for number in range(rounds):
            # An installer that never ran before: what an earlier round installed is no help.
            install = f"#!/bin/sh\nsleep {install_sec:g} # {folder.name}-{number}\nmkdir -p /opt/mine\n"
            total, each = run(folder, kind, f"installed-{number}", trials, install)
            totals.append(total)
            # Those that came first waited for the installation; what they took besides is theirs.
            with_install += sorted(each)[: trials - AT_ONCE] or each
            bare, each = run(folder, kind, f"bare-{number}", trials, None)
            bares.append(bare)
            without += each
    total, bare = statistics.median(totals), statistics.median(bares)
    return {
        "trials": trials,
        "total": total,
        "bare": bare,
        "one + bare": bare + install_sec,
        "ratio": total / (bare + install_sec),
        "installing in each": bare + install_sec * -(-trials // AT_ONCE),
        "per trial": statistics.median(with_install),
        "per trial, bare": statistics.median(without),
    }


def has_docker(image: str) -> bool:
    found = shutil.which("docker") is not None
    return found and subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, an installation of three seconds")
    parser.add_argument("--json", action="store_true", dest="as_json")
    parser.add_argument("--image", default="debian:trixie-slim", help="for docker")
    arguments = parser.parse_args()
    rounds, install_sec = (1, 3.0) if arguments.quick else (3, 5.0)
    kinds = ["local", *(["docker"] if has_docker(arguments.image) else [])]
    figures = {kind: measure(kind, arguments.image, 16, rounds, install_sec) for kind in kinds}
    if arguments.as_json:
        print(json.dumps(figures, indent=2))
    else:
        names = list(figures["local"])
        print(f"{'seconds':8}" + "".join(f"{name:>20}" for name in names))
        for kind, figure in figures.items():
            print(f"{kind:8}" + "".join(f"{figure[name]:20.2f}" if name != "trials" else f"{16:20}" for name in names))
        print(f"an installation takes {install_sec:g} s; the ratio is meant to stay at or below {TARGET_RATIO}")
    return 0 if all(figure["ratio"] <= TARGET_RATIO for figure in figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
