"""Images of a registry: when they are fetched, by whose credentials, and which content a job had. What a killed job built."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines import IMAGE, Dockerd, engine, registry
from integration.jobs import command, environ, rollout, trial_results, write_job, write_task
from rollout.core.errors import ImagePullError
from rollout.core.protocols import BackendContext
from rollout.core.types import EnvironmentSpec
from rollout_docker.backend import DockerBackend
from rollout_docker.options import DockerOptions

pytestmark = pytest.mark.needs("docker-engines")
PASSWORD = "reader's secret"


@pytest.fixture(scope="module")
def dockerd() -> Iterator[Dockerd]:
    with engine() as started:
        yield started


@pytest.fixture(scope="module")
def other() -> Iterator[Dockerd]:
    with engine() as started:
        yield started


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry") / "r") as found:
        yield found


def publish(dockerd: Dockerd, address: str, text: str, name: str = "app:1") -> str:
    """Put an image whose /mark holds the text into the registry, and nowhere else; its digest there."""
    tag = f"{address}/{name}"
    dockerd.docker("build", "-q", "-t", tag, "-", stdin=f"FROM {IMAGE}\nRUN echo {text} > /mark\n".encode())
    said = dockerd.docker("push", tag)
    dockerd.docker("rmi", tag)
    return next(word for word in said.split() if word.startswith("sha256:"))


def backend(dockerd: Dockerd, tmp_path: Path, resolved: dict[str, str] | None = None, **options: object) -> DockerBackend:
    context = BackendContext(
        job_id=f"registry-{os.urandom(4).hex()}",
        work_dir=tmp_path / "work",
        cache_dir=tmp_path / "cache",
        concurrency=2,
        resolved=(resolved if resolved is not None else {}).__setitem__,
    )
    return DockerBackend(DockerOptions(**({"host": dockerd.url} | options)), context)  # type: ignore[arg-type]


def spec(image: str) -> EnvironmentSpec:
    return EnvironmentSpec(task_name="t", directory=None, digest=os.urandom(8).hex(), docker_image=image)


async def mark(dockerd: Dockerd, image: str) -> str:
    return dockerd.docker("run", "--rm", "--network", "none", image, "cat", "/mark")


async def test_pull_policies(dockerd: Dockerd, address: str, tmp_path: Path) -> None:
    name = f"{address}/policy:1"
    first = publish(dockerd, address, "first", "policy:1")
    never = backend(dockerd, tmp_path, pull="never")
    with pytest.raises(ImagePullError, match="may not be fetched"):
        await never.prepare(spec(name))
    resolved: dict[str, str] = {}
    missing = backend(dockerd, tmp_path, resolved, pull="missing")
    image = await missing.prepare(spec(name))
    assert await mark(dockerd, image) == "first"
    assert resolved == {image: f"{address}/policy@{first}"}
    second = publish(other_builder := dockerd, address, "second", "policy:1")
    assert await mark(other_builder, await never.prepare(spec(f"{address}/policy@{first}"))) == "first"
    again = backend(dockerd, tmp_path, resolved, pull="always")
    image = await again.prepare(spec(name))
    assert await mark(dockerd, image) == "second"
    assert resolved[image] == f"{address}/policy@{second}"
    with pytest.raises(ImagePullError, match="nothing-of-this-name"):
        await missing.prepare(spec(f"{address}/nothing-of-this-name:1"))
    for each in (never, missing, again):
        await each.aclose()


async def test_all_hosts_of_a_pool_run_the_content_that_the_first_one_got(
    dockerd: Dockerd, other: Dockerd, address: str, tmp_path: Path
) -> None:
    publish(dockerd, address, "first", "pool:1")
    wanted = spec(f"{address}/pool:1")
    pool = backend(dockerd, tmp_path, host=None, hosts=[dockerd.url, other.url])
    image = await pool.prepare(wanted)
    publish(dockerd, address, "second", "pool:1")
    environments = [await pool.start(wanted, image) for _ in range(2)]
    used = [engine.docker("ps", "-q", "--filter", f"label=rollout.job={pool._context.job_id}") for engine in (dockerd, other)]
    assert all(used)
    assert [engine.docker("exec", name, "cat", "/mark") for engine, name in zip((dockerd, other), used, strict=True)] == [
        "first",
        "first",
    ]
    for environment in environments:
        await environment.stop()
    await pool.aclose()


@pytest.mark.parametrize("how", ["auths", "credHelpers", "credsStore"])
async def test_credentials_are_those_of_docker_login(
    dockerd: Dockerd, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry(tmp_path / "private", password=PASSWORD) as address:
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "config"))
        login = base64.b64encode(f"reader:{PASSWORD}".encode()).decode()
        (tmp_path / "config").mkdir()
        config = tmp_path / "config" / "config.json"
        config.write_text(json.dumps({"auths": {address: {"auth": login}}}))
        publish(dockerd, address, how)
        config.write_text("{}")
        with pytest.raises(ImagePullError, match=r"no basic auth credentials|unauthorized") as caught:
            await backend(dockerd, tmp_path).prepare(spec(f"{address}/app:1"))
        assert PASSWORD not in str(caught.value)
        program = tmp_path / "bin" / "docker-credential-tests"
        program.parent.mkdir()
        answer = json.dumps({"ServerURL": address, "Username": "reader", "Secret": PASSWORD})
        program.write_text(f"#!/bin/sh\nread server\ncat <<'END'\n{answer}\nEND\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        settings = {
            "auths": {"auths": {address: {"auth": login}}},
            "credHelpers": {"credHelpers": {address: "tests"}},
            "credsStore": {"credsStore": "tests"},
        }
        config.write_text(json.dumps(settings[how]))
        private = backend(dockerd, tmp_path)
        assert await mark(dockerd, await private.prepare(spec(f"{address}/app:1"))) == how
        await private.aclose()


def test_a_jobs_lock_holds_the_digests_of_its_images(dockerd: Dockerd, address: str, tmp_path: Path) -> None:
    digest = publish(dockerd, address, "42", "locked:1")
    for number, image in enumerate((f"{address}/locked:1", None)):
        toml = f'[environment]\ndocker_image = "{image}"\n' if image else ""
        task = write_task(tmp_path / "tasks" / f"t{number}", tests="#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n", toml=toml)
        (task / "environment" / "Dockerfile").write_text(f"FROM {IMAGE}\nWORKDIR /app\n")
    write_job(tmp_path, {"agents": [{"name": "nop"}], "environment": {"type": "docker", "options": {"host": dockerd.url}}})
    address_again = {"type": "docker", "options": {"hosts": [{"host": dockerd.url, "slots": 4}]}}
    for where in (None, address_again):  # the second run keeps every trial, wherever they ran, and what the first one wrote
        if where is not None:
            write_job(tmp_path, {"agents": [{"name": "nop"}], "environment": where})
        done = rollout(tmp_path, "job.json")
        assert done.returncode == 0, done.stdout + done.stderr
        lock = json.loads((tmp_path / "jobs/job/lock.json").read_text())
        contents = [lock["image_contents"][image] for image in lock["images"].values()]
        assert len(contents) == 2
        assert f"{address}/locked@{digest}" in contents
        assert [content for content in contents if content.startswith("sha256:")]
    assert len(trial_results(tmp_path / "jobs/job")) == 2


@pytest.mark.parametrize("delete", [True, False])
def test_rollout_clean_removes_the_images_of_a_killed_job_as_the_job_wants_it(
    dockerd: Dockerd, tmp_path: Path, delete: bool
) -> None:
    mark = os.urandom(4).hex()
    task = write_task(tmp_path / "tasks" / "t", tests="#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    (task / "environment" / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo {mark} > /mark\nWORKDIR /app\n")
    where = {"type": "docker", "delete": delete, "options": {"host": dockerd.url}}
    write_job(tmp_path, {"agents": [{"name": "waits", "execute": "#!/bin/sh\nsleep 600\n"}], "environment": where})
    process = subprocess.Popen(
        command("job.json"), cwd=tmp_path, env=environ(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    config = tmp_path / "jobs/job/config.json"
    deadline = time.monotonic() + 120
    try:
        while time.monotonic() < deadline and not dockerd.docker("ps", "-q", "--filter", "label=rollout.trial"):
            assert process.poll() is None
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    label = f"label=rollout.job={json.loads(config.read_text())['job_id']}"
    image = dockerd.docker("images", "-q", "--filter", label)
    assert image
    done = rollout(tmp_path, "clean", "jobs/job")
    assert done.returncode == 0, done.stderr
    assert not _containers(dockerd, config)
    assert dockerd.docker("images", "-q", "--filter", label) == ("" if delete else image)
    assert ("removed image rollout/" in done.stdout) is delete
    assert dockerd.docker("images", "-q", IMAGE)


def _containers(dockerd: Dockerd, config: Path) -> str:
    return dockerd.docker("ps", "-aq", "--filter", f"label=rollout.job={json.loads(config.read_text())['job_id']}")
