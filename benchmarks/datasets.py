"""How long a data set of task folders takes to load.

    python benchmarks/datasets.py [FOLDER] [--quick]

Copies the task folders of FOLDER (by default the quickstart's) until there are 500, and loads them: each task.toml read, checked
and laid over dataset.toml, instruction, verifier, links and file kinds looked at. `digests` is what planning adds: hashes of all
files. On a busy machine look at `of it cpu`. The target is less than a second for loading 500.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from rollout import BenchmarkLoader
from rollout.core.tasks.directory import load_dataset

QUICKSTART = Path(__file__).resolve().parents[1] / "examples/quickstart"


def copies(source: Path, target: Path, count: int) -> None:
    tasks = [task.path for task in load_dataset(source).tasks]
    target.mkdir()
    (target / "dataset.toml").write_text('[dataset]\nname = "copies"\n[verifier]\ntimeout_sec = 100\n')
    for number in range(count):
        shutil.copytree(tasks[number % len(tasks)], target / f"task-{number:04}", symlinks=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=QUICKSTART)
    parser.add_argument("--quick", action="store_true", help="50 tasks")
    arguments = parser.parse_args()
    count = 50 if arguments.quick else 500
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copies"
        copies(arguments.folder, root, count)
        loads, cpu, digests, tasks = [], [], [], []
        for _ in range(3):
            began, used = time.perf_counter(), time.process_time()
            loaded = load_dataset(root)
            loads.append(time.perf_counter() - began)
            cpu.append(time.process_time() - used)
            assert len(loaded.tasks) == count, loaded.invalid[:3]
            began = time.perf_counter()
            for task in loaded.tasks:
                assert task.digest
            digests.append(time.perf_counter() - began)
            began = time.perf_counter()
            assert len(BenchmarkLoader.load(root).tasks) == count
            tasks.append(time.perf_counter() - began)
    print(f"{'tasks':>6} {'load s':>8} {'of it cpu':>10} {'digests s':>10} {'BenchmarkLoader s':>18}   (medians of 3)")
    medians = [statistics.median(column) for column in (loads, cpu, digests, tasks)]
    print(f"{count:>6} {medians[0]:>8.2f} {medians[1]:>10.2f} {medians[2]:>10.2f} {medians[3]:>18.2f}")


if __name__ == "__main__":
    main()
