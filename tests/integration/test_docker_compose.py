"""Tasks of several services under `type: docker`, with the real compose."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from require import DOCKER_IMAGE, require, unavailable
from rollout.core.errors import BuildError, EnvironmentLostError, StartError
from rollout.core.protocols import BackendContext, ServicesEnvironment
from rollout.core.types import EnvironmentSpec, Resources
from rollout.testing.environment import ok
from rollout_docker.backend import DockerBackend
from rollout_docker.compose import why_not
from rollout_docker.options import DockerOptions

SERVER = """
import http.server
http.server.test(http.server.SimpleHTTPRequestHandler, port=8000, bind="0.0.0.0")
"""
FILE = """
services:
  main:
    depends_on:
      web: {condition: service_healthy}
    environment:
      FROM_FILE: "${CPUS} ${MEMORY} ${TEST_DIR}"
    volumes:
      - ${HOST_ARTIFACTS_PATH}:${ENV_ARTIFACTS_PATH}
  web:
    build: {context: web}
    healthcheck:
      test: ["CMD", "python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/page')"]
      interval: 0.2s
      retries: 100
    volumes: ["data:/data"]
volumes:
  data:
"""


@pytest.fixture(autouse=True, scope="module")
def _compose() -> None:
    require("docker")
    if (reason := why_not()) is not None:
        unavailable("docker-compose", reason)


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.fixture
def job_id() -> str:
    return f"compose-{os.urandom(4).hex()}"


def left(job_id: str) -> list[str]:
    found = [docker(*kind, "--format", "{{.Name}}").split() for kind in (("network", "ls"), ("volume", "ls"))]
    found.append(docker("ps", "-a", "--format", "{{.Names}}").split())
    return [name for names in found for name in names if job_id in name]


@pytest_asyncio.fixture
async def backend(tmp_path: Path, job_id: str) -> AsyncIterator[DockerBackend]:
    context = BackendContext(job_id=job_id, work_dir=tmp_path / "work", cache_dir=tmp_path / "cache", concurrency=4)
    backend = DockerBackend(DockerOptions(), context)
    yield backend
    await backend.aclose()
    assert left(job_id) == []


def task(tmp_path: Path, file: str = FILE, **changes: object) -> EnvironmentSpec:
    folder = tmp_path / "environment"
    (folder / "web").mkdir(parents=True)
    (folder / "docker-compose.yaml").write_text(file)
    (folder / "Dockerfile").write_text(f"FROM {DOCKER_IMAGE}\nWORKDIR /srv\n")
    (folder / "web" / "Dockerfile").write_text(
        f'FROM {DOCKER_IMAGE}\nWORKDIR /web\nCOPY . .\nRUN echo served > page\nCMD ["python3", "server.py"]\n'
    )
    (folder / "web" / "server.py").write_text(SERVER)
    fields = {"task_name": "t", "directory": str(folder), "digest": os.urandom(8).hex(), **changes}
    return EnvironmentSpec(**fields)  # type: ignore[arg-type]


GET = "import urllib.request as u; print(u.urlopen('http://web:8000/page').read().decode(), end='')"


async def test_services_are_up_and_healthy_reachable_and_gone_afterwards(
    backend: DockerBackend, tmp_path: Path, job_id: str
) -> None:
    spec = task(tmp_path, resources=Resources(cpus=1, memory_bytes=128 << 20), env={"SECRET": "a$b s3cr3t"})
    backend.check(spec)
    image = await backend.prepare(spec)
    environment = await backend.start(spec, image)
    try:
        assert await ok(environment, f'python3 -c "{GET}"') == "served\n"
        assert await ok(environment, "echo $PWD/$FROM_FILE/$SECRET") == f"/srv/1 {128 << 20} /tests/a$b s3cr3t\n"
        assert docker("inspect", "-f", "{{.HostConfig.Memory}} {{.HostConfig.Init}}", environment._container.name) == (
            f"{128 << 20} true"
        )
        assert "s3cr3t" not in "".join(path.read_text() for path in (tmp_path / "work").rglob("*.json"))
        await ok(environment, "echo kept > /logs/artifacts/file")
        await environment.download("/logs/artifacts", tmp_path / "out")
        assert (tmp_path / "out" / "file").read_text() == "kept\n"
        assert len(left(job_id)) == 4  # two containers, a network, a volume
    finally:
        await environment.stop()
    assert left(job_id) == []
    await backend.remove(image)
    assert docker("images", "-q", image) == ""
    assert docker("images", "-q", f"{image.partition(':')[0]}-web") == ""


async def test_each_service_can_be_entered_and_its_output_read(backend: DockerBackend, tmp_path: Path) -> None:
    spec = task(tmp_path)
    image = await backend.prepare(spec)
    environment = await backend.start(spec, image)
    try:
        assert isinstance(environment, ServicesEnvironment)
        assert list(environment.services()) == ["web"]
        web = environment.service("web")
        assert await ok(web, "cat $PWD/page") == "served\n"
        (tmp_path / "page").write_text("changed\n")
        await web.upload(tmp_path / "page", "/web/page")
        assert await ok(environment, f'python3 -c "{GET}"') == "changed\n"
        await web.download("/web/page", tmp_path / "copied")
        assert (tmp_path / "copied").read_text() == "changed\n"
        said = await environment.service_output("web", 1000)
        assert b"GET /page" in said
        assert len(await environment.service_output("web", 10)) == 10
        await web.stop()
        assert await ok(environment, f'python3 -c "{GET}"') == "changed\n"
        with pytest.raises(KeyError):
            environment.service("nobody")
    finally:
        await environment.stop()
        await backend.remove(image)
    with pytest.raises(EnvironmentLostError):
        await ok(web, "true")


async def test_without_a_network_services_reach_each_other_and_nothing_else(backend: DockerBackend, tmp_path: Path) -> None:
    spec = task(tmp_path, network="none")
    image = await backend.prepare(spec)
    environment = await backend.start(spec, image)
    try:
        assert await ok(environment, f'python3 -c "{GET}"') == "served\n"
        networks = docker("inspect", "-f", "{{json .NetworkSettings.Networks}}", environment._container.name)
        (network,) = json.loads(networks)
        assert docker("network", "inspect", "-f", "{{.Internal}}", network) == "true"
    finally:
        await environment.stop()
        await backend.remove(image)


async def test_a_file_that_compose_cannot_read_is_a_build_error(backend: DockerBackend, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"docker-compose\.yaml of task t cannot be read"):
        await backend.prepare(task(tmp_path, "services: {main: {imagee: x}}"))


async def test_a_service_that_does_not_start_is_a_start_error_and_nothing_is_left(
    backend: DockerBackend, tmp_path: Path, job_id: str
) -> None:
    file = f"services: {{main: {{}}, bad: {{image: '{DOCKER_IMAGE}', command: [sh, -c, exit 3]}}}}"
    spec = task(tmp_path, file)
    image = await backend.prepare(spec)
    with pytest.raises(StartError, match="services of task t do not start"):
        await backend.start(spec, image)
    assert left(job_id) == []
    await backend.remove(image)


async def test_services_that_never_get_healthy_can_be_given_up(backend: DockerBackend, tmp_path: Path, job_id: str) -> None:
    check = "{test: [CMD, 'false'], interval: 1s, retries: 1000, start_period: 1000s}"
    spec = task(
        tmp_path, f"services: {{main: {{}}, ill: {{image: '{DOCKER_IMAGE}', command: [sleep, '600'], healthcheck: {check}}}}}"
    )
    image = await backend.prepare(spec)
    starting = asyncio.ensure_future(backend.start(spec, image))
    async with asyncio.timeout(60):
        while len(left(job_id)) < 3:
            await asyncio.sleep(0.1)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert left(job_id) == []
    await backend.remove(image)


async def test_what_a_killed_job_left_of_its_services_is_reaped(backend: DockerBackend, tmp_path: Path, job_id: str) -> None:
    spec = task(tmp_path)
    image = await backend.prepare(spec)
    environment = await backend.start(spec, image)
    removed = await backend.reap(job_id)
    assert sorted(line.split()[0] for line in removed) == ["container", "container", "image", "image", "network", "volume"]
    assert left(job_id) == []
    assert docker("images", "-q", image) == ""
    await environment.stop()
    await backend.remove(image)
