"""Limits of a task on a bare host: they hold where the host has control groups, and are named where it has none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from require import require
from rollout.core.protocols import BackendContext
from rollout.core.types import Command, EnvironmentSpec, ExecResult, Resources
from rollout_ssh.backend import SshBackend
from rollout_ssh.bare import BareEnvironment
from rollout_ssh.options import SshOptions
from ssh_machines import options

WITH_GROUPS, WITHOUT = 18, 17
MEMORY = 64 << 20
SPEC = EnvironmentSpec(
    task_name="limits",
    directory=None,
    digest="limits",
    resources=Resources(cpus=0.5, memory_bytes=MEMORY, storage_bytes=1 << 20),
)


@pytest.fixture(autouse=True, scope="module")
def _machines() -> None:
    require("ssh")


class Host:
    """A leased machine."""

    def __init__(self, number: int, folder: Path) -> None:
        self.warnings: list[str] = []
        context = BackendContext(
            job_id="limits", work_dir=folder / "work", cache_dir=folder / "cache", concurrency=1, warn=self.warnings.append
        )
        self.backend = SshBackend(msgspec.convert(options(number, mode="host", pids=50), SshOptions), context)
        self.backend.check(SPEC)
        self.backend.check(SPEC)
        self.environment: BareEnvironment

    async def sh(self, script: str) -> ExecResult:
        return await self.environment.exec(Command(argv=("sh", "-c", script), cwd="/tmp"))


@pytest_asyncio.fixture
async def host(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(request.param, tmp_path)
    environment = await host.backend.start(SPEC, await host.backend.prepare(SPEC))
    assert isinstance(environment, BareEnvironment)
    host.environment = environment
    yield host
    await host.environment.stop()
    await host.backend.aclose()


@pytest.mark.parametrize("host", [WITH_GROUPS], indirect=True)
async def test_limits_of_a_task_hold_on_a_bare_host_with_control_groups(host: Host) -> None:
    assert host.environment.enforced == ("memory", "cpu", "pids")
    eats = await host.sh("head -c 200000000 /dev/zero | tail -c 190000000 > /dev/null; echo $?")
    assert (eats.stdout, eats.out_of_memory) == (b"137\n", True)
    after = await host.sh("echo fine")
    assert (after.stdout, after.out_of_memory) == (b"fine\n", False)
    quota = await host.sh("cat /sys/fs/cgroup/*/rollout-limits-*/cpu.max /sys/fs/cgroup/*/rollout-limits-*/cpu.cfs_quota_us")
    assert quota.stdout.split()[0] == b"50000"
    large = await host.sh("head -c 2000000 /dev/zero > large; wc -c < large")
    assert large.stdout == b"1048576\n", "no file may be larger than the storage"
    crowd = await host.sh("for i in $(seq 100); do sleep 54321 & done; wait")
    assert b"fork" in crowd.stderr.lower()
    assert (await host.sh("echo alive")).stdout == b"alive\n", "with all the processes that there may be"
    assert [line for line in host.warnings if "limits" in line] == [
        "root@10.213.77.28 does not fully enforce these limits: storage (for each file, not for all together)"
    ]


@pytest.mark.parametrize("host", [WITHOUT], indirect=True)
async def test_limits_that_a_bare_host_cannot_enforce_are_named_once(host: Host) -> None:
    assert host.environment.enforced == ()
    assert (await host.sh("echo fine")).stdout == b"fine\n"
    assert [line for line in host.warnings if "limits" in line] == [
        "root@10.213.77.27 does not fully enforce these limits: memory, cpus, pids (not at all: this user may not make control "
        "groups here); storage (for each file, not for all together)"
    ]
