"""`type: ssh`, `mode: apptainer`: the Apptainer of other machines, with images of this one and of theirs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from integration.jobs import rollout, trial_results, write_job, write_task
from require import APPTAINER, require
from rollout.core.errors import EnvironmentLostError, HostLostError, SandboxError
from rollout.core.protocols import BackendContext
from rollout.core.types import EnvironmentSpec
from rollout.testing.environment import run
from rollout_ssh.backend import SshBackend
from rollout_ssh.options import SshOptions
from ssh_machines import do, host, install_apptainer, options, wait_until
from ssh_machines import run as on_machine

PROGRAM = str(APPTAINER / "usr/bin/apptainer")
SMALL = str(APPTAINER / "small.sif")
MACHINES = (20, 19)
"""Of which the second has no control groups, without which root cannot start an instance."""
NOTHING_LEFT = (
    '[ -z "$(find /root/*/work /root/.cache/rollout/ssh/work /home/lab/*/work /tmp/rollout-[0-9]* -mindepth 1 2> /dev/null)" ] '
    "&& ! pgrep -f '[A]pptainer instance|[r]ollout = .relay|[s]leep 54321' > /dev/null"
)


@pytest.fixture(autouse=True, scope="module")
def _machines() -> None:
    require("ssh")
    require("apptainer")
    for number in MACHINES:
        install_apptainer(number)


@pytest.fixture
def new_backend(tmp_path: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def make(user: str = "root", **changes: Any) -> AsyncIterator[SshBackend]:
        job = f"elsewhere-{os.urandom(3).hex()}"
        context = BackendContext(job_id=job, work_dir=tmp_path / "work", cache_dir=tmp_path / "cache", concurrency=4)
        wanted = {**options(MACHINES[0], user=user), "mode": "apptainer", "engine": {"program": PROGRAM}, **changes}
        backend = SshBackend(msgspec.convert(wanted, SshOptions), context)
        try:
            yield backend
        finally:
            await backend.aclose()

    return make


SPEC = EnvironmentSpec(task_name="task", directory=None, digest="d")


def test_an_image_of_this_machine_is_sent_once_to_each_host_and_trials_run_there(tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks" / "one", toml=f'[environment]\ndocker_image = "{SMALL}"\nworkdir = "/app"\n')
    for script in (task / "tests" / "test.sh", task / "solution" / "solve.sh"):
        script.write_text(script.read_text().replace("/bin/bash", "/bin/sh"))
    environment: dict[str, Any] = {"type": "ssh", "delete": False}
    environment["options"] = options(mode="apptainer", slots=2, engine={"program": PROGRAM}, folder="~/sent")
    environment["options"]["hosts"] = [host(MACHINES[0]), host(MACHINES[1], "lab")]
    done = rollout(tmp_path, write_job(tmp_path, {"environment": environment, "n_attempts": 4, "n_concurrent_trials": 4}))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [result["reward"] for result in trial_results(tmp_path / "jobs" / "job").values()] == [1.0] * 4
    for number, home in zip(MACHINES, ("/root", "/home/lab"), strict=True):
        wait_until(number, NOTHING_LEFT)
        assert on_machine(number, f"ls {home}/sent/images | wc -l; rm -r {home}/sent") == "1\n"


async def test_an_image_of_the_hosts_needs_nothing_here(new_backend: Any) -> None:
    async with new_backend(user="lab", image=SMALL) as backend:
        backend.check(SPEC)
        environment = await backend.start(SPEC, await backend.prepare(SPEC))
        try:
            said = await run(environment, "hostname; id -u; pwd; touch /etc/x; ls -A /home")
            assert said.stdout.decode() == f"machine{MACHINES[0]}\n0\n/app\n", said
        finally:
            await environment.stop()
    async with new_backend(image="/no/such.sif") as backend:
        with pytest.raises(SandboxError, match=r"there is no image /no/such\.sif there"):
            backend.check(SPEC)


async def test_an_image_that_was_sent_for_a_job_is_removed_with_it(new_backend: Any) -> None:
    spec = EnvironmentSpec(task_name="task", directory=None, digest="d", docker_image=SMALL)
    async with new_backend(user="lab") as backend:
        backend.check(spec)
        image = await backend.prepare(spec)
        for _ in range(2):
            await (await backend.start(spec, image)).stop()
        look = "ls /home/lab/.cache/rollout/ssh/images | wc -l"
        assert on_machine(MACHINES[0], look) == "1\n"
        await backend.remove(image)
        assert on_machine(MACHINES[0], look) == "0\n"


async def test_a_host_without_the_command_is_refused_before_anything_starts(new_backend: Any) -> None:
    async with new_backend(image=SMALL, engine={"program": "/no/apptainer"}) as backend:
        with pytest.raises(SandboxError, match=r"there is no /no/apptainer there: install Apptainer"):
            backend.check(SPEC)


async def test_an_instance_that_is_killed_there_is_lost_and_leaves_nothing(new_backend: Any) -> None:
    async with new_backend(image=SMALL) as backend:
        backend.check(SPEC)
        environment = await backend.start(SPEC, await backend.prepare(SPEC))
        running = asyncio.ensure_future(run(environment, "echo up; sleep 54321"))
        assert (await run(environment, "echo alive")).stdout == b"alive\n"
        on_machine(MACHINES[0], "kill -KILL $(cat /root/.cache/rollout/ssh/work/*/*/pid /tmp/rollout-0-*/*/pid 2> /dev/null)")
        with pytest.raises(EnvironmentLostError):
            await running
        await environment.stop()
    wait_until(MACHINES[0], NOTHING_LEFT)


async def test_what_a_killed_relay_and_its_keepers_left_is_removed(new_backend: Any) -> None:
    async with new_backend(image=SMALL) as backend:
        environment = await backend.start(SPEC, await backend.prepare(SPEC))
        running = asyncio.ensure_future(run(environment, "sleep 54321"))
        await run(environment, "true")
        on_machine(MACHINES[0], "pkill -KILL -f '[r]ollout = .relay'")
        await asyncio.gather(running, return_exceptions=True)
        await environment.stop()
        removed = await backend.reap(backend._context.job_id)
        assert any("sandbox files" in line for line in removed), removed
    wait_until(MACHINES[0], NOTHING_LEFT)


async def test_a_host_that_is_cut_off_is_lost_and_ends_its_instances_by_itself(new_backend: Any) -> None:
    async with new_backend(image=SMALL, lost_after_sec=2, connect_timeout_sec=2) as backend:
        environment = await backend.start(SPEC, await backend.prepare(SPEC))
        running = asyncio.ensure_future(run(environment, "sleep 54321"))
        await run(environment, "true")
        do("cut", MACHINES[0])
        try:
            with pytest.raises(HostLostError):
                await running
            await environment.stop()
            await asyncio.to_thread(wait_until, MACHINES[0], NOTHING_LEFT)
        finally:
            do("mend", MACHINES[0])
