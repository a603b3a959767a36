"""What is said before a job starts about engines and tasks, and what the engine is asked for."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollout.core.errors import SandboxError, TaskError
from rollout.core.protocols import BackendContext
from rollout.core.types import EnvironmentSpec, Resources
from rollout_docker import check, where
from rollout_docker.backend import DockerBackend
from rollout_docker.body import container_body
from rollout_docker.check import Checks, same_platform
from rollout_docker.engine import Engine
from rollout_docker.options import DockerOptions
from rollout_docker.where import Endpoint, endpoints_of


def engine(**changes: object) -> Engine:
    """What the checks look at."""
    fields: dict[str, object] = {
        "name": "unix:///d.sock",
        "cpus": 8,
        "platform": "linux/amd64",
        "platform_of": lambda image: None,
        "runtimes": frozenset({"runc"}),
        "podman": False,
        "storage_limits": True,
        "missing_limits": [],
    }
    return cast(Engine, SimpleNamespace(**{**fields, **changes}))


def spec(**changes: object) -> EnvironmentSpec:
    fields: dict[str, object] = {"task_name": "t", "directory": None, "digest": "d", "docker_image": "x"}
    return EnvironmentSpec(**{**fields, **changes})  # type: ignore[arg-type]


def checks(tmp_path: Path, warnings: list[str], **options: object) -> Checks:
    context = BackendContext(job_id="j", work_dir=tmp_path, cache_dir=tmp_path, concurrency=1, warn=warnings.append)
    return Checks(DockerOptions(**options), context)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "engines", "said"),
    [
        (
            {"resources": Resources(gpus=2)},
            [engine()],
            "t needs 2 GPUs: the engine has no nvidia runtime.*nvidia-container-toolkit",
        ),
        ({"resources": Resources(gpus=1)}, [engine(podman=True)], "t needs 1 GPUs: Podman's API gives none"),
        ({"docker_image": None}, [engine()], "no environment/Dockerfile and names no docker_image"),
        ({"resources": Resources(memory_bytes=1000)}, [engine()], "at least 6Mi"),
    ],
)
def test_a_task_that_cannot_run_is_refused_with_the_reason(
    tmp_path: Path, given: dict[str, object], engines: list[Engine], said: str
) -> None:
    with pytest.raises(TaskError, match=said):
        checks(tmp_path, []).task(spec(**given), engines)


def test_one_engine_with_gpus_is_enough(tmp_path: Path) -> None:
    several = [engine(), engine(runtimes=frozenset({"runc", "nvidia"}))]
    checks(tmp_path, []).task(spec(resources=Resources(gpus=1)), several)


def test_without_compose_a_task_of_several_services_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docker-compose.yaml").write_text("services: {}")
    monkeypatch.setattr(check, "why_not", lambda: "the docker command is not installed")
    with pytest.raises(TaskError, match=r"t has environment/docker-compose.yaml, and the docker command is not installed"):
        checks(tmp_path, []).task(spec(directory=str(tmp_path)), [engine()])


def test_what_will_not_hold_is_said_once(tmp_path: Path) -> None:
    warnings: list[str] = []
    job = checks(tmp_path, warnings, platform="linux/arm64")
    poor = engine(
        podman=True,
        storage_limits=False,
        missing_limits=["memory", "cpus"],
        cpus=2,
        platform_of=lambda image: "linux/s390x" if image == "x" else "linux/arm64",
    )
    for _ in range(3):
        job.task(spec(resources=Resources(cpus=4, storage_bytes=1)), [poor])
        job.task(spec(docker_image="fine"), [poor])
    for part in (
        "is Podman",
        "`platform: linux/arm64` runs there only by emulation",
        "the image x is for linux/s390x",
        "cannot limit memory, cpus",
        "storage are not enforced",
        "has 2 CPUs, and t asks for 4",
    ):
        assert len([warning for warning in warnings if part in warning]) == 1, (part, warnings)
    assert len(warnings) == 6


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("linux/amd64", "linux/amd64", True),
        ("linux/arm64", "linux/amd64", False),
        ("linux/arm64/v8", "linux/arm64", True),
        ("linux/arm/v6", "linux/arm/v7", False),
        ("windows/amd64", "linux/amd64", False),
    ],
)
def test_platforms_are_the_same_as_far_as_both_say(one: str, other: str, same: bool) -> None:
    assert same_platform(one, other) is same


def test_gpus_are_asked_of_the_engine(tmp_path: Path) -> None:
    asked = spec(resources=Resources(cpus=16, gpus=2, memory_bytes=1 << 30, storage_bytes=5))
    body = container_body(engine(), DockerOptions(shm_size="1Gi"), asked, image="i", workdir="/w", job_id="j")
    host = body["HostConfig"]
    assert host["DeviceRequests"] == [{"Driver": "nvidia", "Count": 2, "Capabilities": [["gpu"]]}]
    assert (host["NanoCpus"], host["Memory"], host["MemorySwap"], host["ShmSize"]) == (8 * 10**9, 1 << 30, 1 << 30, 1 << 30)
    assert host["StorageOpt"] == {"size": "5"}
    without = container_body(engine(storage_limits=False), DockerOptions(), spec(), image="i", workdir="/w", job_id="j")
    assert not {"DeviceRequests", "StorageOpt", "Memory", "NanoCpus", "ShmSize"} & set(without["HostConfig"])


@contextmanager
def listening(version: dict[str, Any]) -> Iterator[str]:
    """Something that says of itself that it is an engine."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(version).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def refusal(tmp_path: Path, host: str) -> str:
    context = BackendContext(job_id="j", work_dir=tmp_path / "w", cache_dir=tmp_path / "c", concurrency=1)
    with pytest.raises(SandboxError) as caught:
        DockerBackend(DockerOptions(host=host), context).check(spec())
    assert not isinstance(caught.value, TaskError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_engine_that_is_too_old_is_refused(tmp_path: Path) -> None:
    with listening({"ApiVersion": "1.24"}) as host:
        assert "is too old (its API is 1.24, 1.40 is needed)" in refusal(tmp_path, host)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_a_socket_that_others_may_not_use_is_said_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "d.sock"
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0o600)
        os.seteuid(65534)
        try:
            said = refusal(tmp_path, f"unix://{path}")
        finally:
            os.seteuid(0)
    assert "does not let us in" in said
    assert "usermod -aG docker" in said


