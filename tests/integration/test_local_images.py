"""`environment/Dockerfile` under `type: local`: what a recipe makes is what a trial finds."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from rollout.builtin.local import LocalBackend, LocalOptions
from rollout.core.errors import BuildError, StartError, TaskError
from rollout.core.protocols import BackendContext
from rollout.core.types import EnvironmentSpec
from rollout.testing.environment import ok

needs_users = pytest.mark.skipif(os.geteuid() != 0, reason="needs several user ids")


class Kit:
    """A backend, and a task folder to write recipes into."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = folder / "environment"
        self.environment.mkdir()
        self.warnings: list[str] = []
        self.backend = self.new_backend()
        self.backends = [self.backend]

    def new_backend(self, job_id: str = "images", **options: object) -> LocalBackend:
        context = BackendContext(
            job_id=job_id,
            work_dir=self.folder / f"work-{job_id}",
            cache_dir=self.folder / "cache",
            concurrency=2,
            warn=self.warnings.append,
        )
        return LocalBackend(LocalOptions(**options), context)  # type: ignore[arg-type]

    def spec(self, digest: str = "d1", **fields: object) -> EnvironmentSpec:
        return EnvironmentSpec(task_name="t", directory=str(self.environment), digest=digest, **fields)  # type: ignore[arg-type]

    def write(self, dockerfile: str, **files: str) -> None:
        (self.environment / "Dockerfile").write_text(dockerfile)
        for name, text in files.items():
            (self.environment / name.replace("__", "/")).parent.mkdir(parents=True, exist_ok=True)
            (self.environment / name.replace("__", "/")).write_text(text)

    async def sh(self, script: str, digest: str = "d1", **fields: object) -> str:
        """Build, start, run, stop."""
        spec = self.spec(digest, **fields)
        environment = await self.backend.start(spec, await self.backend.prepare(spec))
        try:
            return await ok(environment, script)
        finally:
            await environment.stop()


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    kit = Kit(tmp_path)
    yield kit
    await kit.backend.aclose()


async def test_run_steps_are_in_the_image_and_not_on_the_host(kit: Kit) -> None:
    kit.write("FROM debian\nRUN echo made > /usr/local/made && mkdir /data && echo top > /data/file && rm /etc/hostname\n")
    script = "cat /usr/local/made /data/file; test -e /etc/hostname || echo removed"
    assert await kit.sh(script) == "made\ntop\nremoved\n"
    assert not os.path.exists("/usr/local/made")
    assert not os.path.exists("/data/file")
    assert os.path.exists("/etc/hostname")


async def test_trials_do_not_change_the_image(kit: Kit) -> None:
    kit.write("FROM debian\nRUN mkdir /data && echo built > /data/file\n")
    assert await kit.sh("echo spoiled > /data/file; cat /data/file") == "spoiled\n"
    assert await kit.sh("cat /data/file") == "built\n"


async def test_env_arg_workdir_and_shell_are_honoured(kit: Kit) -> None:
    kit.write(
        "ARG VERSION=7\nFROM debian:${VERSION}\nARG VERSION\nARG NAME=x\n"
        'ENV A=1 B="two words" C=$NAME-${VERSION:-none}\nENV LEGACY a b\n'
        'WORKDIR /srv\nWORKDIR app/$NAME\nSHELL ["/bin/bash", "-c"]\n'
        "RUN [[ $NAME == x ]] && pwd > where && echo ${A}${MISSING:+no} >> where\n"
    )
    assert await kit.sh("pwd; cat where; echo $A,$B,$C,$LEGACY,$NAME") == "/srv/app/x\n/srv/app/x\n1\n1,two words,x-7,a b,\n"


async def test_the_specs_workdir_and_env_win(kit: Kit) -> None:
    kit.write("FROM debian\nENV A=image B=image\nWORKDIR /image\n")
    assert await kit.sh("pwd; echo $A $B", workdir="/spec", env={"A": "spec"}) == "/spec\nspec image\n"


