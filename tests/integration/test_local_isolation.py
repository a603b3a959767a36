"""What a trial under `type: local` can do to the machine and to others: nothing."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.jobs import host_processes
from rollout.builtin.local import LocalBackend, LocalOptions
from rollout.core.errors import EnvironmentLostError, TeardownError
from rollout.core.protocols import BackendContext
from rollout.core.sandbox.environment import SandboxEnvironment
from rollout.core.sandbox.inside import cgroups
from rollout.core.types import Command, EnvironmentSpec, Resources
from rollout.testing.environment import ok, run

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be able to do harm")


JOB = f"isolation-{os.getpid()}"
"""Somebody else on this machine may run the same tests."""


def new_backend(folder: Path, *, job_id: str = JOB, private: tuple[Path, ...] = (), **options: object) -> LocalBackend:
    context = BackendContext(
        job_id=job_id, work_dir=folder / f"work-{job_id}", cache_dir=folder / "cache", concurrency=2, private_paths=private
    )
    return LocalBackend(LocalOptions(**options), context)  # type: ignore[arg-type]


def new_spec(**fields: object) -> EnvironmentSpec:
    return EnvironmentSpec(task_name="t", directory=None, digest="d", **fields)  # type: ignore[arg-type]


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[SandboxEnvironment]:
    backend = new_backend(tmp_path)
    environment = await backend.start(new_spec(), await backend.prepare(new_spec()))
    yield environment
    await environment.stop()
    await backend.aclose()


async def eventually_gone(needle: str) -> bool:
    for _ in range(400):
        if not host_processes(needle):
            return True
        await asyncio.sleep(0.025)
    return False


# --- files of the machine ---


async def test_removing_everything_leaves_the_machine_as_it_was(environment: SandboxEnvironment) -> None:
    probes = ["/etc", "/usr", "/usr/bin", "/var/lib", "/opt"]
    before = {path: sorted(os.listdir(path)) for path in probes}
    # all of it but the largest folders, which take long
    await run(environment, "rm -rf /etc /usr/share/doc /usr/local /var/lib /var/log /boot /srv /home /root /run /bin /usr/bin")
    assert (await run(environment, "true")).exit_code == 127
    assert {path: sorted(os.listdir(path)) for path in probes} == before
    assert Path("/etc/passwd").stat().st_size > 10


async def test_changes_of_system_files_stay_inside(environment: SandboxEnvironment) -> None:
    before = Path("/etc/hosts").read_bytes()
    await run(environment, "mv /etc/hosts /etc/hosts2; echo changed > /etc/hosts; mkdir -p /usr/local/made-by-trial")
    assert Path("/etc/hosts").read_bytes() == before
    assert not Path("/usr/local/made-by-trial").exists()


@needs_root
async def test_keys_and_home_folders_are_not_there(environment: SandboxEnvironment, tmp_path: Path) -> None:
    assert await ok(environment, "ls -A /root /home /mnt /media") == "/home:\n\n/media:\n\n/mnt:\n\n/root:\n"
    assert await ok(environment, "ls -A /run") == "lock\n"
    hidden = [
        "/etc/ssl/private",
        "/etc/shadow-",
        "/var/spool/cron",
        "/var/backups",
        str(tmp_path),
        *map(str, Path("/etc/ssh").glob("*_key")),
    ]
    for path in hidden:
        assert (await run(environment, f"test -e '{path}'")).exit_code == 1, path
    assert await ok(environment, "grep -v ':[*]:' /etc/shadow || true") == "", "a password hash is readable"


async def test_sockets_of_daemons_are_not_there(environment: SandboxEnvironment) -> None:
    found = await ok(environment, "find / -xdev -type s 2> /dev/null || true")
    assert found == ""
    assert (await run(environment, "test -e /var/run/docker.sock -o -e /run/docker.sock")).exit_code == 1


async def test_masked_and_private_paths_are_not_there(tmp_path: Path) -> None:
    listing = sorted(os.listdir("/usr/share"))
    victim, other = f"/usr/share/{listing[0]}", f"/usr/share/{listing[1]}"
    backend = new_backend(tmp_path, private=(Path(victim),), mask=[other, "/opt"])
    environment = await backend.start(new_spec(), await backend.prepare(new_spec()))
    try:
        assert (await run(environment, f"test -e {victim} -o -e {other}")).exit_code == 1
        assert await ok(environment, "ls -A /opt") == ""
        await run(environment, f"mkdir -p {victim}; ls -A {victim}")
        assert await ok(environment, f"ls -A {victim} 2> /dev/null || true") == "", (
            "making it again must not bring the content back"
        )
    finally:
        await environment.stop()
        await backend.aclose()


async def test_shared_folders_are_there_copy_on_write(tmp_path: Path) -> None:
    shared = tmp_path / "models, and: more"
    shared.mkdir()
    (shared / "weights").write_text("w")
    (shared / "private").mkdir()
    (shared / "private" / "key").write_text("k")
    backend = new_backend(tmp_path, share=[str(shared)], mask=[str(shared / "private")])
    environment = await backend.start(new_spec(), await backend.prepare(new_spec()))
    try:
        assert (
            await ok(environment, f"cat '{shared}/weights'; echo changed > '{shared}/weights'; ls -A '{shared}'") == "wweights\n"
        )
    finally:
        await environment.stop()
        await backend.aclose()
    assert (shared / "weights").read_text() == "w"


# --- the kernel ---


@needs_root
@pytest.mark.parametrize(
    "attack",
    [
        # values that would change nothing, were the way open
        "cat /proc/sys/kernel/core_pattern > /tmp/same && cat /tmp/same > /proc/sys/kernel/core_pattern",
        "echo h > /proc/sysrq-trigger",
        "mount -o remount,rw /proc/sys",
        "umount /proc/sys",
        "umount -l /etc",
        "mount -t tmpfs none /mnt",
        "mount -t proc proc /mnt",
        "mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk",
        "mknod /tmp/memory c 1 1 && head -c 1 /tmp/memory",
        "echo 1 > /sys/devices/system/cpu/cpu1/online",
        "chroot /proc/1/root true",
        "readlink /proc/1/fd/0",
        "head -c 1 < /proc/1/fd/2",
        "cat /proc/1/environ",
        "cat /proc/1/mem",
        "head -c 1 /proc/kcore",
        "hostname changed-by-trial",
        "nsenter -t 1 -a true",
        "unshare -Urmpf --mount-proc true",
        "unshare -Urm sh -c 'umount /proc/sys || mount -o remount,rw /proc/sys'",
        "unshare -Urm sh -c 'mount -t sysfs sysfs /mnt'",
        "unshare -Urm umount -l /etc",
        "unshare -Urm umount -l /",
    ],
)
async def test_the_way_out_is_closed(environment: SandboxEnvironment, attack: str) -> None:
    assert (await run(environment, attack, timeout_sec=60.0)).exit_code != 0


@needs_root
async def test_capabilities_that_reach_the_machine_are_gone_for_good(environment: SandboxEnvironment) -> None:
    status = dict(line.split(":\t") for line in (await ok(environment, "grep Cap /proc/self/status")).splitlines())
    for name in ("CapBnd", "CapPrm", "CapEff"):
        for number in (12, 16, 17, 19, 21, 22, 25):  # NET_ADMIN MODULE RAWIO PTRACE ADMIN BOOT TIME
            assert not int(status[name], 16) >> number & 1, (name, number)


async def test_the_init_of_the_sandbox_cannot_be_killed_from_inside(environment: SandboxEnvironment) -> None:
    for name in ("KILL", "TERM", "INT", "STOP", "CHLD", "HUP", "SEGV", "USR1", "PIPE"):
        await run(environment, f"kill -{name} 1")
    assert await ok(environment, "echo alive") == "alive\n"


async def test_killing_everything_inside_leaves_the_sandbox(environment: SandboxEnvironment) -> None:
    await run(environment, "kill -9 -1", timeout_sec=60.0)
    assert await ok(environment, "echo alive") == "alive\n"


@needs_root
async def test_processes_of_the_machine_are_not_there(environment: SandboxEnvironment) -> None:
    assert (await run(environment, f"kill -0 {os.getpid()}")).exit_code != 0
    assert len((await ok(environment, "ls /proc | grep -c '^[0-9]'")).strip()) <= 2


async def test_shared_memory_and_ipc_are_its_own(environment: SandboxEnvironment) -> None:
    host = Path(f"/dev/shm/rollout-{JOB}")
    host.write_text("host")
    try:
        assert await ok(environment, "ls -A /dev/shm") == ""
        await ok(environment, "echo x > /dev/shm/mine")
        assert not Path("/dev/shm/mine").exists()
    finally:
        host.unlink()


async def test_variables_of_the_host_are_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_TEST_SECRET", "leaked-value")
    backend = new_backend(tmp_path)
    environment = await backend.start(new_spec(), await backend.prepare(new_spec()))
    try:
        found = await ok(environment, "cat /proc/[0-9]*/environ 2> /dev/null | tr '\\0' '\\n'; env")
        assert "leaked-value" not in found
    finally:
        await environment.stop()
        await backend.aclose()


# --- the network ---


async def test_without_a_network_services_of_the_machine_are_out_of_reach(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0rollout-{JOB}")
        abstract.listen()
        port = server.getsockname()[1]
        connect = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
        connect_abstract = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0rollout-{JOB}')"
        backend = new_backend(tmp_path)
        closed = await backend.start(new_spec(network="none"), await backend.prepare(new_spec()))
        opened = await backend.start(new_spec(), await backend.prepare(new_spec()))
        try:
            await ok(opened, f'/usr/bin/python3 -c "{connect}"')
            assert (await run(closed, f'/usr/bin/python3 -c "{connect}"')).exit_code != 0
            assert (await run(closed, f'/usr/bin/python3 -c "{connect_abstract}"')).exit_code != 0
            serve = "import socket; s = socket.create_server(('127.0.0.1', 8765)); socket.create_connection(('127.0.0.1', 8765))"
            await ok(closed, f'/usr/bin/python3 -c "{serve}"')
        finally:
            await asyncio.gather(closed.stop(), opened.stop())
            await backend.aclose()


async def test_options_decide_the_network_whatever_the_task_says(tmp_path: Path) -> None:
    backend = new_backend(tmp_path, network="none")
    environment = await backend.start(new_spec(network="public"), await backend.prepare(new_spec()))
    try:
        assert await ok(environment, "grep -c : /proc/net/dev") == "1\n"
    finally:
        await environment.stop()
        await backend.aclose()


# --- limits ---


def controller(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(name not in cgroups.find(), reason=f"no {name} control groups for this user here")


async def limited(tmp_path: Path, resources: Resources, **options: object) -> tuple[LocalBackend, SandboxEnvironment]:
    backend = new_backend(tmp_path, **options)
    spec = new_spec(resources=resources)
    return backend, await backend.start(spec, await backend.prepare(spec))


@controller("memory")
async def test_memory_is_limited_and_the_kill_is_told(tmp_path: Path) -> None:
    backend, environment = await limited(tmp_path, Resources(memory_bytes=64 << 20))
    try:
        result = await run(environment, "head -c 500M /dev/zero | tail -c 400M | wc -c; exit ${PIPESTATUS:-9}")
        assert result.out_of_memory
        after = await run(environment, "echo fine")
        assert (after.stdout, after.out_of_memory) == (b"fine\n", False)
    finally:
        await environment.stop()
        await backend.aclose()


@controller("pids")
async def test_a_fork_bomb_is_contained_and_killed_at_the_deadline(tmp_path: Path) -> None:
    backend, environment = await limited(tmp_path, Resources(), pids=50)
    try:
        with pytest.raises(TimeoutError):
            await run(environment, "bomb() { bomb | bomb & }; (bomb) & while :; do :; done", timeout_sec=1.0)
        assert await ok(environment, "echo alive") == "alive\n"
    finally:
        await environment.stop()
        await backend.aclose()


@controller("cpu")
async def test_processors_are_limited(tmp_path: Path) -> None:
    generation, parent = cgroups.find()["cpu"]
    backend, environment = await limited(tmp_path, Resources(cpus=0.5))
    try:
        group = next(Path(parent).glob(f"rollout-{JOB}-*"))
        quota = (group / "cpu.max").read_text() if generation == "v2" else (group / "cpu.cfs_quota_us").read_text() + " 100000"
        assert quota.split() == ["50000", "100000"]
        assert (group / "cgroup.procs").read_text().strip()
    finally:
        await environment.stop()
        await backend.aclose()
    assert not group.exists()


async def test_a_file_cannot_be_larger_than_the_storage(tmp_path: Path) -> None:
    backend, environment = await limited(tmp_path, Resources(storage_bytes=1 << 20))
    try:
        assert (await run(environment, "head -c 2M /dev/zero > /tmp/large")).exit_code != 0
        assert await ok(environment, "stat -c %s /tmp/large") == f"{1 << 20}\n"
    finally:
        await environment.stop()
        await backend.aclose()


async def test_a_tmpfs_limits_the_storage_as_a_whole(tmp_path: Path) -> None:
    backend, environment = await limited(tmp_path, Resources(storage_bytes=4 << 20), tmpfs=True)
    try:
        script = "cd /app; for i in 1 2 3 4 5 6; do head -c 1M /dev/zero > $i; done"
        result = await run(environment, script)
        assert b"No space left" in result.stderr
        assert await ok(environment, "rm -rf /app/*; mkdir /usr/local/x && rm -rf /usr/local/x && echo alive") == "alive\n"
    finally:
        await environment.stop()
        await backend.aclose()


async def test_limits_that_are_not_enforced_are_named_once(tmp_path: Path) -> None:
    warnings: list[str] = []
    context = BackendContext(
        job_id="limits", work_dir=tmp_path / "work", cache_dir=tmp_path / "cache", concurrency=1, warn=warnings.append
    )
    backend = LocalBackend(LocalOptions(), context)
    spec = new_spec(resources=Resources(cpus=1, memory_bytes=1 << 30, storage_bytes=1 << 30))
    backend.check(spec)
    await (await backend.start(spec, await backend.prepare(spec))).stop()
    await backend.aclose()
    assert len(warnings) == 1
    assert "storage" in warnings[0]


# --- the end ---


async def test_a_daemon_that_forked_twice_is_gone_after_the_stop(tmp_path: Path) -> None:
    backend = new_backend(tmp_path)
    environment = await backend.start(new_spec(), await backend.prepare(new_spec()))
    await ok(environment, f"setsid sh -c 'setsid sleep 98765.{os.getpid()} & exit' > /dev/null 2>&1 < /dev/null")
    while not host_processes(f"sleep 98765.{os.getpid()}"):  # the command may end before its daemon runs
        await asyncio.sleep(0.01)
    await environment.stop()
    assert not host_processes(f"sleep 98765.{os.getpid()}")
    await backend.aclose()


async def test_nothing_is_left_in_the_scratch_folder(tmp_path: Path) -> None:
    backend = new_backend(tmp_path)
    environment = await backend.start(new_spec(), await backend.prepare(new_spec()))
    script = "mkdir -p /app/a/b /usr/local/x && chmod 000 /app/a && rm -rf /opt/* && ln -s / /app/link && touch $(seq 200)"
    await ok(environment, script)
    await environment.stop()
    await backend.aclose()
    assert list((tmp_path / f"work-{JOB}" / "sandboxes").iterdir()) == []


async def test_a_death_of_the_init_is_a_lost_environment(tmp_path: Path) -> None:
    backend = new_backend(tmp_path)
    environment = await backend.start(new_spec(), await backend.prepare(new_spec()))
    running = asyncio.ensure_future(run(environment, f"sleep 54321.{os.getpid()}"))
    while not (sleeper := host_processes(f"sleep 54321.{os.getpid()}")):
        await asyncio.sleep(0.01)
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{sleeper[0]}/status").read_text().splitlines() if ":\t" in line)
    os.kill(int(status["PPid"]), signal.SIGKILL)
    with pytest.raises(EnvironmentLostError):
        await running
    with pytest.raises(EnvironmentLostError):
        await run(environment, "true")
    await environment.stop()
    await backend.aclose()


_DRIVER = """
    import asyncio, sys
    from pathlib import Path
    from rollout.builtin.local import LocalBackend, LocalOptions
    from rollout.core.protocols import BackendContext
    from rollout.core.types import Command, EnvironmentSpec, Resources

    async def main(folder: Path, seconds: str) -> None:
        job_id = f"killed-{seconds[6:]}"
        context = BackendContext(job_id=job_id, work_dir=folder / "work", cache_dir=folder / "cache", concurrency=2)
        backend = LocalBackend(LocalOptions(), context)
        spec = EnvironmentSpec(task_name="t", directory=None, digest="d", resources=Resources(memory_bytes=1 << 30))
        environment = await backend.start(spec, await backend.prepare(spec))
        await environment.exec(Command(argv=("sh", "-c", f"setsid sleep {seconds} > /dev/null 2>&1 &")))
        print("started", flush=True)
        await environment.exec(Command(argv=("sleep", seconds)))

    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@contextmanager
