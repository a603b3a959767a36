"""How long the `rollout` command takes to start, against an interpreter that does nothing.

    python benchmarks/startup.py [--quick] [--json]

Every row is the median over many fresh processes; the rows take turns, so that a busy moment hits all of them. `ratio` is
against `python -c pass` of the same interpreter in the same run: that is the number to compare between machines. `plugins`
counts modules of plugins that were imported, which has to be 0. Targets: at most 5x for `--version` and 10x for `plugins`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

BASELINE = "python -c pass"
TARGETS = {"rollout --version": 5.0, "rollout plugins": 10.0}
RUNS = 31
QUICK_RUNS = 7

PROBE = """
import sys
from rollout.__main__ import main
try:
    main()
except SystemExit:
    pass
print(sum(name.startswith(("rollout.builtin.", "trap_plugin")) for name in sys.modules), file=sys.stderr)
"""


def commands(job_dir: Path) -> dict[str, list[str]]:
    script = Path(sysconfig.get_path("scripts")) / "rollout"
    rollout = [str(script)] if script.exists() else [sys.executable, "-m", "rollout"]
    return {
        BASELINE: [sys.executable, "-c", "pass"],
        "rollout --version": [*rollout, "--version"],
        "rollout --help": [*rollout, "--help"],
        "rollout plugins": [*rollout, "plugins"],
        "rollout show JOB": [*rollout, "show", str(job_dir)],
    }


def run_job(folder: Path) -> Path:
    """A finished job of one trial to show, run on the fake environment of rollout.testing."""
    task = folder / "tasks" / "task"
    for name, text in {"instruction.md": "Do nothing.\n", "task.toml": 'version = "1.0"\n', "tests/test.sh": "true\n"}.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    job = {"name": "job", "jobs_dir": str(folder), "environment": {"type": "fake"}}
    job |= {"agents": [{"name": "fake"}], "datasets": [{"path": "tasks"}]}
    (folder / "job.json").write_text(json.dumps(job))
    code = (
        "import asyncio, sys\nfrom rollout import run_job\nfrom rollout.testing import FakeWorld\n"
        "with FakeWorld().installed():\n    asyncio.run(run_job(sys.argv[1]))\n"
    )
    environ = {**os.environ, "ROLLOUT_CACHE_DIR": str(folder / "cache")}
    subprocess.run([sys.executable, "-c", code, str(folder / "job.json")], check=True, env=environ)
    return folder / "job"


def trap(folder: Path) -> Path:
    """A site folder with a third party's plugin, to see that listing it does not import it."""
    info = folder / "site" / "trap_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trap-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rollout.agents]\ntrap = trap_plugin:Trap\n")
    (folder / "site" / "trap_plugin.py").write_text("class Trap: pass\n")
    return folder / "site"


def plugins_imported(arguments: list[str], environ: dict[str, str]) -> int:
    """How many modules of plugins a command had imported when it ended."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=True, env=environ, timeout=60
    )
    return int(done.stderr.splitlines()[-1])


def measure(runs: int) -> list[dict[str, object]]:
    folder = Path(tempfile.mkdtemp(prefix="rollout-bench-"))
    try:
        rows = commands(run_job(folder))
        environ = {**os.environ, "PYTHONPATH": str(trap(folder))}
        times: dict[str, list[float]] = {name: [] for name in rows}
        for number in range(runs + 1):
            for name, command in rows.items():
                began = time.perf_counter()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ, timeout=60)
                if number:  # the first round fills the caches
                    times[name].append(time.perf_counter() - began)
        bare = statistics.median(times[BASELINE])
        return [
            {
                "command": name,
                "median_ms": round(statistics.median(found) * 1000, 1),
                "fastest_ms": round(min(found) * 1000, 1),
                "ratio": round(statistics.median(found) / bare, 2),
                "target": TARGETS.get(name),
                "plugins": plugins_imported(rows[name][1:], environ) if name.startswith("rollout -") or name in TARGETS else None,
            }
            for name, found in times.items()
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RUNS} runs of each instead of {RUNS}")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    rows = measure(QUICK_RUNS if arguments.quick else RUNS)
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0
    print(f"{'command':<20} {'median ms':>10} {'fastest':>10} {'ratio':>7} {'target':>7} {'plugins':>8}")
    for row in rows:
        target = "" if row["target"] is None else f"{row['target']:g}x"
        plugins = "" if row["plugins"] is None else row["plugins"]
        print(f"{row['command']:<20} {row['median_ms']:>10} {row['fastest_ms']:>10} {row['ratio']:>6}x {target:>7} {plugins:>8}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
