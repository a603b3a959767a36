"""Trials of `type: ssh` against the same steps over a bare, multiplexed `ssh`; many commands at once; many small files.

    python benchmarks/ssh_trials.py [--quick] [--json] [--host root@lab1 [--lease] --identity-file ~/.ssh/id --known-hosts FILE]

Without --host it starts an sshd of its own on a port of the loopback, which takes root; without sshd it says so and ends.
`mode: host` is measured with --lease alone, because it has the whole host to itself and removes what is new there.

- A trial: copy ten files in, run two commands, copy a folder out, leave nothing. The bare side makes and removes a folder; it
  has no sandbox, no deadlines, no process kill. Its connection is there already (ControlMaster), as ours is. Ratio of the wall
  times, in turns, medians: meant to stay at or below 1.5.
- 200 commands at once on one host, and 50: the time per command must not grow with their number (ratio at or below 2).
- 1,000 files of 2 kB up and down, against `tar | ssh` and `ssh | tar`: at or below 2.

The last line says whether all of it holds. `--json` prints the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rollout.core.protocols import BackendContext, Environment
from rollout.core.types import Command, EnvironmentSpec
from rollout_ssh.backend import SshBackend
from rollout_ssh.options import SshOptions

TRIAL_TARGET, CROWD_TARGET, FILES_TARGET = 1.5, 2.0, 2.0
SPEC = EnvironmentSpec(task_name="bench", directory=None, digest="bench", workdir="/app")
THERE = {"namespace": "$HOME/rollout-bench", "host": "/rollout-bench"}
"""Where the bare side writes: on the disk that our side writes to."""
SCRIPTS = ("ls data > listing", "cat data/* | wc -c")


class Target(NamedTuple):
    """The host, for both sides."""

    host: str
    identity_file: str
    known_hosts: str

    def ssh(self, control: str) -> list[str]:
        user, _, rest = self.host.rpartition("@")
        name, _, port = rest.partition(":")
        options = {"ControlPath": control, "ControlMaster": "auto", "ControlPersist": "60", "IdentityFile": self.identity_file}
        options |= {"UserKnownHostsFile": self.known_hosts, "Port": port or "22", "IdentitiesOnly": "yes"}
        words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        return ["ssh", "-F", "none", *words, "-l", user or "root", name]

    def backend(self, folder: Path, mode: str) -> SshBackend:
        fields: dict[str, Any] = {"hosts": [self.host], "mode": mode, "config": None, "agent": False}
        fields |= {"identity_file": self.identity_file, "known_hosts": self.known_hosts}
        context = BackendContext(job_id="bench", work_dir=folder / "work", cache_dir=folder / "cache", concurrency=8)
        return SshBackend(msgspec.convert(fields, SshOptions), context)


class Bare:
    """A multiplexed ssh, in processes."""

    def __init__(self, target: Target, control: str) -> None:
        self._ssh = target.ssh(control)
        self.run("true")

    def run(self, script: str) -> None:
        subprocess.run([*self._ssh, script], check=True, stdout=subprocess.DEVNULL)

    def up(self, source: Path, folder: str) -> None:
        there = shlex.join([*self._ssh, f"mkdir -p {folder} && tar -C {folder} -xf -"])
        line = f"tar -C {shlex.quote(str(source))} -cf - . | {there}"
        subprocess.run(["sh", "-c", line], check=True)

    def down(self, folder: str, target: Path) -> None:
        target.mkdir()
        line = f"{shlex.join([*self._ssh, f'tar -C {folder} -cf - .'])} | tar -C {shlex.quote(str(target))} -xf -"
        subprocess.run(["sh", "-c", line], check=True)

    def trial(self, source: Path, target: Path, there: str) -> None:
        self.run(f"mkdir {there}")
        self.up(source, f"{there}/data")
        for script in SCRIPTS:
            self.run(f"cd {there} && {script}")
        self.down(there, target)
        self.run(f"rm -r {there}")

    def close(self) -> None:
        subprocess.run([*self._ssh[:-1], "-O", "exit", self._ssh[-1]], check=False, stderr=subprocess.DEVNULL)


async def our_trial(backend: SshBackend, source: Path, target: Path) -> None:
    environment = await backend.start(SPEC, await backend.prepare(SPEC))
    try:
        await environment.upload(source, "/app/data")
        for script in SCRIPTS:
            await sh(environment, script)
        await environment.download("/app", target)
    finally:
        await environment.stop()


async def sh(environment: Environment, script: str) -> None:
    result = await environment.exec(Command(argv=("sh", "-c", script)))
    assert result.exit_code == 0, result.stderr


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


def timed_bare(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def files(folder: Path, count: int, size: int) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number}").write_bytes(os.urandom(size))
    return folder


async def trials(target: Target, bare: Bare, folder: Path, mode: str, rounds: int) -> tuple[float, float]:
    """Seconds of ours and of the bare side."""
    source = files(folder / f"in-{mode}", 10, 1000)
    backend = target.backend(folder / mode, mode)
    ours, theirs = [], []
    try:
        await our_trial(backend, source, folder / f"warm-{mode}")
        for number in range(rounds):
            ours.append(await timed(lambda out=folder / f"ours-{mode}-{number}": our_trial(backend, source, out)))  # type: ignore[misc]
            theirs.append(timed_bare(lambda out=folder / f"theirs-{mode}-{number}": bare.trial(source, out, THERE[mode])))  # type: ignore[misc]
    finally:
        await backend.aclose()
    return statistics.median(ours), statistics.median(theirs)


async def crowd(target: Target, folder: Path, mode: str) -> tuple[float, float]:
    """Seconds per command, of 50 and of 200 at once."""
    backend = target.backend(folder / f"crowd-{mode}", mode)
    try:
        environment = await backend.start(SPEC, await backend.prepare(SPEC))
        try:
            await asyncio.gather(*(sh(environment, "true") for _ in range(200)))
            took = {}
            for count in (50, 200):
                rounds = [
                    await timed(lambda count=count: asyncio.gather(*(sh(environment, "true") for _ in range(count))))  # type: ignore[misc]
                    for _ in range(3)
                ]
                took[count] = statistics.median(rounds) / count
        finally:
            await environment.stop()
    finally:
        await backend.aclose()
    return took[50], took[200]


async def transfers(target: Target, bare: Bare, folder: Path, mode: str, rounds: int) -> list[tuple[str, float, float]]:
    """(direction, ours, bare) in seconds, of 1,000 files."""
    source = files(folder / f"many-{mode}", 1000, 2048)
    backend = target.backend(folder / f"files-{mode}", mode)
    took: dict[str, list[float]] = {"up": [], "down": [], "bare up": [], "bare down": []}
    try:
        environment = await backend.start(SPEC, await backend.prepare(SPEC))
        try:
            for number in range(rounds):
                out = folder / f"down-{mode}-{number}"
                took["up"].append(await timed(lambda number=number: environment.upload(source, f"/app/in{number}")))  # type: ignore[misc]
                took["down"].append(await timed(lambda out=out, number=number: environment.download(f"/app/in{number}", out)))  # type: ignore[misc]
                there = f"{THERE[mode]}-{number}"
                took["bare up"].append(timed_bare(lambda there=there: bare.up(source, there)))  # type: ignore[misc]
                took["bare down"].append(timed_bare(lambda there=there, out=out: bare.down(there, out.with_suffix(".bare"))))  # type: ignore[misc]
                bare.run(f"rm -r {there}")
                shutil.rmtree(out)
        finally:
            await environment.stop()
    finally:
        await backend.aclose()
    middle = {name: statistics.median(values) for name, values in took.items()}
    return [(way, middle[way], middle[f"bare {way}"]) for way in ("up", "down")]


@contextmanager
def own_sshd(folder: Path) -> Iterator[Target]:
    """An sshd of ours on the loopback."""
    port = 20000 + os.getpid() % 20000
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    key = (folder / "host_key.pub").read_text().split()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {key[0]} {key[1]}\n")
    lines = [f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {folder}/host_key", f"AuthorizedKeysFile {folder}/key.pub"]
    lines += ["PermitRootLogin yes", "UsePAM no", "StrictModes no", "PidFile none"]
    (folder / "sshd_config").write_text("\n".join(lines) + "\n")
    Path("/run/sshd").mkdir(exist_ok=True)
    program = shutil.which("sshd") or "/usr/sbin/sshd"
    log = folder / "log"
    server = subprocess.Popen([program, "-D", "-f", folder / "sshd_config", "-E", log])
    try:
        while not log.exists() or "listening" not in log.read_text():
            if server.poll() is not None:
                raise SystemExit("sshd does not start")
            time.sleep(0.01)
        yield Target(f"root@127.0.0.1:{port}", str(folder / "key"), str(folder / "known_hosts"))
    finally:
        server.terminate()
        server.wait()


async def measure(target: Target, folder: Path, modes: Sequence[str], *, quick: bool, as_json: bool) -> bool:
    rounds = 5 if quick else 15
    bare = Bare(target, str(folder / "control"))
    ratios: dict[str, tuple[float, float]] = {}
    rows: list[str] = []
    try:
        for mode in modes:
            ours, theirs = await trials(target, bare, folder, mode, rounds)
            ratios[f"{mode}: trial"] = ours / theirs, TRIAL_TARGET
            rows.append(
                f"{mode:10} trial                {ours * 1e3:8.1f} ms   bare {theirs * 1e3:8.1f} ms   {ours / theirs:5.2f}"
            )
            few, many = await crowd(target, folder, mode)
            ratios[f"{mode}: 200 at once"] = many / few, CROWD_TARGET
            rows.append(f"{mode:10} 200 at once, each    {many * 1e3:8.2f} ms   50   {few * 1e3:8.2f} ms   {many / few:5.2f}")
            for way, mine, other in await transfers(target, bare, folder, mode, max(3, rounds // 3)):
                ratios[f"{mode}: 1,000 files {way}"] = mine / other, FILES_TARGET
                rows.append(
                    f"{mode:10} 1,000 files {way:8} {mine * 1e3:8.1f} ms   bare {other * 1e3:8.1f} ms   {mine / other:5.2f}"
                )
    finally:
        bare.close()
    met = all(ratio <= most for ratio, most in ratios.values())
    if as_json:
        print(json.dumps({name: round(ratio, 3) for name, (ratio, _) in ratios.items()}))
    else:
        print("\n".join(rows))
        print("all within their limits" if met else "beyond a limit: " + ", ".join(n for n, (r, m) in ratios.items() if r > m))
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description="Trials over ssh, many commands at once, many small files.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--host", help="[user@]host[:port]")
    parser.add_argument("--lease", action="store_true", help="`mode: host` too: the host must be nobody else's meanwhile")
    parser.add_argument("--identity-file")
    parser.add_argument("--known-hosts", default=os.path.expanduser("~/.ssh/known_hosts"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollout-bench-") as name:
        folder = Path(name)
        if given.host:
            target = Target(given.host, given.identity_file, given.known_hosts)
            modes = ("namespace", "host") if given.lease else ("namespace",)
            return 0 if asyncio.run(measure(target, folder, modes, quick=given.quick, as_json=given.json)) else 1
        if os.geteuid() != 0 or not (shutil.which("sshd") or os.path.exists("/usr/sbin/sshd")):
            print("not measured: without --host it takes root and an installed sshd", file=sys.stderr)
            return 0
        with own_sshd(folder) as target:
            return 0 if asyncio.run(measure(target, folder, ("namespace",), quick=given.quick, as_json=given.json)) else 1


if __name__ == "__main__":
    sys.exit(main())