@needs_users
async def test_user_applies_to_run_and_to_the_trial_and_not_to_copy(kit: Kit) -> None:
    kit.write(
        "FROM debian\nRUN useradd -m -u 4567 someone\nUSER someone\nWORKDIR /home/someone\n"
        "RUN id -un > /tmp/who\nCOPY file /tmp/copied\n"
        "COPY --chown=someone --chmod=640 file /tmp/given\n",
        file="x",
    )
    script = "id -un; cat /tmp/who; stat -c %U /tmp/copied; stat -c '%U %a' /tmp/given; echo $HOME"
    assert await kit.sh(script) == "someone\nsomeone\nroot\nsomeone 640\n/home/someone\n"


async def test_copy_knows_files_folders_patterns_and_ignores(kit: Kit) -> None:
    kit.write(
        "FROM debian\nWORKDIR /app\nCOPY one.txt renamed.txt\nCOPY *.txt texts/\nCOPY folder .\nCOPY folder/ /whole/\n"
        'COPY ["with space.md", "/spaced/"]\nCOPY one.txt two.txt ./\nCOPY . /everything\n',
        **{"one.txt": "1", "two.txt": "2", "with space.md": "s", "folder__a__deep": "deep", "folder__b": "b", "secret.key": "k"},
    )
    (kit.environment / ".dockerignore").write_text("# keys\n*.key\n")
    script = "cd /app; cat renamed.txt texts/one.txt texts/two.txt a/deep b one.txt; ls /whole /spaced"
    out = await kit.sh(script + "; test -e /everything/one.txt && ls /everything")
    assert out.startswith("112deepb1")
    assert "with space.md" in out
    assert "secret.key" not in out


async def test_here_documents_become_scripts_and_files(kit: Kit) -> None:
    kit.write(
        "FROM debian\nENV NAME=world\n"
        "RUN <<EOF\necho from sh > /one\necho $NAME >> /one\nEOF\n"
        "RUN <<-'END'\n#!/usr/bin/env bash\n"
        '\techo "bash ${BASH_VERSION:+yes}" > /two\nEND\n'
        "COPY <<'EOF' /three\nraw $NAME\nEOF\nCOPY <<EOF /four\nhello $NAME\nEOF\n"
        "RUN cat <<EOF > /five\npiped\nEOF\n"
    )
    assert await kit.sh("cat /one /two /three /four /five") == "from sh\nworld\nbash yes\nraw $NAME\nhello world\npiped\n"


async def test_add_unpacks_a_local_archive(kit: Kit) -> None:
    kit.write("FROM debian\nADD data.tar.gz /data\nADD plain.txt /data/plain.txt\n", **{"plain.txt": "p"})
    (kit.environment / "inner").write_text("inner")
    with tarfile.open(kit.environment / "data.tar.gz", "w:gz") as archive:
        archive.add(kit.environment / "inner", "sub/inner")
    assert await kit.sh("cat /data/sub/inner /data/plain.txt") == "innerp"


async def test_a_failing_run_quotes_its_line_and_its_last_words(kit: Kit) -> None:
    kit.write("FROM debian\nRUN true\nRUN echo before; echo the reason >&2; exit 3\n")
    with pytest.raises(BuildError, match=r"Dockerfile:3: `RUN echo before.*exit code 3(?s:.*)the reason"):
        await kit.backend.prepare(kit.spec())
    assert [path.name for path in (kit.folder / "cache" / "layers").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("FROM other AS two", "multi-stage"),
        ("COPY --from=other /a /b", "COPY --from"),
        ("ADD https://example.com/x /x", "ADD"),
        ("RUN --mount=type=cache,target=/c true", "RUN --mount"),
        ("RUN --network=none true", "RUN --network"),
    ],
)
async def test_what_needs_an_engine_is_refused_before_anything_starts(kit: Kit, line: str, what: str) -> None:
    kit.write(f"FROM debian\n\n{line}\n")
    with pytest.raises(TaskError, match=rf"Dockerfile:3: .*{what}.*use `type: docker`"):
        kit.backend.check(kit.spec())


async def test_a_prebuilt_image_needs_an_engine_or_a_rootfs(kit: Kit) -> None:
    with pytest.raises(TaskError, match="needs the image some/image:1: use `type: docker`"):
        kit.backend.check(kit.spec(docker_image="some/image:1"))


