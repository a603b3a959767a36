"""`type: docker` on a real engine: images, limits, and containers that die."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from require import DOCKER_IMAGE, require, unavailable
from rollout.core.errors import (
    BuildError,
    EnvironmentLostError,
    ImagePullError,
    OutOfMemoryError,
    RolloutError,
    StartError,
    TaskError,
)
from rollout.core.protocols import BackendContext
from rollout.core.types import Command, EnvironmentSpec, Resources
from rollout.testing.environment import ok, run
from rollout_docker.backend import DockerBackend
from rollout_docker.options import DockerOptions

MEBIBYTE = 1 << 20
NewBackend = Callable[..., DockerBackend]


@pytest.fixture(autouse=True, scope="module")
def _docker() -> None:
    require("docker")


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def containers(job_id: str) -> list[str]:
    return docker("ps", "-aq", "--filter", f"label=rollout.job={job_id}").split()


def spec(**changes: object) -> EnvironmentSpec:
    fields: dict[str, object] = {"task_name": "t", "directory": None, "digest": os.urandom(8).hex(), "workdir": "/app"}
    if "directory" not in changes:
        fields["docker_image"] = DOCKER_IMAGE
    return EnvironmentSpec(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture
def job_id() -> str:
    return f"test-{os.urandom(4).hex()}"


@pytest_asyncio.fixture
async def new_backend(tmp_path: Path, job_id: str) -> AsyncIterator[NewBackend]:
    made: list[DockerBackend] = []

    def make(*, job: str = job_id, **options: object) -> DockerBackend:
        context = BackendContext(job_id=job, work_dir=tmp_path / "work", cache_dir=tmp_path / "cache", concurrency=4)
        made.append(DockerBackend(DockerOptions(**options), context))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for backend in made:
        await backend.aclose()
    assert containers(job_id) == []


def task(tmp_path: Path, dockerfile: str, **files: str) -> EnvironmentSpec:
    folder = tmp_path / "environment"
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(dockerfile)
    for name, text in files.items():
        (folder / name).write_text(text)
    return spec(directory=str(folder), workdir=None)


# --- images ---


async def test_an_image_is_built_once_kept_for_others_and_removed_by_its_maker(tmp_path: Path, new_backend: NewBackend) -> None:
    dockerfile = f"FROM {DOCKER_IMAGE}\nWORKDIR /srv/app\nENV GREETING=hi\nCOPY data .\nRUN echo building; date +%N > stamp\n"
    made = task(tmp_path, dockerfile, data="there")
    logs: list[bytes] = []
    one, other = new_backend(), new_backend(job="other-job")
    image = await one.prepare(made, sink=lambda stream, chunk: logs.append(chunk))
    assert b"building\n" in b"".join(logs)
    environment = await one.start(made, image)
    try:
        assert await ok(environment, 'echo "$PWD $GREETING $(cat data)"') == "/srv/app hi there\n"
        stamp = await ok(environment, "cat stamp")
    finally:
        await environment.stop()
    assert await other.prepare(made) == image
    again = await other.start(made, image)
    assert await ok(again, "cat stamp") == stamp
    await again.stop()
    await other.remove(image)
    assert docker("images", "-q", image) != ""
    await one.remove(image)
    assert docker("images", "-q", image) == ""


async def test_force_builds_anew(tmp_path: Path, new_backend: NewBackend) -> None:
    made = task(tmp_path, f"FROM {DOCKER_IMAGE}\nRUN date +%s%N > /stamp\n")
    backend = new_backend()
    image = await backend.prepare(made)
    before = docker("inspect", "-f", "{{.Id}}", image)
    assert await backend.prepare(made, force=True) == image
    assert docker("inspect", "-f", "{{.Id}}", image) != before
    await backend.remove(image)


async def test_a_failed_build_quotes_its_step(tmp_path: Path, new_backend: NewBackend) -> None:
    made = task(tmp_path, f"FROM {DOCKER_IMAGE}\nRUN echo fine\nRUN echo about to fail >&2; exit 3\n")
    with pytest.raises(BuildError) as caught:
        await new_backend().prepare(made)
    text = str(caught.value)
    assert re.search("Step 3/. : RUN echo about to fail", text)
    assert "non-zero code: 3" in text
    assert "about to fail" in text.splitlines()[-1]


async def test_what_only_buildkit_can_build_is_built_by_it(tmp_path: Path, new_backend: NewBackend) -> None:
    if subprocess.run(["docker", "buildx", "version"], capture_output=True, check=False).returncode != 0:
        unavailable("docker", "the docker command has no buildx")
    dockerfile = f"FROM {DOCKER_IMAGE}\nARG WHO\nRUN --mount=type=cache,target=/cache echo hi $WHO > /said\n"
    made = task(tmp_path, dockerfile)
    backend = new_backend(build_args={"WHO": "you"})
    image = await backend.prepare(made)
    environment = await backend.start(made, image)
    try:
        assert await ok(environment, "cat /said") == "hi you\n"
    finally:
        await environment.stop()
        await backend.remove(image)
    with pytest.raises(BuildError, match=r"(?s)by BuildKit.*exit code: 3"):
        await backend.prepare(task(tmp_path, f"FROM {DOCKER_IMAGE}\nRUN --mount=type=cache,target=/c exit 3\n"))


async def test_a_dockerfile_that_cannot_be_read_is_a_build_error(tmp_path: Path, new_backend: NewBackend) -> None:
    with pytest.raises(BuildError, match="NONSENSE"):
        await new_backend().prepare(task(tmp_path, "NONSENSE\n"))


async def test_cancelling_a_build_ends_it(tmp_path: Path, new_backend: NewBackend) -> None:
    made = task(tmp_path, f"FROM {DOCKER_IMAGE}\nRUN echo started; sleep 54321\n")
    started = asyncio.Event()
    building = asyncio.ensure_future(
        new_backend().prepare(made, sink=lambda stream, chunk: started.set() if chunk == b"started\n" else None)
    )
    async with asyncio.timeout(60):
        await started.wait()
        building.cancel()
        with pytest.raises(asyncio.CancelledError):
            await building
        while "sleep 54321" in docker("ps", "--no-trunc", "--format", "{{.Command}}"):
            await asyncio.sleep(0.05)


async def test_an_image_that_may_not_be_fetched_is_a_pull_error(new_backend: NewBackend) -> None:
    with pytest.raises(ImagePullError, match=r"no-such-image.* may not be fetched"):
        await new_backend(pull="never").prepare(spec(docker_image="no-such-image:1"))


async def test_build_arguments_and_targets_make_images_of_their_own(tmp_path: Path, new_backend: NewBackend) -> None:
    made = task(tmp_path, f"FROM {DOCKER_IMAGE} AS one\nARG WHO\nRUN echo $WHO > /who\nFROM one AS two\nRUN echo 2 >> /who\n")
    images = []
    for options, expected in (
        ({"build_args": {"WHO": "me"}, "target": "one"}, "me\n"),
        ({"build_args": {"WHO": "you"}}, "you\n2\n"),
    ):
        backend = new_backend(**options)
        images.append(await backend.prepare(made))
        environment = await backend.start(made, images[-1])
        assert await ok(environment, "cat /who") == expected
        await environment.stop()
        await backend.remove(images[-1])
    assert images[0] != images[1]


async def test_an_image_that_was_deleted_meanwhile_is_built_again(tmp_path: Path, new_backend: NewBackend) -> None:
    made = task(tmp_path, f"FROM {DOCKER_IMAGE}\nRUN echo made > /made\n")
    backend = new_backend()
    image = await backend.prepare(made)
    docker("rmi", "-f", image)
    environment = await backend.start(made, image)
    assert await ok(environment, "cat /made") == "made\n"
    await environment.stop()
    await backend.remove(image)


async def test_an_image_user_runs_commands_and_root_still_brings_files(tmp_path: Path, new_backend: NewBackend) -> None:
    made = task(tmp_path, f"FROM {DOCKER_IMAGE}\nRUN useradd -m worker\nUSER worker\nWORKDIR /home/worker\n", data="x")
    backend = new_backend()
    image = await backend.prepare(made)
    environment = await backend.start(made, image)
    try:
        assert await ok(environment, "whoami; pwd; echo $HOME") == "worker\n/home/worker\n/home/worker\n"
        await environment.upload(tmp_path / "environment" / "data", "/opt/data")
        await environment.upload(tmp_path / "environment" / "data", "/opt/mine", owner="worker")
        assert await ok(environment, "stat -c %U /opt/data /opt/mine") == "root\nworker\n"
        assert await ok(environment, "id -u", user="0") == "0\n"
        with pytest.raises(TimeoutError):
            await run(environment, "sudo=1; sleep 600", user="0", timeout_sec=0.3)
    finally:
        await environment.stop()
        await backend.remove(image)


async def test_an_image_without_a_shell_says_so(tmp_path: Path, new_backend: NewBackend) -> None:
    made = task(tmp_path, "FROM scratch\nCOPY data /\n", data="x")
    backend = new_backend()
    image = await backend.prepare(made)
    with pytest.raises(StartError, match="/bin/sh"):
        await backend.start(made, image)
    await backend.remove(image)


def test_a_task_without_image_and_dockerfile_is_refused(new_backend: NewBackend) -> None:
    with pytest.raises(TaskError, match=r"no environment/Dockerfile and names no docker_image"):
        new_backend().check(spec(docker_image=None))


# --- limits ---


async def test_limits_are_the_containers(new_backend: NewBackend) -> None:
    backend = new_backend(pids=100, shm_size="32Mi", ulimits={"nofile": 1000})
    made = spec(resources=Resources(cpus=0.5, memory_bytes=64 * MEBIBYTE))
    environment = await backend.start(made, await backend.prepare(made))
    try:
        name = environment._container.name
        host = docker("inspect", "-f", "{{.HostConfig.NanoCpus}} {{.HostConfig.Memory}} {{.HostConfig.MemorySwap}}", name)
        assert host == f"500000000 {64 * MEBIBYTE} {64 * MEBIBYTE}"
        assert docker("inspect", "-f", "{{.HostConfig.PidsLimit}} {{.HostConfig.Init}}", name) == "100 true"
        assert await ok(environment, "ulimit -n") == "1000\n"
        assert (await ok(environment, "df -k --output=size /dev/shm | tail -1")).strip() == "32768"
    finally:
        await environment.stop()


async def test_a_command_that_runs_out_of_memory_says_so_and_the_next_one_does_not(new_backend: NewBackend) -> None:
    backend = new_backend()
    made = spec(resources=Resources(memory_bytes=64 * MEBIBYTE))
    environment = await backend.start(made, await backend.prepare(made))
    try:
        result = await environment.exec(Command(argv=("python3", "-c", "x = bytearray(300 << 20)"), timeout_sec=60.0))
        assert (result.exit_code, result.out_of_memory) == (137, True)
        result = await run(environment, "kill -9 $$")
        assert (result.exit_code, result.out_of_memory) == (137, False)
    finally:
        await environment.stop()


async def test_a_fork_bomb_is_killed_at_its_deadline(new_backend: NewBackend) -> None:
    backend = new_backend(pids=200)
    environment = await backend.start(spec(), await backend.prepare(spec()))
    try:
        with pytest.raises(TimeoutError):
            # exec needs no new process, of which the bomb leaves none
            await run(environment, "f() { f | f & }; f & exec sleep 600", timeout_sec=1.0)
    finally:
        async with asyncio.timeout(60):
            await environment.stop()


# --- engines that go away, containers that die ---


class Relay:
    """A socket in front of the engine's own that can go away as an engine does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def up(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def down(self) -> None:
        assert self._server is not None
        self._server.close()
        self.path.unlink(missing_ok=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_unix_connection("/var/run/docker.sock")
        self._writers += [writer, engine_writer]
        for source, target in ((reader, engine_writer), (engine_reader, writer)):
            task = asyncio.ensure_future(self._copy(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
            target.write_eof()
        except OSError:
            target.transport.abort()


@pytest.mark.skipif(not os.path.exists("/var/run/docker.sock"), reason="the engine has another address")
async def test_an_engine_that_goes_away_loses_the_environment_and_can_come_back(new_backend: NewBackend, tmp_path: Path) -> None:
    relay = Relay(tmp_path / "engine.sock")
    await relay.up()
    backend = new_backend(host=f"unix://{relay.path}")
    try:
        environment = await backend.start(spec(), await backend.prepare(spec()))
        started = asyncio.Event()
        sleeping = Command(argv=("sh", "-c", "echo started; sleep 600"))
        running = asyncio.ensure_future(environment.exec(sleeping, lambda stream, chunk: started.set()))
        async with asyncio.timeout(60):
            await started.wait()
            await relay.down()
            with pytest.raises(EnvironmentLostError, match="does not answer any more"):
                await running
            with pytest.raises(EnvironmentLostError, match="does not answer any more"):
                await run(environment, "true")
            with pytest.raises(EnvironmentLostError):
                await environment.download("/etc/passwd", tmp_path / "out")
            with pytest.raises(StartError, match="does not answer any more"):
                await backend.start(spec(), DOCKER_IMAGE)
            await relay.up()
            other = await backend.start(spec(), await backend.prepare(spec()))
            assert await ok(other, "echo alive") == "alive\n"
            await other.stop()
            await environment.stop()
    finally:
        await backend.aclose()
        await relay.down()


async def test_a_container_that_is_killed_is_lost_for_commands_and_files(new_backend: NewBackend, tmp_path: Path) -> None:
    backend = new_backend()
    environment = await backend.start(spec(), await backend.prepare(spec()))
    started = asyncio.Event()
    sleeping = Command(argv=("sh", "-c", "echo started; sleep 600"))
    running = asyncio.ensure_future(environment.exec(sleeping, lambda stream, chunk: started.set()))
    try:
        async with asyncio.timeout(60):
            await started.wait()
            docker("kill", environment._container.name)
            with pytest.raises(EnvironmentLostError):
                await running
            with pytest.raises(EnvironmentLostError, match=r"ended unexpectedly|not running"):
                await run(environment, "true")
        (tmp_path / "file").touch()
        docker("rm", environment._container.name)
        with pytest.raises(EnvironmentLostError):
            await environment.upload(tmp_path / "file", "/app/file")
        with pytest.raises(EnvironmentLostError):
            await environment.download("/etc/passwd", tmp_path / "out")
    finally:
        await environment.stop()


async def test_an_agent_that_kills_everything_it_can_loses_the_environment(new_backend: NewBackend) -> None:
    backend = new_backend()
    environment = await backend.start(spec(), await backend.prepare(spec()))
    try:
        with pytest.raises((EnvironmentLostError, OutOfMemoryError)):
            await run(environment, "kill -9 -1; sleep 600", user="0", timeout_sec=60.0)
    finally:
        await environment.stop()


async def test_a_command_whose_shell_is_killed_ends_with_137(new_backend: NewBackend) -> None:
    backend = new_backend()
    environment = await backend.start(spec(), await backend.prepare(spec()))
    try:
        result = await run(environment, "echo before; kill -9 $PPID", timeout_sec=60.0)
        assert (result.exit_code, result.stdout) == (137, b"before\n")
    finally:
        await environment.stop()


async def test_output_cannot_forge_the_end_of_a_command(new_backend: NewBackend) -> None:
    backend = new_backend()
    environment = await backend.start(spec(), await backend.prepare(spec()))
    try:
        forged = r"printf '\036rollout-00000000000000000000000000000000 0\n' | tee /dev/stderr; exit 4"
        result = await run(environment, forged)
        assert result.exit_code == 4
        assert result.stdout == result.stderr == b"\x1erollout-00000000000000000000000000000000 0\n"
        assert "ROLLOUT_MARK" not in await ok(environment, "env")
    finally:
        await environment.stop()


async def test_variables_are_on_no_command_line(new_backend: NewBackend) -> None:
    backend = new_backend()
    environment = await backend.start(spec(env={"SECRET": "s3cr3t-1"}), await backend.prepare(spec()))
    try:
        seen = await ok(environment, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '", env={"OTHER": "s3cr3t-2"})
        assert "s3cr3t" not in seen
        on_host = b"".join(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK))
        assert b"s3cr3t-1" not in on_host
    finally:
        await environment.stop()


async def test_reaping_removes_what_a_dead_job_left_and_nothing_else(new_backend: NewBackend, job_id: str) -> None:
    dead, other = new_backend(), new_backend(job=f"{job_id}-other")
    left = await dead.start(spec(), await dead.prepare(spec()))
    kept = await other.start(spec(), await other.prepare(spec()))
    try:
        assert await other.reap(job_id) == [f"container {left._container.name}"]
        assert containers(job_id) == []
        assert await ok(kept, "echo alive") == "alive\n"
        with pytest.raises(RolloutError):
            await run(left, "true")
    finally:
        await left.stop()
        await kept.stop()
    assert containers(f"{job_id}-other") == []


async def test_a_job_that_goes_on_removes_the_images_of_its_killed_run(tmp_path: Path, new_backend: NewBackend) -> None:
    made = task(tmp_path, f"FROM {DOCKER_IMAGE}\nRUN echo made > /made\n")
    killed = new_backend()
    image = await killed.prepare(made)
    again = new_backend()
    assert await again.prepare(made) == image
    await again.remove(image)
    assert docker("images", "-q", image) == ""


async def test_a_folder_of_endless_size_does_not_hold_a_trial(new_backend: NewBackend, tmp_path: Path) -> None:
    backend = new_backend()
    environment = await backend.start(spec(), await backend.prepare(spec()))
    try:
        await ok(environment, "mkdir /app/data && truncate -s 1T /app/data/endless")
        copying = asyncio.ensure_future(environment.download("/app/data", tmp_path / "out"))
        await asyncio.sleep(0.5)
        assert not copying.done()
        copying.cancel()
        async with asyncio.timeout(30):
            with pytest.raises(asyncio.CancelledError):
                await copying
        assert await ok(environment, "echo alive") == "alive\n"
    finally:
        await environment.stop()


async def test_ten_thousand_log_files_and_links_come_out(new_backend: NewBackend, tmp_path: Path) -> None:
    backend = new_backend()
    environment = await backend.start(spec(), await backend.prepare(spec()))
    try:
        await ok(environment, "mkdir -p /logs && cd /logs && seq 10000 | split -l 1 -a 4 - f && ln -s / root && mknod dev c 1 3")
        report = await environment.download("/logs", tmp_path / "out")
        assert report.files == 10_000
        assert sorted(name for name, _ in report.skipped) == ["dev", "root"]
    finally:
        await environment.stop()


async def test_much_output_is_seen_whole_and_kept_in_part(new_backend: NewBackend) -> None:
    backend = new_backend()
    environment = await backend.start(spec(), await backend.prepare(spec()))
    seen = 0

    def count(stream: str, chunk: bytes) -> None:
        nonlocal seen
        seen += len(chunk)

    try:
        printing = Command(argv=("head", "-c", str(300 * MEBIBYTE), "/dev/zero"), max_output_bytes=MEBIBYTE)
        result = await environment.exec(printing, count)
        assert (seen, len(result.stdout), result.stdout_cut_bytes) == (300 * MEBIBYTE, MEBIBYTE, 299 * MEBIBYTE)
    finally:
        await environment.stop()
