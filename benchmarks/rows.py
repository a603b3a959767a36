"""Data sets of rows: how long planning takes and how much memory, and what a whole job of rows costs beside a bare process pool.

    python benchmarks/rows.py [--quick]

The first table plans jobs of more and more rows, afresh and when all of them are finished already. Memory is what the process
grew by over a job of one row; it must not follow the size of the rows (1 kB each), only their number, and that gently: a row
costs its place in the file (16 bytes), a finished trial its place in trials.jsonl. The second table runs every row through a
flow and a Python verifier, and the same two functions in a `multiprocessing.Pool` of as many processes; what a job does besides
is a folder with records per trial and lines in trials.jsonl and events.jsonl, of which the pool writes none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FLOW = "def solve(task, config):\n    return task.metadata['answer']\n"
EVALUATE = """\
def evaluate(task, episode):
    total = 0
    for number in range(SCORING):
        total += number * number
    return float(episode.answer == task.metadata["answer"] and total >= 0)
"""
JOB = """\
agents: [{name: flow, options: {import_path: "flow.py:solve"}}]
datasets: [{path: rows}]
n_concurrent_trials: 4
log_level: error
"""


def write_job(root: Path, rows: int, scoring: int = 0) -> Path:
    """A data set of rows of about 1 kB, and a job on it."""
    (root / "rows/data").mkdir(parents=True, exist_ok=True)
    (root / "rows/tests").mkdir(exist_ok=True)
    (root / "rows/dataset.toml").write_text('[dataset]\nname = "rows"\n')
    (root / "rows/instruction.md.tpl").write_text("{{question}}\n")
    (root / "rows/tests/evaluate.py").write_text(EVALUATE.replace("SCORING", str(scoring)))
    with (root / "rows/data/test.jsonl").open("w") as file:
        for number in range(rows):
            row = {"id": f"row-{number}", "question": f"{number} " + "words " * 160, "answer": str(number)}
            file.write(json.dumps(row) + "\n")
    (root / "flow.py").write_text(FLOW)
    (root / "job.yaml").write_text(JOB)
    return root / "job.yaml"


def write_finished(root: Path, rows: int) -> None:
    """The job's folder as it would be when every trial had finished."""
    from rollout.core.config.load import load_job
    from rollout.core.job.planner import PlanOptions, plan_job

    async def fill() -> None:
        plan = await plan_job(load_job(root / "job.yaml"), PlanOptions(dry_run=True))
        (root / "jobs/job").mkdir(parents=True)
        (root / "jobs/job/config.json").write_text(json.dumps({"job_id": plan.job_id}))
        with (root / "jobs/job/trials.jsonl").open("w") as file:
            for spec in plan.trials():
                line = {"trial_id": spec.trial_id, "agent_name": "flow", "dataset_name": "rows", "task_name": spec.task.name}
                line |= {"attempt": 1, "status": "scored", "rewards": {"reward": 1.0}, "fingerprint": spec.fingerprint}
                file.write(json.dumps({**line, "padding": "x" * 800}) + "\n")
        await plan.aclose()

    asyncio.run(fill())


def measure_plan(root: Path) -> None:
    """In a process of its own: plan, feed, count what is kept; print seconds and peak memory."""
    from rollout.core.config.load import load_job
    from rollout.core.job.planner import PlanOptions, plan_job

    async def plan_and_feed() -> tuple[float, float, int]:
        began = time.perf_counter()
        plan = await plan_job(load_job(root / "job.yaml"), PlanOptions(dry_run=True))
        planned = time.perf_counter()
        sum(1 for _ in plan.finished)
        fed = sum(1 for _ in plan.trials())
        done = time.perf_counter()
        await plan.aclose()
        return planned - began, done - planned, fed

    seconds = asyncio.run(plan_and_feed())
    print(json.dumps([*seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))


def plan_table(sizes: list[int]) -> None:
    print(f"{'rows':>8}  {'state':<9} {'file MB':>8} {'plan s':>7} {'feed s':>7} {'memory MB':>10} {'bytes/row':>10}")
    base = 0
    for rows in [1, *sizes]:
        for state in ("new", "finished"):
            with tempfile.TemporaryDirectory() as folder:
                root = Path(folder)
                write_job(root, rows)
                if state == "finished":
                    os.chdir(root)
                    write_finished(root, rows)
                command = [sys.executable, __file__, "--measure-plan", str(root)]
                said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout
                os.chdir("/")
                planned, fed, _, peak = json.loads(said)
                base = base or peak
                grown = (peak - base) * 1024
                size = (root / "rows/data/test.jsonl").stat().st_size / 1e6
                print(
                    f"{rows:>8}  {state:<9} {size:>8.1f} {planned:>7.2f} {fed:>7.2f} {grown / 1e6:>10.1f} {grown / rows:>10.0f}"
                )


def score_one(row: str) -> float:
    namespace: dict[str, object] = _POOL_NAMESPACE
    task = json.loads(row)

    class Known:
        metadata = task

    class Episode:
        answer = namespace["solve"](Known, None)  # type: ignore[operator]

    return namespace["evaluate"](Known, Episode)  # type: ignore[operator, no-any-return]


_POOL_NAMESPACE: dict[str, object] = {}


def start_worker(flow: str, evaluate: str) -> None:
    exec(flow, _POOL_NAMESPACE)
    exec(evaluate, _POOL_NAMESPACE)


def job_table(rows: int, scorings: list[int]) -> None:
    print(f"\n{'rows':>8}  {'scoring':>8} {'pool s':>7} {'job s':>7} {'job/pool':>9} {'job trials/s':>13}")
    for scoring in scorings:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            write_job(root, rows, scoring)
            began = time.perf_counter()
            evaluate = EVALUATE.replace("SCORING", str(scoring))
            rows_file = root / "rows/data/test.jsonl"
            with multiprocessing.Pool(4, start_worker, (FLOW, evaluate)) as pool, rows_file.open() as file:
                total = sum(pool.imap_unordered(score_one, file, chunksize=16))
            assert total == rows
            pooled = time.perf_counter() - began
            began = time.perf_counter()
            command = [sys.executable, "-m", "rollout", "job.yaml", "--display", "none"]
            subprocess.run(command, check=True, cwd=root, stdout=subprocess.DEVNULL)
            took = time.perf_counter() - began
            per_row = pooled / rows * 4 * 1000
            print(f"{rows:>8}  {per_row:>5.2f} ms {pooled:>7.2f} {took:>7.2f} {took / pooled:>9.1f} {rows / took:>13.0f}")
            shutil.rmtree(root / "jobs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows")
    parser.add_argument("--measure-plan", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure_plan is not None:
        measure_plan(arguments.measure_plan)
        return
    plan_table([100, 1000] if arguments.quick else [1000, 10_000, 100_000])
    job_table(*((100, [0]) if arguments.quick else (2000, [0, 20_000, 200_000])))


if __name__ == "__main__":
    main()
