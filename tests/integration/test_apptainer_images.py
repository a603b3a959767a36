"""Images of `type: apptainer`: where they come from, what a Dockerfile makes of them, and how the cache stands faults."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from require import APPTAINER, require
from rollout.core.errors import BuildError, StartError, TaskError
from rollout.core.protocols import BackendContext, Environment
from rollout.core.sandbox.environment import SandboxEnvironment
from rollout.core.types import Command, EnvironmentSpec
from rollout.testing.environment import ok
from rollout_apptainer.backend import ApptainerBackend
from rollout_apptainer.options import ApptainerOptions

PROGRAM = str(APPTAINER / "usr/bin/apptainer")
BASE = str(APPTAINER / "small.sif")
DOCKERFILE = """\
ARG SUITE=trixie
FROM debian:${SUITE}-slim
ARG WORD=said
ENV GREETING="hello $WORD" PLAIN=yes
WORKDIR /srv/work
SHELL ["/bin/sh", "-ec"]
RUN echo worker:x:1500:1500::/:/bin/sh >> /etc/passwd; echo "$GREETING" > greeting
COPY --chown=worker --chmod=750 data/ notes/
COPY <<EOF /etc/told
$PLAIN
EOF
USER worker
RUN id -un > /tmp/who
"""


@pytest.fixture(autouse=True, scope="module")
def _apptainer() -> None:
    require("apptainer")


@pytest.fixture
def new_backend(tmp_path: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def make(job: str = "images", *, offline: bool = False, **options: Any) -> AsyncIterator[ApptainerBackend]:
        wanted = {"program": PROGRAM, "bases": {"debian:trixie-slim": BASE}, "cache": "cache", **options}
        context = BackendContext(
            job_id=job, work_dir=tmp_path / "work" / job, cache_dir=tmp_path, concurrency=4, base_dir=tmp_path, offline=offline
        )
        backend = ApptainerBackend(ApptainerOptions(**wanted), context)
        try:
            yield backend
        finally:
            await backend.aclose()

    return make


def new_spec(directory: Path | None = None, **fields: Any) -> EnvironmentSpec:
    folder = str(directory) if directory is not None else None
    return EnvironmentSpec(**{"task_name": "task", "directory": folder, "digest": f"digest-{directory}", **fields})


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "task" / "environment"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "one.txt").write_text("one\n")
    (folder / "Dockerfile").write_text(DOCKERFILE)
    return folder


@asynccontextmanager
async def started(backend: ApptainerBackend, spec: EnvironmentSpec) -> AsyncIterator[SandboxEnvironment]:
    environment = await backend.start(spec, await backend.prepare(spec))
    try:
        yield environment
    finally:
        await environment.stop()


async def test_a_dockerfile_is_carried_out_as_it_says(new_backend: Any, task: Path) -> None:
    async with new_backend() as backend:
        backend.check(new_spec(task))
        async with started(backend, new_spec(task)) as environment:
            assert await ok(environment, "pwd; id -un; cat greeting; echo $GREETING $PLAIN") == (
                "/srv/work\nworker\nhello said\nhello said yes\n"
            )
            assert await ok(environment, "cat /tmp/who /etc/told") == "worker\nyes\n"
            assert await ok(environment, "stat -c '%U %a' notes/one.txt") == "worker 750\n"
            assert await ok(environment, "touch /srv/work/x /etc/y && id -u", user="root") == "0\n"


async def test_an_image_that_was_built_tells_its_settings_wherever_it_is_copied(
    new_backend: Any, task: Path, tmp_path: Path
) -> None:
    async with new_backend() as backend:
        built = await backend.prepare(new_spec(task))
    copied = tmp_path / "elsewhere.sif"
    copied.write_bytes(Path(built).read_bytes())
    async with new_backend("other", image=str(copied)) as backend, started(backend, new_spec()) as environment:
        assert await ok(environment, "pwd; id -un; echo $GREETING") == "/srv/work\nworker\nhello said\n"


async def test_an_image_is_built_once_for_all_jobs_and_again_when_forced(new_backend: Any, task: Path) -> None:
    async with new_backend("one") as backend:
        path = Path(await backend.prepare(new_spec(task)))
        first = path.stat().st_ino
    async with new_backend("two") as backend:
        assert Path(await backend.prepare(new_spec(task))) == path
        assert path.stat().st_ino == first
        assert Path(await backend.prepare(new_spec(task), force=True)) == path
        assert path.stat().st_ino != first
    assert sorted(entry.name for entry in path.parent.iterdir()) == [path.name]


async def test_two_jobs_that_build_the_same_image_at_once_share_the_work(new_backend: Any, task: Path) -> None:
    said: list[list[bytes]] = [[], []]
    async with new_backend("one") as one, new_backend("two") as two:
        paths = await asyncio.gather(
            one.prepare(new_spec(task), sink=lambda stream, chunk: said[0].append(chunk)),
            two.prepare(new_spec(task), sink=lambda stream, chunk: said[1].append(chunk)),
        )
        assert paths[0] == paths[1]
        assert [b"WORKDIR" in b"".join(chunks) for chunks in said].count(True) == 1


async def test_a_job_removes_the_image_it_made_unless_another_job_uses_it(new_backend: Any, task: Path) -> None:
    async with new_backend("one") as one:
        path = await one.prepare(new_spec(task))
        async with new_backend("two") as two:
            await two.prepare(new_spec(task))
            await two.remove(path)
            assert Path(path).exists()
            await two.prepare(new_spec(task))
            await one.remove(path)
            assert Path(path).exists()
    async with new_backend("three") as three:
        path = await three.prepare(new_spec(task), force=True)
        await three.remove(path)
        assert not Path(path).exists()


async def test_a_failing_instruction_is_quoted_with_its_line(new_backend: Any, task: Path) -> None:
    (task / "Dockerfile").write_text("FROM debian:trixie-slim\nRUN true\nRUN echo because >&2; exit 7\n")
    async with new_backend() as backend:
        with pytest.raises(BuildError, match=r"Dockerfile:3: .*exit code 7\n.*because"):
            await backend.prepare(new_spec(task))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("FROM debian AS one\nFROM debian\n", "Dockerfile:2: a second FROM"),
        ("FROM debian\nRUN --mount=type=cache,target=/x true\n", "Dockerfile:2: RUN --mount"),
        ("FROM debian\nONBUILD RUN true\n", "Dockerfile:2: ONBUILD"),
        ("FROM scratch\n", "FROM scratch"),
        ("FROM debian\nADD https://example.com/x /x\n", "Dockerfile:2: ADD"),
    ],
)
async def test_a_dockerfile_that_needs_an_engine_is_refused_with_its_line(
    new_backend: Any, task: Path, text: str, said: str
) -> None:
    (task / "Dockerfile").write_text(text)
    async with new_backend() as backend:
        with pytest.raises(TaskError, match=said):
            backend.check(new_spec(task))


async def test_a_healthcheck_is_said_once_to_have_no_effect(task: Path, tmp_path: Path) -> None:
    said: list[str] = []
    (task / "Dockerfile").write_text("FROM debian:trixie-slim\nHEALTHCHECK CMD false\n")
    context = BackendContext(job_id="said", work_dir=tmp_path / "work", cache_dir=tmp_path, concurrency=1, warn=said.append)
    backend = ApptainerBackend(ApptainerOptions(program=PROGRAM, bases={"debian:trixie-slim": BASE}), context)
    try:
        for _ in range(2):
            backend.check(new_spec(task))
    finally:
        await backend.aclose()
    assert [line for line in said if "HEALTHCHECK" in line] == [
        f"{task}/Dockerfile:2: HEALTHCHECK has no effect: no trial waits for it (a `[environment.healthcheck]` in task.toml is "
        "waited for)"
    ]


async def test_an_installed_agent_is_kept_for_later_jobs_with_the_settings_of_its_image(new_backend: Any, task: Path) -> None:
    async def install(environment: Environment) -> None:
        assert await ok(environment, "echo $SECRET; mkdir -p /opt/agent; echo 1 > /opt/agent/version", user="root") == "word\n"

    async def unexpected(environment: Environment) -> None:
        raise AssertionError("installed twice")

    async with new_backend("one") as backend:
        image = await backend.prepare(new_spec(task))
        kept = await backend.snapshot(new_spec(task, env={"SECRET": "word"}), image, "agent", install)
        assert kept is not None
    async with new_backend("two") as backend:
        assert await backend.snapshot(new_spec(task), image, "agent", unexpected) == kept
        environment = await backend.start(new_spec(task), kept)
        try:
            said = await ok(environment, "pwd; id -un; cat greeting /opt/agent/version; echo $GREETING$SECRET")
            assert said == "/srv/work\nworker\nhello said\n1\nhello said\n"
        finally:
            await environment.stop()


async def test_an_error_of_what_is_installed_is_not_taken_for_the_cache_s(new_backend: Any, tmp_path: Path) -> None:
    async def install(environment: Environment) -> None:
        raise PermissionError(errno.EACCES, "of the agent")

    async with new_backend() as backend:
        spec = new_spec(docker_image=BASE)
        with pytest.raises(PermissionError, match="of the agent"):
            await backend.snapshot(spec, await backend.prepare(spec), "agent", install)
        assert list((tmp_path / "cache").iterdir()) == []


async def test_what_is_bound_into_a_sandbox_is_not_kept(new_backend: Any, tmp_path: Path) -> None:
    async def unexpected(environment: Environment) -> None:
        raise AssertionError("installed")

    async with new_backend(mounts=[f"{tmp_path}:/mnt"]) as backend:
        spec = new_spec(docker_image=BASE)
        assert await backend.snapshot(spec, await backend.prepare(spec), "agent", unexpected) is None


async def test_a_definition_file_is_built(new_backend: Any, task: Path) -> None:
    text = f"Bootstrap: localimage\nFrom: {BASE}\n%files\n  data/one.txt /opt/one\n%environment\n  export DEFINED=1\n"
    (task / "image.def").write_text(text)
    async with new_backend() as backend, started(backend, new_spec(task)) as environment:
        assert await ok(environment, "cat /opt/one; echo $DEFINED; pwd") == "one\n1\n/app\n"


async def test_images_that_were_staged_are_found_without_a_network(new_backend: Any, task: Path, tmp_path: Path) -> None:
    (tmp_path / "staged").mkdir()
    (tmp_path / "staged" / "debian_trixie-slim.sif").symlink_to(BASE)
    async with new_backend(offline=True, bases={}, images="staged") as backend:
        backend.check(new_spec(docker_image="debian:trixie-slim"))
        async with started(backend, new_spec(docker_image="debian:trixie-slim")) as environment:
            assert await ok(environment, "echo here") == "here\n"
        with pytest.raises(TaskError, match=r"apptainer pull docker://alpine:3"):
            backend.check(new_spec(docker_image="alpine:3"))


async def test_a_sandbox_folder_is_an_image(new_backend: Any, tmp_path: Path) -> None:
    folder = tmp_path / "sandbox"
    subprocess.run([PROGRAM, "-s", "build", "--sandbox", str(folder), BASE], check=True, capture_output=True)
    async with new_backend(image="./sandbox") as backend, started(backend, new_spec()) as environment:
        assert await ok(environment, "touch /etc/x; id -u") == "0\n"
    assert not (folder / "etc" / "x").exists()


async def test_a_cached_image_that_is_cut_off_is_made_anew(new_backend: Any, task: Path) -> None:
    async with new_backend("one") as backend:
        path = Path(await backend.prepare(new_spec(task)))
        os.truncate(path, path.stat().st_size // 2)
        async with started(backend, new_spec(task)) as environment:
            assert await ok(environment, "cat greeting") == "hello said\n"
        os.truncate(path, 1000)
        environment = await backend.start(new_spec(task), str(path))
        assert await ok(environment, "cat greeting") == "hello said\n"
        await environment.stop()


async def test_an_image_of_the_user_that_is_cut_off_or_gone_is_named(new_backend: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.sif"
    broken.write_bytes(Path(BASE).read_bytes()[: 1 << 20])
    async with new_backend(image="broken.sif") as backend:
        with pytest.raises(BuildError, match=r"broken\.sif cannot be used: it is cut off"):
            await backend.prepare(new_spec())
        with pytest.raises(StartError, match=r"broken\.sif is not whole"):
            await backend.start(new_spec(), str(broken))
        broken.unlink()
        with pytest.raises(TaskError, match=r"there is no image .*broken\.sif"):
            backend.check(new_spec())


async def test_a_folder_of_images_that_is_full_is_one_clear_line(new_backend: Any, task: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    (tmp_path / "small").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path / "small")], check=True)
    try:
        async with new_backend(cache="small") as backend:
            with pytest.raises(BuildError, match=r"(?i)no space left|not whole|cannot be written") as caught:
                await backend.prepare(new_spec(task))
            assert "small" in str(caught.value)
        assert [path.name for path in (tmp_path / "small").iterdir() if path.name.endswith((".sif", ".part", ".lock"))] == []
    finally:
        subprocess.run(["umount", str(tmp_path / "small")], check=True)


async def test_a_folder_of_images_that_cannot_be_written_serves_what_it_has(new_backend: Any, task: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount read-only")
    async with new_backend() as backend:
        path = await backend.prepare(new_spec(task))
    cache = tmp_path / "cache"
    subprocess.run(["mount", "--bind", "-o", "ro", str(cache), str(cache)], check=True)
    try:
        async with new_backend("late") as backend:
            assert await backend.prepare(new_spec(task)) == path
            async with started(backend, new_spec(task)) as environment:
                assert await ok(environment, "echo runs") == "runs\n"
            with pytest.raises(
                BuildError, match=r"cache cannot be written \(Read-only file system\).*environment\.options\.cache"
            ):
                await backend.prepare(new_spec(task, digest="another"))
    finally:
        subprocess.run(["umount", str(cache)], check=True)


async def test_a_build_that_is_cancelled_leaves_nothing(new_backend: Any, task: Path, tmp_path: Path) -> None:
    (task / "Dockerfile").write_text("FROM debian:trixie-slim\nRUN echo working; sleep 600\n")
    working = asyncio.Event()
    async with new_backend("given-up") as backend:
        building = asyncio.ensure_future(
            backend.prepare(new_spec(task), sink=lambda stream, chunk: working.set() if chunk == b"working\n" else None)
        )
        await asyncio.wait([building, asyncio.ensure_future(working.wait())], return_when=asyncio.FIRST_COMPLETED)
        building.cancel()
        with pytest.raises(asyncio.CancelledError):
            await building
        assert not [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".users"]
        assert await backend.reap("given-up") == []


async def test_the_disk_of_a_trial_has_the_size_that_the_task_asks_for(new_backend: Any) -> None:
    from rollout.core.types import Resources

    spec = new_spec(docker_image=BASE, resources=Resources(storage_bytes=100 << 20))
    fill = Command(argv=("sh", "-c", "dd if=/dev/zero bs=1M count=60 of=/one && dd if=/dev/zero bs=1M count=60 of=/two"))
    async with new_backend(disk="image") as backend, started(backend, spec) as environment:
        result = await environment.exec(fill)
        assert (result.exit_code, b"No space left" in result.stderr) == (1, True)
        assert await ok(environment, "stat -c %s /one") == f"{60 << 20}\n"


async def test_what_a_trial_writes_is_closed_to_other_users_of_the_machine(new_backend: Any, tmp_path: Path) -> None:
    async with (
        new_backend(scratch=str(tmp_path / "scratch")) as backend,
        started(backend, new_spec(docker_image=BASE)) as environment,
    ):
        await ok(environment, "mkdir -p /logs /tests && echo secret > /tests/answer")
        (scratch,) = (tmp_path / "scratch").iterdir()
        (written,) = scratch.glob("*/overlay/upper/tests/answer")
        assert written.read_text() == "secret\n"
        assert (scratch.stat().st_mode & 0o777, scratch.stat().st_uid) == (0o700, os.geteuid())


async def test_gpus_are_passed_on_with_the_flag_of_their_kind(
    new_backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU is needed for that: Apptainer warns and goes on when it finds no driver."""
    from rollout.core.types import Resources

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    told = tmp_path / "apptainer"
    told.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nexec {PROGRAM} "$@"\n')
    told.chmod(0o755)
    spec = new_spec(docker_image=BASE, resources=Resources(gpus=1))
    async with new_backend(gpu="nv", program=str(told)) as backend:
        backend.check(spec)
        with pytest.raises(TaskError, match="needs 3 GPUs, and there are 2"):
            backend.check(new_spec(docker_image=BASE, resources=Resources(gpus=3)))
        async with started(backend, spec) as environment:
            assert await ok(environment, "echo $CUDA_VISIBLE_DEVICES") == "GPU-a\n"
        async with started(backend, new_spec(docker_image=BASE)) as environment:
            assert await ok(environment, "echo $CUDA_VISIBLE_DEVICES") == "\n"
    starts = [line.split() for line in (tmp_path / "calls").read_text().splitlines() if "instance start" in line]
    assert ["--nv" in start for start in starts] == [True, False]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    async with new_backend() as backend:
        with pytest.raises(TaskError, match="needs 1 GPUs, and this machine has neither"):
            backend.check(spec)
