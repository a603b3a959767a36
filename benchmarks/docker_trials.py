"""A whole trial's worth of `type: docker` against the same steps done straight with the engine's SDK in threads.

    python benchmarks/docker_trials.py [--quick] [--json] [--image debian:trixie-slim] [--harbor COMMAND]

Steps of both, on an image that is there: create and start a container with the same limits, copy ten files in, run two
commands, copy a folder out, remove the container. The bare side has nothing of what a trial needs besides (deadlines, process
kill, live output, checks of what is copied out). Both sides run in turns, so that a change of the machine's load meets both;
figures are medians. The ratios are what to look at: the wall time per trial is meant to stay at or below 1.15 times the bare
engine's, the CPU of this process (the engine's not counted) at or below 1.5 times. `--json` prints the worst of each as
`wall_ratio` and `cpu_ratio`, with the rows. With `--harbor` docker_jobs.py follows: whole jobs, Harbor's beside ours.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import docker

from rollout.core.protocols import BackendContext
from rollout.core.types import Command, EnvironmentSpec, Resources
from rollout_docker.backend import DockerBackend
from rollout_docker.options import DockerOptions

WALL_TARGET, CPU_TARGET = 1.15, 1.5
MEMORY_BYTES = 2 << 30
SCRIPTS = ("ls /app/data > /logs/listing", "cat /app/data/* | wc -c")


class Cost(NamedTuple):
    """Of one trial, in milliseconds."""

    wall: float
    cpu: float


def bare_cycle(client: docker.DockerClient, image: str, source: Path, target: Path) -> None:
    container = client.containers.create(
        image,
        entrypoint=["/bin/sh", "-c", "read _"],
        stdin_open=True,
        init=True,
        working_dir="/app",
        nano_cpus=10**9,
        mem_limit=MEMORY_BYTES,
        memswap_limit=MEMORY_BYTES,
        pids_limit=4096,
        log_config=docker.types.LogConfig(type="none"),
    )
    try:
        container.start()
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(source, "app/data")
        container.put_archive("/", packed.getvalue())
        for script in ("mkdir -p /logs && " + SCRIPTS[0], SCRIPTS[1]):
            code, output = container.exec_run(["sh", "-c", script], demux=True)
            assert code == 0, output
        chunks, _ = container.get_archive("/logs")
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            archive.extractall(target, filter="data")
    finally:
        container.remove(force=True, v=True)


async def rollout_cycle(backend: DockerBackend, spec: EnvironmentSpec, source: Path, target: Path) -> None:
    environment = await backend.start(spec, await backend.prepare(spec))
    try:
        await environment.upload(source, "/app/data")
        for script in ("mkdir -p /logs && " + SCRIPTS[0], SCRIPTS[1]):
            result = await environment.exec(Command(argv=("sh", "-c", script), timeout_sec=60.0))
            assert result.exit_code == 0, result.stderr
        report = await environment.download("/logs", target)
        assert report.files == 1
    finally:
        await environment.stop()


def measure(run: Callable[[], None], trials: int) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return Cost((time.perf_counter() - wall) * 1e3 / trials, (time.process_time() - cpu) * 1e3 / trials)


def in_threads(work: Callable[[int], None], trials: int, concurrency: int) -> None:
    numbers = iter(range(trials))
    lock = threading.Lock()
    failed: list[BaseException] = []

    def worker() -> None:
        while not failed:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            try:
                work(number)
            except BaseException as error:
                failed.append(error)
                raise

    threads = [threading.Thread(target=worker) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise SystemExit(f"the bare side does not work here: {failed[0]}")


async def in_tasks(work: Callable[[int], Coroutine[Any, Any, None]], trials: int, concurrency: int) -> None:
    numbers = iter(range(trials))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())


def benchmark(image: str, levels: list[int], turns: int, trials: int) -> list[dict[str, float]]:
    """`trials`: how many in one turn, at least one per slot."""
    folder = Path(tempfile.mkdtemp(prefix="rollout-benchmark-"))
    source = folder / "data"
    source.mkdir()
    for number in range(10):
        (source / f"file{number}").write_bytes(os.urandom(2000))
    spec = EnvironmentSpec(
        task_name="benchmark",
        directory=None,
        digest="benchmark",
        docker_image=image,
        workdir="/app",
        resources=Resources(cpus=1, memory_bytes=MEMORY_BYTES),
    )
    context = BackendContext(
        job_id=f"benchmark-{os.getpid()}", work_dir=folder / "work", cache_dir=folder / "cache", concurrency=max(levels)
    )
    client = docker.from_env(max_pool_size=max(levels))
    rows = []
    try:
        with asyncio.Runner() as runner:
            backend = DockerBackend(DockerOptions(pull="never"), context)
            backend.check(spec)
            names = iter(range(10**9))

            async def ours(number: int) -> None:
                await rollout_cycle(backend, spec, source, folder / f"ours{next(names)}")

            def bare(number: int) -> None:
                bare_cycle(client, image, source, folder / f"bare{next(names)}")

            in_threads(bare, 2, 2)
            runner.run(in_tasks(ours, 2, 2))
            for level in levels:
                count = max(trials, level)
                costs: dict[str, list[Cost]] = {"bare": [], "rollout": []}
                for turn in range(turns):
                    sides: list[tuple[str, Callable[[], None]]] = [
                        ("bare", lambda count=count, level=level: in_threads(bare, count, level)),  # type: ignore[misc]
                        ("rollout", lambda count=count, level=level: runner.run(in_tasks(ours, count, level))),  # type: ignore[misc]
                    ]
                    for name, run in sides if turn % 2 else reversed(sides):
                        costs[name].append(measure(run, count))
                row: dict[str, float] = {"concurrency": level}
                for key in ("wall", "cpu"):
                    for name, found in costs.items():
                        row[f"{name}_{key}_ms"] = statistics.median(getattr(cost, key) for cost in found)
                    row[f"{key}_ratio"] = row[f"rollout_{key}_ms"] / row[f"bare_{key}_ms"]
                rows.append(row)
            runner.run(backend.aclose())
    finally:
        client.close()
        shutil.rmtree(folder)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, at 1 and 8 only")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--image", default="debian:trixie-slim", help="an image with a shell that the engine has")
    parser.add_argument("--harbor", metavar="COMMAND", help="how Harbor is started here; prints its jobs beside ours")
    arguments = parser.parse_args()
    levels, turns, trials = ([1, 8], 3, 8) if arguments.quick else ([1, 4, 8, 16], 5, 16)
    rows = benchmark(arguments.image, levels, turns, trials)
    if arguments.json:
        worst = {key: max(row[key] for row in rows) for key in ("wall_ratio", "cpu_ratio")}
        print(json.dumps({**worst, "rows": rows}))
        return
    print(f"{'at once':>8} {'bare ms':>9} {'rollout':>9} {'ratio':>6} {'bare CPU':>9} {'rollout':>9} {'ratio':>6}   per trial")
    for row in rows:
        print(
            f"{row['concurrency']:>8} {row['bare_wall_ms']:>9.1f} {row['rollout_wall_ms']:>9.1f} {row['wall_ratio']:>6.2f} "
            f"{row['bare_cpu_ms']:>9.1f} {row['rollout_cpu_ms']:>9.1f} {row['cpu_ratio']:>6.2f}"
        )
    print(f"aims: wall at most {WALL_TARGET:g}, CPU at most {CPU_TARGET:g}")
    if arguments.harbor:
        print()
        jobs = [sys.executable, str(Path(__file__).with_name("docker_jobs.py")), "--harbor", arguments.harbor]
        subprocess.run([*jobs, "--image", arguments.image, *(["--quick"] if arguments.quick else [])], check=True)


if __name__ == "__main__":
    main()
