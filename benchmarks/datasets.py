"""How long a data set of task folders takes to load.

    python benchmarks/datasets.py [FOLDER] [--quick]

Copies the task folders of FOLDER (by default the quickstart's) until there are 500, and loads them: each task.toml read, checked
and laid over dataset.toml, instruction, verifier, links and file kinds looked at. `digests` is what planning adds: hashes of all
files. `bare` is the least that anybody could do: walk the folders, read each instruction, and parse each task.toml with
`tomllib`; `x bare` is how many times that the loading takes, in processor time. On a busy machine look at `of it cpu`. The
target is less than a second for loading 500.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
import tomllib
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


def bare(root: Path) -> int:
    """How many tasks there are, found without looking at anything but what makes them tasks."""
    found = 0
    for folder, _, files in os.walk(root):
        if "task.toml" in files:
            tomllib.loads(Path(folder, "task.toml").read_text())
            Path(folder, "instruction.md").read_text()
            found += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=QUICKSTART)
    parser.add_argument("--quick", action="store_true", help="50 tasks")
    arguments = parser.parse_args()
    count = 50 if arguments.quick else 500
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copies"
        copies(arguments.folder, root, count)
        loads, cpu, bares, digests, tasks = [], [], [], [], []
        for _ in range(3):
            began, used = time.perf_counter(), time.process_time()
            loaded = load_dataset(root)
            loads.append(time.perf_counter() - began)
            cpu.append(time.process_time() - used)
            assert len(loaded.tasks) == count, loaded.invalid[:3]
            used = time.process_time()
            assert bare(root) == count
            bares.append(time.process_time() - used)
            began = time.perf_counter()
            for task in loaded.tasks:
                assert task.digest
            digests.append(time.perf_counter() - began)
            began = time.perf_counter()
            assert len(BenchmarkLoader.load(root).tasks) == count
            tasks.append(time.perf_counter() - began)
    names = ("load s", "of it cpu", "bare cpu", "x bare", "digests s", "BenchmarkLoader s")
    print(f"{'tasks':>6} " + " ".join(f"{name:>10}" for name in names) + "   (medians of 3)")
    load, used, least, hashed, listed = (statistics.median(column) for column in (loads, cpu, bares, digests, tasks))
    print(f"{count:>6} " + " ".join(f"{value:>10.2f}" for value in (load, used, least, used / least, hashed, listed)))


if __name__ == "__main__":
    main()