def driver(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Another process with a sandbox in which two commands run; what their command line holds."""
    seconds = f"87654.{os.getpid()}"
    started = subprocess.Popen([sys.executable, "-c", textwrap.dedent(_DRIVER), str(folder), seconds], stdout=subprocess.PIPE)
    with started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == b"started\n"
            assert host_processes(f"sleep {seconds}")
            yield started, f"sleep {seconds}"
        finally:
            started.kill()


def children(process: subprocess.Popen[bytes]) -> list[int]:
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


async def test_after_a_kill_of_rollout_nothing_is_left(tmp_path: Path) -> None:
    with driver(tmp_path) as (process, commands):
        processes = children(process)
        assert processes
    assert await eventually_gone(commands)
    for child in processes:
        while Path(f"/proc/{child}").exists():
            await asyncio.sleep(0.025)
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
    assert list((tmp_path / "work" / "sandboxes").iterdir()) == []
    assert cgroups.find_left(f"rollout-killed-{os.getpid()}-") == []


async def test_after_a_kill_of_everything_reaping_removes_the_rest(tmp_path: Path) -> None:
    with driver(tmp_path) as (process, commands):
        for child in children(process):
            os.kill(child, signal.SIGKILL)
        process.kill()
    assert await eventually_gone(commands)
    assert len(list((tmp_path / "work" / "sandboxes").iterdir())) == 2
    job_id = f"killed-{os.getpid()}"
    context = BackendContext(job_id=job_id, work_dir=tmp_path / "work", cache_dir=tmp_path / "cache", concurrency=1)
    reaper = LocalBackend(LocalOptions(), context)
    removed = await reaper.reap(job_id)
    assert len([line for line in removed if "sandbox files" in line]) == 2
    assert await reaper.reap(job_id) == []
    await reaper.aclose()
    assert list((tmp_path / "work" / "sandboxes").iterdir()) == []
    assert cgroups.find_left(f"rollout-{job_id}-") == []


@pytest.fixture(autouse=True)
def _no_group_is_left() -> Iterator[None]:
    yield
    for _, parent in cgroups.find().values():
        assert list(Path(parent).glob(f"rollout-{JOB}-*")) == []


_LOOK = """
    import asyncio, sys
    from pathlib import Path
    from rollout.builtin.local import LocalBackend, LocalOptions
    from rollout.core.protocols import BackendContext
    from rollout.core.types import Command, EnvironmentSpec

    async def main(folder: Path, script: str) -> None:
        context = BackendContext(job_id="mounts", work_dir=folder / "work", cache_dir=folder / "cache", concurrency=1)
        backend = LocalBackend(LocalOptions(), context)
        spec = EnvironmentSpec(task_name="t", directory=None, digest="d")
        environment = await backend.start(spec, await backend.prepare(spec))
        result = await environment.exec(Command(argv=("sh", "-c", script)))
        sys.stdout.buffer.write(result.stdout + result.stderr)
        await environment.stop()
        await backend.aclose()

    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@needs_root
@pytest.mark.parametrize(
    "become", [[], ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]], ids=["root", "of-a-container"]
)
def test_a_machine_with_mounts_below_its_folders_is_shown_without_what_is_foreign(become: list[str], tmp_path: Path) -> None:
    """A container engine's files over those of /etc, a disk below /usr, other file systems elsewhere."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "of-a-disk").touch()
    (tmp_path / "hosts").write_text("of the engine\n")
    mounts = (
        f"mount --bind {tmp_path}/hosts /etc/hosts; mount --bind {tmp_path}/disk /usr/local/share; mount -t tmpfs none /var/cache"
    )
    mounts += "; touch /var/cache/foreign"
    look = "cat /etc/hosts; ls -A /usr/local/share /var/cache; test -x /usr/bin/env && echo whole"
    look += "; touch /usr/local/share/x /etc/x /var/x /usr/x && echo writable"
    command = ["unshare", "-m", "sh", "-ec", f'{mounts}; exec "$@"', "sh", *become, sys.executable, "-c", textwrap.dedent(_LOOK)]
    done = subprocess.run([*command, str(tmp_path), look], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.startswith("of the engine\n/usr/local/share:\nof-a-disk\n\n/var/cache:\n") or "/var/cache:\n" in done.stdout
    )
    assert "foreign" not in done.stdout
    assert done.stdout.endswith("whole\nwritable\n")
    assert os.listdir(tmp_path / "disk") == ["of-a-disk"]


async def test_a_new_zygote_takes_the_place_of_a_dead_one(tmp_path: Path) -> None:
    backend = new_backend(tmp_path)
    first = await backend.start(new_spec(), await backend.prepare(new_spec()))
    zygote = await backend._zygote()
    os.kill(zygote._process.pid, signal.SIGKILL)
    with pytest.raises(TeardownError):
        await first.stop()
    second = await backend.start(new_spec(), await backend.prepare(new_spec()))
    assert await ok(second, "echo alive") == "alive\n"
    await second.stop()
    await backend.aclose()
    assert list((tmp_path / f"work-{JOB}" / "sandboxes").iterdir()) == []


async def test_a_gigabyte_of_output_is_cut_and_takes_no_memory(environment: SandboxEnvironment) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await run(environment, "head -c 1G /dev/zero")
    assert (len(result.stdout), result.stdout_cut_bytes) == (10 << 20, (1 << 30) - (10 << 20))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


async def test_many_commands_leave_no_descriptors(environment: SandboxEnvironment, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    await ok(environment, "true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        await ok(environment, "sleep 0.01 & echo x")
        await environment.upload(tmp_path / "file", "/app/file")
        await environment.download("/app/file", tmp_path / "back")
        process = await environment.open(Command(argv=("cat",)))
        await process.kill()
        assert [chunk async for chunk in process.output()] == []
    with pytest.raises(FileNotFoundError):
        await environment.download("/missing", tmp_path / "back")
    await asyncio.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert await ok(environment, "ls /proc/self/fd | wc -l") == "4\n"
