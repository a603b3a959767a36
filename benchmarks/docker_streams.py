"""Many containers held at once by `type: docker`, each with a command whose output streams: what that costs our process.

    python benchmarks/docker_streams.py [--quick] [--json] [--image debian:trixie-slim]

Every row starts that many containers, runs in all of them at the same time a command that prints a line every tenth of a second,
and measures while they stream. `rss MB` is this process's peak resident memory (the baseline is the same process with one
container); it is meant to stay below 200 MB at 200 containers. `cpu %` is this process's share of one processor while all
stream. `lines` are those that arrived, of those that were printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rollout.core.protocols import BackendContext, Environment
from rollout.core.types import Command, EnvironmentSpec, Resources, Stream
from rollout_docker.backend import DockerBackend
from rollout_docker.options import DockerOptions

SIZES = (1, 50, 200)
QUICK_SIZES = (1, 50)
LINES = 100
LINE = "a line of output that is as long as those of programs usually are, about a hundred characters in all....."
STARTS_AT_ONCE = 8


async def hold(count: int, image: str, folder: Path) -> dict[str, float]:
    context = BackendContext(
        job_id=f"bench-{os.getpid()}", work_dir=folder / "work", cache_dir=folder / "cache", concurrency=count
    )
    backend = DockerBackend(DockerOptions(), context)
    spec = EnvironmentSpec(
        task_name="bench",
        directory=None,
        digest="bench",
        docker_image=image,
        network="none",
        resources=Resources(memory_bytes=256 << 20),
        labels={"rollout.job": context.job_id},
    )
    arrived = 0

    def sink(stream: Stream, chunk: bytes) -> None:
        nonlocal arrived
        arrived += chunk.count(b"\n")

    prepared = await backend.prepare(spec)
    gate = asyncio.Semaphore(STARTS_AT_ONCE)
    environments: list[Environment] = []

    async def start() -> None:
        async with gate:
            environments.append(await backend.start(spec, prepared))

    async def stop(environment: Environment) -> None:
        async with gate:
            await environment.stop()

    began = time.perf_counter()
    try:
        await asyncio.gather(*(start() for _ in range(count)))
        started = time.perf_counter() - began
        script = f"i=0; while [ $i -lt {LINES} ]; do echo '{LINE}'; sleep 0.1; i=$((i + 1)); done"
        command = Command(argv=("sh", "-c", script))
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(environment.exec(command, sink) for environment in environments))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    finally:
        await asyncio.gather(*(stop(environment) for environment in environments))
        await backend.aclose()
    return {
        "containers": count,
        "start_sec": started,
        "stream_sec": wall,
        "cpu_percent": 100 * cpu / wall,
        "lines": arrived,
        "printed": count * LINES,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def in_process(count: int, image: str) -> dict[str, Any]:
    argv = [sys.executable, __file__, "--once", str(count), "--image", image]
    return dict(json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer containers")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--image", default="debian:trixie-slim")
    parser.add_argument("--once", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asyncio.run(hold(arguments.once, arguments.image, Path(folder)))))
        return
    rows = [in_process(count, arguments.image) for count in (QUICK_SIZES if arguments.quick else SIZES)]
    for row in rows:
        row["rss_ratio"] = row["rss_mb"] / rows[0]["rss_mb"]
    if arguments.json:
        print(json.dumps(rows))
        return
    print("containers  start s  stream s  cpu %        lines  rss MB  rss ratio")
    for row in rows:
        lines = f"{row['lines']:.0f}/{row['printed']:.0f}"
        times = f"{row['start_sec']:7.1f}  {row['stream_sec']:8.1f}  {row['cpu_percent']:5.1f}"
        print(f"{row['containers']:10.0f}  {times}  {lines:>11}  {row['rss_mb']:6.0f}  {row['rss_ratio']:9.1f}")


if __name__ == "__main__":
    main()