async def test_from_is_reported_once(kit: Kit) -> None:
    kit.write("FROM ubuntu:24.04\n")
    for digest in ("d1", "d2"):
        kit.backend.check(kit.spec(digest))
    assert [warning for warning in kit.warnings if "FROM" in warning] == [
        "FROM ubuntu:24.04 is not used: the machine is the base (type: local, task t)"
    ]


async def test_a_layer_is_built_once_for_all_jobs_until_forced(kit: Kit) -> None:
    kit.write("FROM debian\nRUN cat /proc/sys/kernel/random/uuid > /stamp\n")
    first = await kit.sh("cat /stamp")
    other = kit.new_backend("another")
    try:
        image = await other.prepare(kit.spec())
        environment = await other.start(kit.spec(), image)
        assert await ok(environment, "cat /stamp") == first
        await environment.stop()
        await other.prepare(kit.spec(), force=True)
        environment = await other.start(kit.spec(), image)
        assert await ok(environment, "cat /stamp") != first
        await environment.stop()
    finally:
        await other.aclose()


async def test_two_jobs_that_build_at_once_build_once(kit: Kit) -> None:
    kit.write("FROM debian\nRUN sleep 0.3; cat /proc/sys/kernel/random/uuid > /stamp\n")
    other = kit.new_backend("another")
    try:
        images = await asyncio.gather(kit.backend.prepare(kit.spec()), other.prepare(kit.spec()))
        assert images[0] == images[1]
        await kit.backend.remove(images[0])
        await other.remove(images[0])
    finally:
        await other.aclose()
    assert [path.name for path in (kit.folder / "cache" / "layers").iterdir() if path.is_dir()] == []


async def test_remove_takes_only_what_this_job_made(kit: Kit) -> None:
    kit.write("FROM debian\nRUN true\n")
    image = await kit.backend.prepare(kit.spec())
    other = kit.new_backend("another")
    try:
        assert await other.prepare(kit.spec()) == image
        await other.remove(image)
        await (await kit.backend.start(kit.spec(), image)).stop()
        await kit.backend.remove(image)
        with pytest.raises(StartError, match="is gone"):
            await other.start(kit.spec(), image)
    finally:
        await other.aclose()


async def test_a_cancelled_build_stops_and_leaves_nothing(kit: Kit) -> None:
    kit.write("FROM debian\nRUN echo begun; sleep 600\n")
    begun = asyncio.Event()

    def sink(stream: str, chunk: bytes) -> None:
        if chunk == b"begun\n":
            begun.set()

    building = asyncio.ensure_future(kit.backend.prepare(kit.spec(), sink=sink))
    async with asyncio.timeout(60):
        await begun.wait()
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert [path.name for path in (kit.folder / "cache" / "layers").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("pack", [False, True], ids=["folder", "tar"])
async def test_a_rootfs_takes_the_place_of_the_machine(kit: Kit, pack: bool, minimal_rootfs: Callable[[], Path]) -> None:
    rootfs = minimal_rootfs()
    source = rootfs
    if pack:
        source = kit.folder / "rootfs.tar"
        with tarfile.open(source, "w") as archive:
            archive.add(rootfs, ".")
    backend = kit.new_backend("rootfs", rootfs=str(source))
    spec = kit.spec(docker_image="some/image:1")
    try:
        backend.check(spec)
        environment = await backend.start(spec, await backend.prepare(spec))
        assert await ok(environment, "read line < /etc/marker; echo $line") == "of the rootfs\n"
        assert await ok(environment, "test -e /usr/bin/env || echo nothing else; echo changed > /etc/marker") == "nothing else\n"
        await environment.stop()
    finally:
        await backend.aclose()
    assert (rootfs / "etc" / "marker").read_text() == "of the rootfs\n"


@pytest.fixture
def minimal_rootfs(tmp_path: Path) -> Callable[[], Path]:
    def make() -> Path:
        """A shell, the libraries it needs, and a file to recognise it by."""
        rootfs = tmp_path / "rootfs"
        linked = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
        for path in ["/bin/sh", *re.findall(r"(/\S+) \(0x", linked)]:
            target = rootfs / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(Path(path).read_bytes())
            target.chmod(0o755)
        (rootfs / "etc").mkdir(exist_ok=True)
        (rootfs / "etc" / "marker").write_text("of the rootfs\n")
        return rootfs

    return make
