"""What a Python verifier costs: rows scored in Rollout's worker processes, against a bare process pool doing the same scoring.

    python benchmarks/python_verifier.py [--quick] [--json]

`bare` is `concurrent.futures.ProcessPoolExecutor.map` over the same function and rows, one row a time, with as many processes as
there are processors; nothing in it has a deadline, a memory limit, output of its own, or survives a crash. `verifier` goes
through the `python` verifier as a trial does. Both start their processes beforehand. `ratio` is verifier over bare; the target is
at most 2. `cpu` is the same ratio of processor time, of all processes and their start, which other work on the machine changes
less. `fuzzy` does more work per row, as most verifiers do. `start` is the time to the first verdict of a new pool.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rollout.builtin.python_verifier import PythonVerifier, PythonVerifierOptions
from rollout.core.episodes import Episode, Task, Trajectory
from rollout.core.protocols import TrialView
from rollout.core.trial.nowhere import NoEnvironment
from rollout.core.trial.python_processes import PythonProcesses
from rollout.core.types import TransferReport, VerifyResult

ROWS, QUICK_ROWS, REPEATS = 10_000, 1_000, 3

SCORERS = {
    "equal": "def evaluate(metadata, trajectory):\n    return trajectory['output'] == metadata['ground_truth']\n",
    "fuzzy": "import difflib\n\n\ndef evaluate(metadata, trajectory):\n"
    "    return difflib.SequenceMatcher(None, trajectory['output'], metadata['ground_truth']).ratio()\n",
}
_SAID = "The answer is {}, because the sum of the two sides is what was asked for in the question."


def rows(count: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(metadata, trajectory) pairs."""
    pairs = [(str(number % 97), _SAID.format(number % 89)) for number in range(count)]
    return [({"question": "Q" * 200, "ground_truth": truth}, {"output": said, "steps": []}) for truth, said in pairs]


def bare(code: str, given: list[tuple[dict[str, Any], dict[str, Any]]]) -> float:
    """Seconds of a bare process pool."""
    with ProcessPoolExecutor(os.cpu_count(), initializer=_load, initargs=(code,)) as pool:
        list(pool.map(_score, given[:20]))
        began = time.perf_counter()
        list(pool.map(_score, given))
        return time.perf_counter() - began


_namespace: dict[str, Any] = {}


def _load(code: str) -> None:
    exec(code, _namespace)


def _score(row: tuple[dict[str, Any], dict[str, Any]]) -> float:
    return float(_namespace["evaluate"](*row))


async def verifier(code: str, given: list[tuple[dict[str, Any], dict[str, Any]]], folder: Path) -> tuple[float, float]:
    """Seconds to the first verdict, and for all rows after that."""
    (folder / "evaluate.py").write_text(code)
    judge = PythonVerifier(PythonVerifierOptions(module="evaluate"))
    pool = PythonProcesses(folder / "scratch", os.cpu_count())

    async def verify(number: int, row: tuple[dict[str, Any], dict[str, Any]]) -> VerifyResult:
        return await judge.verify(view(number, row, folder, pool))

    async def work(left: Iterator[tuple[int, Any]]) -> None:
        for number, row in left:
            await verify(number, row)

    try:
        began = time.perf_counter()
        await verify(0, given[0])
        first = time.perf_counter() - began
        await asyncio.gather(*(verify(number, given[0]) for number in range(20)))
        began = time.perf_counter()
        left = enumerate(given)
        await asyncio.gather(*(work(left) for _ in range(16)))
        return first, time.perf_counter() - began
    finally:
        await pool.aclose()


def view(number: int, row: tuple[dict[str, Any], dict[str, Any]], folder: Path, pool: PythonProcesses) -> TrialView:
    """The view that a trial of a row gives its verifier."""
    metadata, trajectory = row

    async def no_logs() -> TransferReport:
        return TransferReport()

    return TrialView(
        environment=NoEnvironment(),
        task=Task(str(number), metadata["question"], metadata, folder),
        episode=Episode(id=f"{number}:0", trajectories=[Trajectory(output=trajectory["output"])]),
        task_directory=folder,
        tests_directory=folder,
        instruction=metadata["question"],
        metadata=metadata,
        env={},
        workdir=None,
        user=None,
        trial_dir=folder,
        log_dir=folder,
        sink=lambda stream, chunk: None,
        reward_files=(),
        collect_logs=no_logs,
        run_python=pool,
    )


def measure(name: str, count: int, repeats: int) -> dict[str, Any]:
    given = rows(count)
    pairs, cpu = [], []
    with tempfile.TemporaryDirectory(prefix="rollout-python-verifier-") as folder:
        for _ in range(repeats):
            began = _cpu_sec()
            alone = bare(SCORERS[name], given)
            between = _cpu_sec()
            pairs.append((alone, asyncio.run(verifier(SCORERS[name], given, Path(folder)))))
            cpu.append((_cpu_sec() - between) / (between - began))
    plain = statistics.median(pair[0] for pair in pairs)
    ours = statistics.median(pair[1][1] for pair in pairs)
    start = statistics.median(pair[1][0] for pair in pairs)
    return {
        "scorer": name,
        "rows": count,
        "bare_sec": plain,
        "verifier_sec": ours,
        "ratio": ours / plain,
        "cpu_ratio": statistics.median(cpu),
        "start_sec": start,
    }


def _cpu_sec() -> float:
    """Processor time of this process and those that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows, once")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    count, repeats = (QUICK_ROWS, 1) if arguments.quick else (ROWS, REPEATS)
    measured = [measure(name, count, repeats) for name in SCORERS]
    if arguments.json:
        print(json.dumps(measured))
        return
    print(f"{count} rows, {os.cpu_count()} processes; medians of {repeats}\n")
    print("scorer   bare s  verifier s  verifier us/row  ratio   cpu  start s")
    for row in measured:
        each = row["verifier_sec"] / row["rows"] * 1e6
        print(
            f"{row['scorer']:6}  {row['bare_sec']:7.2f}  {row['verifier_sec']:10.2f}  {each:15.0f}"
            f"  {row['ratio']:5.2f}  {row['cpu_ratio']:4.2f}  {row['start_sec']:7.3f}"
        )


if __name__ == "__main__":
    main()