def test_without_docker_podmans_sockets_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, "DOCKER_SOCKET", str(tmp_path / "none.sock"))
    environ = {"HOME": str(tmp_path), "DOCKER_CONFIG": str(tmp_path / "config"), "XDG_RUNTIME_DIR": str(tmp_path)}
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "podman").mkdir()
    with socket.socket(socket.AF_UNIX) as podman:
        podman.bind(str(tmp_path / "podman/podman.sock"))
        podman.listen()
        found = endpoints_of(DockerOptions(), tmp_path, environ)
        assert found == [Endpoint(f"unix://{tmp_path}/podman/podman.sock", "Podman")]
        with socket.socket(socket.AF_UNIX) as rootless:
            rootless.bind(str(tmp_path / "docker.sock"))
            rootless.listen()
            assert endpoints_of(DockerOptions(), tmp_path, environ) == [Endpoint(f"unix://{tmp_path}/docker.sock")]


def test_dockerhost_comes_before_contexts_and_the_job_before_both(tmp_path: Path) -> None:
    environ = {"DOCKER_CONFIG": str(tmp_path), "DOCKER_HOST": "unix:///a.sock", "DOCKER_CONTEXT": "b"}
    assert [str(found) for found in endpoints_of(DockerOptions(), tmp_path, environ)] == ["unix:///a.sock (DOCKER_HOST)"]
    assert [found.url for found in endpoints_of(DockerOptions(host="unix:///c.sock"), tmp_path, environ)] == ["unix:///c.sock"]
    with pytest.raises(SandboxError, match="no docker context 'b'"):
        endpoints_of(DockerOptions(), tmp_path, {key: value for key, value in environ.items() if key != "DOCKER_HOST"})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SandboxError, match=r"cannot read .*config.json"):
        endpoints_of(DockerOptions(), tmp_path, {"DOCKER_CONFIG": str(tmp_path)})
