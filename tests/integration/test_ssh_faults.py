"""What goes wrong with other machines: sshd dies, the network is cut, Rollout is killed. Nothing hangs, nothing stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from integration.jobs import command, environ, rollout, trial_results, write_job, write_task
from require import require
from rollout.core.errors import HostLostError
from rollout.core.protocols import BackendContext
from rollout.core.types import Command, EnvironmentSpec
from rollout_ssh.backend import SshBackend
from rollout_ssh.options import SshOptions
from ssh_machines import NOTHING_LEFT, do, options, run, wait_until

MODES = ("namespace", "host")
SPEC = EnvironmentSpec(task_name="faults", directory=None, digest="faults")
ONE, OTHER = 4, 5


@pytest.fixture(autouse=True)
def _machines() -> Iterator[None]:
    require("ssh")
    for number in (ONE, OTHER):
        # A lease of the test before is given back first: without its list nobody would know what to remove.
        run(number, "i=0; while [ -d /tmp/.rollout-lease ] && [ $i -lt 200 ]; do i=$((i+1)); sleep 0.05; done")
        run(number, "rm -rf /root/.cache/rollout/ssh/work /logs /tests /oracle /app /tmp/.rollout-lease")
    yield
    for number in (ONE, OTHER):
        do("mend", number)
        run(number, "pgrep -x sshd > /dev/null || /usr/sbin/sshd -f /run/rollout/sshd_config")


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warnings: list[str] = []
        self.backends: list[SshBackend] = []

    def backend(self, *numbers: int, job_id: str = "faults", **more: Any) -> SshBackend:
        context = BackendContext(
            job_id=job_id,
            work_dir=self.folder / "work",
            cache_dir=self.folder / "cache",
            concurrency=8,
            warn=self.warnings.append,
        )
        backend = SshBackend(msgspec.convert(options(*numbers, **more), SshOptions), context)
        self.backends.append(backend)
        return backend


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for backend in bench.backends:
        await backend.aclose()


async def begin(environment: Any, script: str) -> tuple[asyncio.Future[Any], list[bytes]]:
    """A command that has printed something."""
    printed = asyncio.Event()
    chunks: list[bytes] = []

    def sink(stream: str, chunk: bytes) -> None:
        chunks.append(chunk)
        printed.set()

    running = asyncio.ensure_future(environment.exec(Command(argv=("sh", "-c", script), cwd="/"), sink))
    async with asyncio.timeout(60):
        await printed.wait()
    return running, chunks


@pytest.mark.parametrize("mode", MODES)
async def test_a_connection_that_breaks_is_a_lost_host_and_the_host_puts_itself_back(bench: Bench, mode: str) -> None:
    backend = bench.backend(ONE, mode=mode)
    environment = await backend.start(SPEC, await backend.prepare(SPEC))
    running, _ = await begin(environment, "echo started; setsid sleep 54321 & sleep 54321")
    do("kill", ONE)
    with pytest.raises(HostLostError, match=r"10\.213\.77\.14 is lost"):
        async with asyncio.timeout(60):
            await running
    with pytest.raises(HostLostError):
        await environment.exec(Command(argv=("true",)))
    with pytest.raises(HostLostError):
        await environment.upload(Path(__file__), "/tmp/file")
    await environment.stop()
    await asyncio.to_thread(wait_until, ONE, NOTHING_LEFT)


@pytest.mark.parametrize("mode", MODES)
async def test_a_network_that_is_cut_for_good_is_noticed_on_both_sides(bench: Bench, mode: str) -> None:
    backend = bench.backend(ONE, mode=mode, lost_after_sec=2)
    environment = await backend.start(SPEC, await backend.prepare(SPEC))
    running, _ = await begin(environment, "echo started; setsid sleep 54321 & sleep 54321")
    do("cut", ONE)
    with pytest.raises(HostLostError, match="no answer for"):
        async with asyncio.timeout(60):
            await running
    async with asyncio.timeout(60):
        await environment.stop()
    await asyncio.to_thread(wait_until, ONE, NOTHING_LEFT)


@pytest.mark.parametrize("mode", MODES)
async def test_a_network_that_is_cut_for_thirty_seconds_is_sat_out(bench: Bench, mode: str) -> None:
    backend = bench.backend(ONE, mode=mode)
    environment = await backend.start(SPEC, await backend.prepare(SPEC))
    running, chunks = await begin(environment, "i=0; while [ $i -lt 320 ]; do echo $i; i=$((i+1)); sleep 0.1; done")
    do("cut", ONE)
    await asyncio.sleep(30)
    do("mend", ONE)
    async with asyncio.timeout(120):
        result = await running
        assert result.exit_code == 0
        assert b"".join(chunks).split() == [b"%d" % number for number in range(320)]
        assert (await environment.exec(Command(argv=("echo", "alive")))).stdout == b"alive\n"
        await environment.stop()


async def test_a_transfer_under_way_when_the_host_is_lost_ends_with_it(bench: Bench, tmp_path: Path) -> None:
    backend = bench.backend(ONE, lost_after_sec=2)
    environment = await backend.start(SPEC, await backend.prepare(SPEC))
    (tmp_path / "large").write_bytes(os.urandom(1 << 20) * 400)
    uploading = asyncio.ensure_future(environment.upload(tmp_path / "large", "/tmp/large"))
    await asyncio.sleep(0.2)
    do("cut", ONE)
    with pytest.raises(HostLostError):
        async with asyncio.timeout(60):
            await uploading
    await environment.stop()


async def test_sandboxes_on_a_lost_host_do_not_touch_those_on_another(bench: Bench) -> None:
    backend = bench.backend(ONE, OTHER)
    here, there = [await backend.start(SPEC, await backend.prepare(SPEC)) for _ in range(2)]
    on_one, _ = await begin(here, "echo started; sleep 54321")
    on_other, _ = await begin(there, "echo started; until [ -e /tmp/go ]; do sleep 0.1; done; echo done")
    do("kill", ONE)
    with pytest.raises(HostLostError):
        await on_one
    await there.exec(Command(argv=("touch", "/tmp/go")))
    assert (await on_other).stdout.endswith(b"done\n")
    await asyncio.gather(here.stop(), there.stop())


@pytest.mark.parametrize("mode", MODES)
async def test_starts_that_are_cancelled_leave_no_connection_behind(bench: Bench, mode: str) -> None:
    backend = bench.backend(ONE, mode=mode)
    for delay in (0.0, 0.01, 0.05, 0.1):
        starting = asyncio.ensure_future(backend.start(SPEC, "none"))
        await asyncio.sleep(delay)
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await starting).stop()
    await backend.aclose()
    await asyncio.to_thread(wait_until, ONE, "[ \"$(ps ax | grep -c '[s]shd: root@notty')\" = 0 ]")


async def test_what_a_relay_that_was_killed_left_is_found_and_removed(bench: Bench) -> None:
    backend = bench.backend(ONE, job_id="left-behind")
    environment = await backend.start(SPEC, await backend.prepare(SPEC))
    running, _ = await begin(environment, "echo started; sleep 54321")
    run(ONE, "pkill -KILL -f '[r]ollout = .relay'")
    with pytest.raises(HostLostError):
        await running
    await environment.stop()
    assert run(ONE, "ls -A /root/.cache/rollout/ssh/work/left-behind").strip()
    again = bench.backend(ONE, job_id="left-behind")
    removed = await again.reap("left-behind")
    assert any("sandbox files" in line for line in removed)
    await again.aclose()
    third = bench.backend(ONE)
    assert list(await third.reap("left-behind")) == []
    await third.aclose()
    await asyncio.to_thread(wait_until, ONE, NOTHING_LEFT)


@pytest.mark.parametrize("mode", MODES)
def test_a_job_whose_sshd_is_killed_and_restarted_scores_every_trial(tmp_path: Path, mode: str) -> None:
    path = _slow_job(tmp_path, options(ONE, mode=mode))
    with subprocess.Popen(command(path), cwd=tmp_path, env=environ(tmp_path), stdout=subprocess.DEVNULL) as job:
        wait_until(ONE, "pgrep -f '[s]leep 4.321' > /dev/null")
        do("kill", ONE)
        do("start", ONE)
        assert job.wait(120) == 0
    [result] = trial_results(tmp_path / "jobs" / "job").values()
    assert result["reward"] == 1.0
    assert [record["error"]["type"] for record in result["tries"]] == ["environment_host_lost"]
    wait_until(ONE, NOTHING_LEFT)


@pytest.mark.parametrize("mode", MODES)
def test_a_job_goes_on_without_a_host_that_is_cut_off(tmp_path: Path, mode: str) -> None:
    path = _slow_job(tmp_path, options(ONE, OTHER, mode=mode, lost_after_sec=2, connect_timeout_sec=2), tasks=4)
    with subprocess.Popen(command(path), cwd=tmp_path, env=environ(tmp_path), stdout=subprocess.DEVNULL) as job:
        wait_until(ONE, "pgrep -f '[s]leep 4.321' > /dev/null")
        do("cut", ONE)
        assert job.wait(120) == 0
    results = trial_results(tmp_path / "jobs" / "job").values()
    assert [result["reward"] for result in results] == [1.0] * 4
    assert any(result["tries"] for result in results)
    wait_until(ONE, NOTHING_LEFT)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_stays_on_the_hosts_of_a_job_that_was_killed(tmp_path: Path, mode: str) -> None:
    path = _slow_job(tmp_path, options(ONE, OTHER, mode=mode), tasks=2)
    with subprocess.Popen(command(path), cwd=tmp_path, env=environ(tmp_path), stdout=subprocess.DEVNULL) as job:
        for number in (ONE, OTHER):
            wait_until(number, "pgrep -f '[s]leep 4.321' > /dev/null")
        job.send_signal(signal.SIGKILL)
        job.wait(60)
    for number in (ONE, OTHER):
        wait_until(number, NOTHING_LEFT)
    cleaned = rollout(tmp_path, "clean", "jobs/job")
    assert cleaned.returncode == 0, cleaned.stderr
    assert rollout(tmp_path, path).returncode == 0
    results = trial_results(tmp_path / "jobs" / "job").values()
    assert [result["reward"] for result in results] == [1.0, 1.0]


@pytest.mark.parametrize("mode", MODES)
def test_a_host_that_was_cut_off_when_its_job_was_killed_ends_its_trials_and_clean_names_it_until_it_is_back(
    tmp_path: Path, mode: str
) -> None:
    path = _slow_job(tmp_path, options(ONE, OTHER, mode=mode, lost_after_sec=2, connect_timeout_sec=2), tasks=2, sleep=54321)
    with subprocess.Popen(command(path), cwd=tmp_path, env=environ(tmp_path), stdout=subprocess.DEVNULL) as job:
        for number in (ONE, OTHER):
            wait_until(number, "pgrep -f '[s]leep 54321' > /dev/null")
        job.send_signal(signal.SIGSTOP)
        do("cut", ONE)
        run(OTHER, "pkill -KILL -f '[r]ollout = .relay|[r]ollout-holder'")
        job.send_signal(signal.SIGKILL)
        job.wait(60)
    cleaned = rollout(tmp_path, "clean", "jobs/job")
    assert cleaned.returncode == 1
    assert "10.213.77.14: no answer within 2 s" in cleaned.stderr
    assert "10.213.77.15" not in cleaned.stderr
    assert "10.213.77.15" in cleaned.stdout, "the other host was cleaned"
    wait_until(OTHER, NOTHING_LEFT)
    wait_until(ONE, NOTHING_LEFT)  # it is still cut off
    do("mend", ONE)
    again = rollout(tmp_path, "clean", "jobs/job")
    assert (again.returncode, again.stderr) == (0, "")


def _slow_job(folder: Path, environment: dict[str, Any], tasks: int = 1, sleep: float = 4.321) -> Path:
    """Trials that take four seconds, or as long as you like, and then succeed."""
    for number in range(tasks):
        write_task(folder / "tasks" / f"t{number}")
    agent = {"name": "slow", "execute": f"sleep {sleep}; echo 42 > /app/answer.txt"}
    return write_job(folder, {"environment": {"type": "ssh", "options": environment}, "agents": [agent]})
