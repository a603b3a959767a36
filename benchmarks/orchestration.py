"""What Rollout itself costs per trial: jobs on sandboxes that do nothing, with full records on disk.

    python benchmarks/orchestration.py [--quick] [--json]

Each row is one process of its own. `cpu ms/trial` is the process's CPU time over its trials, planning and start-up included;
`bare` is the same number of trials written as bare files (the folders and files of a trial, without Rollout), in the same
run on the same disk: what is left of `ratio` above 1 is Rollout. `plan` is the time to plan the job, `re-open` the time to
run the same command again when all of it is finished. Targets: at most 1.5 ms of CPU per trial whatever the job's size, less
than 150 MB at 100,000 trials, planning 100,000 trials in less than 5 s, re-opening 10,000 in less than 2 s.

Nothing is deleted before the last row is done: ext4 passes over inodes that were freed in the last minutes one by one whenever
it makes a file, so that what another row (or anybody) deleted shortly before makes every new file several times as dear, `bare`
ones too. When `bare` is far above 0.2 ms, wait five minutes and measure again, or give a file system of its own with `--folder`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONCURRENCY = 200
TASKS = 100
SIZES = (1_000, 10_000, 100_000)
QUICK_SIZES = (500, 2_000)


def write_job(folder: Path, trials: int) -> Path:
    """A job of `trials` trials over 100 tasks; sandboxes are rollout.testing's, agents do nothing."""
    for number in range(TASKS):
        task = folder / "tasks" / f"task-{number:03}"
        for name, text in {
            "instruction.md": "Do nothing.\n",
            "task.toml": 'version = "1.0"\n',
            "tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
            "environment/Dockerfile": "FROM scratch\n",
        }.items():
            path = task / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    job = {
        "name": "bench",
        "jobs_dir": str(folder / "jobs"),
        "n_attempts": trials // TASKS,
        "n_concurrent_trials": CONCURRENCY,
        "environment": {"type": "fake"},
        "metrics": [{"type": "mean"}, {"type": "pass_at_k"}],
        "agents": [{"name": "fake"}],
        "datasets": [{"path": "tasks"}],
    }
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    return path


def run_once(job: Path) -> dict[str, float]:
    """Plan and run a job in this process; seconds, CPU and peak memory."""
    from rollout.core.config.load import load_job
    from rollout.core.job.planner import plan_job
    from rollout.core.job.scheduler import run_job
    from rollout.testing.fakes import FakeWorld

    environ = {"ROLLOUT_CACHE_DIR": str(job.parent / "cache")}
    finished = 0

    async def run() -> tuple[float, int]:
        began = time.perf_counter()
        plan = await plan_job(load_job(job), environ=environ)
        planned = time.perf_counter() - began
        outcome = await run_job(plan)
        assert outcome.exit_code == 0, outcome
        return planned, outcome.result.completed_trials

    began = time.perf_counter()
    with FakeWorld(record=False).installed():
        planned, finished = asyncio.run(run())
    wall = time.perf_counter() - began
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "trials": finished,
        "plan_sec": planned,
        "wall_sec": wall,
        "cpu_sec": usage.ru_utime + usage.ru_stime,
        "rss_mb": usage.ru_maxrss / 1024,
    }


def bare_files(folder: Path, trials: int) -> float:
    """CPU seconds to write the folders and files of `trials` trials with nothing else."""
    began = time.process_time()
    text = b"x" * 1500
    for number in range(trials):
        trial = f"{folder}/bare/{number % TASKS}__{number}"
        os.makedirs(f"{trial}/logs/verifier")
        for name in ("config.json", "result.json", "trial.log", "logs/verifier/reward.txt"):
            descriptor = os.open(f"{trial}/{name}", os.O_WRONLY | os.O_CREAT)
            os.write(descriptor, text)
            os.close(descriptor)
    return time.process_time() - began


def in_process(job: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--once", str(job)], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def measure(base: Path, trials: int, repeats: int) -> dict[str, float]:
    rows = []
    for _ in range(repeats):
        folder = Path(tempfile.mkdtemp(dir=base))
        job = write_job(folder, trials)
        os.sync()  # what an earlier row left to the disk is not this one's
        first = in_process(job)
        again = in_process(job)
        os.sync()
        bare = bare_files(folder, min(trials, 10_000)) / min(trials, 10_000)
        cpu = first["cpu_sec"] / trials
        rows.append(
            {
                "trials": trials,
                "cpu_ms_per_trial": cpu * 1000,
                "bare_ms_per_trial": bare * 1000,
                "ratio": cpu / bare,
                "wall_sec": first["wall_sec"],
                "rss_mb": first["rss_mb"],
                "plan_sec": first["plan_sec"],
                "reopen_sec": again["wall_sec"],
                "reopen_rss_mb": again["rss_mb"],
            }
        )
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small jobs only")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--folder", help="where the jobs are written; the system's temporary folder by default")
    parser.add_argument("--once", metavar="JOB", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(run_once(Path(arguments.once))))
        return
    sizes = QUICK_SIZES if arguments.quick else SIZES
    base = Path(tempfile.mkdtemp(prefix="rollout-orchestration-", dir=arguments.folder))
    try:
        rows = [measure(base, trials, repeats=1 if trials > 10_000 else 3) for trials in sizes]
    finally:
        shutil.rmtree(base)
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"{CONCURRENCY} at once; medians\n")
    print("   trials  cpu ms/trial  bare ms/trial  ratio    wall s  RSS MB   plan s  re-open s  re-open RSS MB")
    for row in rows:
        print(
            f"{row['trials']:9.0f}  {row['cpu_ms_per_trial']:12.2f}  {row['bare_ms_per_trial']:13.2f}  {row['ratio']:5.1f}"
            f"  {row['wall_sec']:8.1f}  {row['rss_mb']:6.0f}  {row['plan_sec']:7.2f}  {row['reopen_sec']:9.2f}"
            f"  {row['reopen_rss_mb']:14.0f}"
        )


if __name__ == "__main__":
    main()
