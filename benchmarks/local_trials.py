"""A whole trial's worth of `type: local` against the same steps by hand with `unshare`, `mount`, `nsenter` and `cp`.

    python benchmarks/local_trials.py [--quick] [--json]

Steps of both: make a sandbox on a copy-on-write view of the machine, copy a folder of ten files in, run two commands, copy a
folder out, end the sandbox and remove what it left. The bare side has none of what a trial needs besides (limits, hidden folders,
reduced capabilities, process kill, checks of what is copied out). Figures are medians; the ratio is what to look at, and is meant
to stay at or below 3.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from rollout.builtin.local import LocalBackend, LocalOptions
from rollout.core.protocols import BackendContext
from rollout.core.types import Command, EnvironmentSpec, Resources

TARGET_RATIO = 3.0

# $1: the sandbox's folder. Overlays of four system folders, what is made by hand for anything less would be no sandbox.
_SETUP = """
set -e
S=$1
mkdir -p $S/root $S/up $S/wk
cd $S/root
mkdir -p usr etc var opt proc dev tmp app logs
for link in bin sbin lib lib64; do [ -L /$link ] && cp -d /$link . || true; done
for name in usr etc var opt; do
    grep -q " /$name/" /proc/self/mountinfo && continue # the kernel refuses an overlay over what is mounted below it
    mkdir -p $S/up/$name $S/wk/$name
    mount -t overlay overlay -o lowerdir=/$name,upperdir=$S/up/$name,workdir=$S/wk/$name,userxattr $S/root/$name
done
mount -t proc proc $S/root/proc
for name in null zero urandom; do touch dev/$name; mount --bind /dev/$name dev/$name; done
touch $S/ready
exec sleep 600
"""


async def bare_cycle(folder: Path, number: int, source: Path) -> float:
    """The same steps by hand, each a program of its own, as a shell script would do them."""
    started = time.perf_counter()
    sandbox = folder / f"bare{number}"
    sandbox.mkdir()
    holder = await asyncio.create_subprocess_exec(
        *("unshare", "-Urmpif", "--kill-child", "sh", "-c", _SETUP, "sh", str(sandbox)), stderr=asyncio.subprocess.DEVNULL
    )
    while not (sandbox / "ready").exists():
        if holder.returncode is not None:
            raise SystemExit("the bare side does not work on this machine: unshare or mount failed")
        await asyncio.sleep(0.001)
    init = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()[0]
    await spawn("cp", "-r", str(source), str(sandbox / "root" / "app" / "data"))
    for script in ("ls /app/data > /logs/listing", "cat /app/data/* | wc -c"):
        await spawn(
            "nsenter",
            "-t",
            init,
            "-U",
            "-m",
            "-p",
            "-i",
            "--preserve-credentials",
            "chroot",
            str(sandbox / "root"),
            "sh",
            "-c",
            script,
        )
    await spawn("cp", "-r", str(sandbox / "root" / "logs"), str(sandbox / "out"))
    holder.kill()
    await holder.wait()
    while True:
        try:
            shutil.rmtree(sandbox)
            break
        except OSError:  # the mounts go a moment later
            await asyncio.sleep(0.001)
    return time.perf_counter() - started


async def spawn(*argv: str) -> None:
    process = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    if await process.wait() != 0:
        raise SystemExit(f"{argv[0]} ended with {process.returncode}")


async def local_cycle(backend: LocalBackend, image: str, spec: EnvironmentSpec, folder: Path, number: int, source: Path) -> float:
    started = time.perf_counter()
    environment = await backend.start(spec, image)
    await environment.upload(source, "/app/data")
    for script in ("ls /app/data > /logs/listing", "cat /app/data/* | wc -c"):
        result = await environment.exec(Command(argv=("sh", "-c", script)))
        assert result.exit_code == 0, result.stderr
    report = await environment.download("/logs", folder / f"local{number}")
    assert report.files == 1
    await environment.stop()
    return time.perf_counter() - started


async def measure(cycle: Callable[[int], Awaitable[float]], rounds: int, concurrency: int) -> dict[str, float]:
    """Medians of the time of one cycle, and of the wall time that each cycle took of the whole."""
    numbers = iter(range(rounds * concurrency))
    times: list[float] = []

    async def worker() -> None:
        for number in numbers:
            times.append(await cycle(number))

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    wall = time.perf_counter() - started
    return {"median_ms": statistics.median(times) * 1e3, "wall_ms_per_cycle": wall / len(times) * 1e3}


async def benchmark(quick: bool) -> list[dict[str, object]]:
    folder = Path(tempfile.mkdtemp(prefix="rollout-benchmark-", dir="/tmp"))
    source = folder / "data"
    source.mkdir()
    for number in range(10):
        (source / f"file{number}").write_bytes(os.urandom(2000))
    context = BackendContext(job_id="benchmark", work_dir=folder / "work", cache_dir=folder / "cache", concurrency=8)
    backend = LocalBackend(LocalOptions(), context)
    spec = EnvironmentSpec(
        task_name="benchmark",
        directory=None,
        digest="d",
        resources=Resources(cpus=1, memory_bytes=2 << 30, storage_bytes=10 << 30),
    )
    rows: list[dict[str, object]] = []
    try:
        image = await backend.prepare(spec)
        rounds = 10 if quick else 40
        for concurrency in (1, 8):
            for warm in range(3):
                await local_cycle(backend, image, spec, folder / f"warm{concurrency}", warm, source)
            bare: list[dict[str, float]] = []
            local: list[dict[str, float]] = []
            offset = concurrency * 100_000
            for part in range(3):  # in turns, so that a change of the machine's load meets both
                start = offset + part * 10_000
                bare.append(await measure(lambda n, s=start: bare_cycle(folder, s + n, source), rounds // 3 + 1, concurrency))  # type: ignore[misc]
                local.append(
                    await measure(
                        lambda n, s=start: local_cycle(backend, image, spec, folder, s + n, source),
                        rounds // 3 + 1,
                        concurrency,  # type: ignore[misc]
                    )
                )
            for key in ("median_ms", "wall_ms_per_cycle"):
                bare_value = statistics.median(part[key] for part in bare)
                local_value = statistics.median(part[key] for part in local)
                ratio = local_value / bare_value
                rows.append(
                    {"concurrency": concurrency, "measure": key, "bare": bare_value, "local": local_value, "ratio": ratio}
                )
    finally:
        await backend.aclose()
        shutil.rmtree(folder)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    rows = asyncio.run(benchmark(arguments.quick))
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"{'at once':>8} {'measure':<20} {'bare ms':>9} {'local ms':>9} {'ratio':>6}   (aim: at most {TARGET_RATIO:g})")
    for row in rows:
        print(f"{row['concurrency']:>8} {row['measure']:<20} {row['bare']:>9.1f} {row['local']:>9.1f} {row['ratio']:>6.2f}")


if __name__ == "__main__":
    main()
