"""What a trial of `type: apptainer` costs beside the bare `apptainer` command that does the same steps.

    python benchmarks/apptainer_trials.py [--quick] [--program apptainer] IMAGE.sif

One trial here is: start an instance, copy a folder of 20 files in, run 10 commands, copy the folder out, stop. The bare command
does it with `instance start`, `exec instance://` (files through tar) and `instance stop`. Both take turns in one run; the table
has medians, and the ratio of the whole, which is to be at most 1.5.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rollout.core.protocols import BackendContext
from rollout.core.types import Command, EnvironmentSpec
from rollout_apptainer.backend import ApptainerBackend
from rollout_apptainer.options import ApptainerOptions

COMMANDS = 10
STEPS = ("start", "upload", "commands", "download", "stop", "whole")
_FAKEROOT = [] if os.geteuid() == 0 else ["--fakeroot"]
_ARGUMENTS = ["--containall", "--cleanenv", "--no-mount", "home,tmp,cwd,hostfs,bind-paths", "--no-privs", *_FAKEROOT]


class Clock:
    """Seconds per step."""

    def __init__(self) -> None:
        self.steps: dict[str, float] = {}
        self._began = self._last = time.perf_counter()

    def step(self, name: str) -> None:
        now = time.perf_counter()
        self.steps[name] = now - self._last
        self.steps["whole"] = now - self._began
        self._last = now


async def ours(backend: ApptainerBackend, spec: EnvironmentSpec, files: Path, out: Path) -> dict[str, float]:
    image = await backend.prepare(spec)
    clock = Clock()
    environment = await backend.start(spec, image)
    clock.step("start")
    await environment.upload(files, "/data")
    clock.step("upload")
    for _ in range(COMMANDS):
        result = await environment.exec(Command(argv=("true",)))
        assert result.exit_code == 0
    clock.step("commands")
    await environment.download("/data", out)
    clock.step("download")
    await environment.stop()
    clock.step("stop")
    return clock.steps


def bare(program: str, image: str, folder: Path, files: Path) -> dict[str, float]:
    def run(*arguments: str, **streams: object) -> None:
        subprocess.run([program, "-s", *arguments], check=True, cwd="/", stderr=subprocess.DEVNULL, **streams)  # type: ignore[call-overload]

    name = f"bare-{os.getpid()}"
    overlay, archive = folder / "overlay", folder / "out.tar"
    overlay.mkdir(parents=True)
    inside = ["exec", "--pwd", "/", f"instance://{name}"]
    clock = Clock()
    run("instance", "start", *_ARGUMENTS, "--overlay", str(overlay), image, name, stdout=subprocess.DEVNULL)
    clock.step("start")
    packed = subprocess.run(["tar", "-C", str(files.parent), "-c", files.name], check=True, capture_output=True).stdout
    run(*inside, "tar", "-x", input=packed)
    clock.step("upload")
    for _ in range(COMMANDS):
        run(*inside, "true", stdin=subprocess.DEVNULL)
    clock.step("commands")
    with archive.open("wb") as out:
        run(*inside, "tar", "-c", files.name, stdout=out, stdin=subprocess.DEVNULL)
    subprocess.run(["tar", "-C", str(folder), "-xf", str(archive)], check=True)
    clock.step("download")
    run("instance", "stop", "--signal", "KILL", name, stdout=subprocess.DEVNULL)
    clock.step("stop")
    return clock.steps


async def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("image", nargs="?", help="a SIF file with tar in it")
    parser.add_argument("--program", default="apptainer")
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 10")
    arguments = parser.parse_args()
    if arguments.image is None:
        print("apptainer_trials: no image was named, so nothing is measured")
        return 0
    with tempfile.TemporaryDirectory(prefix="rollout-bench-") as name:
        folder = Path(name)
        files = folder / "data"
        files.mkdir()
        for number in range(20):
            (files / f"{number}.txt").write_bytes(os.urandom(2000))
        image = os.path.abspath(arguments.image)
        options = ApptainerOptions(program=arguments.program, image=image, scratch=str(folder / "scratch"))
        context = BackendContext(job_id="bench", work_dir=folder / "work", cache_dir=folder / "cache", concurrency=1)
        backend = ApptainerBackend(options, context)
        spec = EnvironmentSpec(task_name="bench", directory=None, digest="bench")
        rounds: dict[str, list[dict[str, float]]] = {"rollout": [], "apptainer": []}
        try:
            for number in range(3 if arguments.quick else 10):
                rounds["rollout"].append(await ours(backend, spec, files, folder / f"out-{number}"))
                rounds["apptainer"].append(
                    await asyncio.to_thread(bare, arguments.program, image, folder / f"bare-{number}", files)
                )
        finally:
            await backend.aclose()
    print(f"{'milliseconds':12}{'rollout':>10}{'apptainer':>11}{'ratio':>8}")
    for step in STEPS:
        mine, its = (statistics.median(one[step] for one in rounds[who]) * 1000 for who in ("rollout", "apptainer"))
        print(f"{step:12}{mine:10.0f}{its:11.0f}{mine / its:8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
