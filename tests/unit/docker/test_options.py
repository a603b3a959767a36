"""`environment.options` of `type: docker`, and what goes into a build."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import msgspec
import pytest

from rollout.core.errors import SandboxError, TaskError
from rollout.core.protocols import BackendContext
from rollout.core.types import EnvironmentSpec
from rollout_docker.backend import DockerBackend
from rollout_docker.images import _pack_context, needs_buildkit
from rollout_docker.options import DockerOptions


@pytest.mark.parametrize(
    "options",
    [
        {"pids": 0},
        {"pull": "sometimes"},
        {"shm_size": "much"},
        {"mounts": ["/only/one"]},
        {"mounts": ["relative:/there"]},
        {"mounts": ["/here:/there:rwx"]},
        {"host": "npipe://x"},
        {"host": "unix:///x", "context": "y"},
        {"hosts": ["unix:///x"], "host": "unix:///y"},
        {"hosts": ["unix:///x", "unix:///x"]},
        {"hosts": [{"host": "tcp://x", "slots": 0}]},
        {"host": "unix:///x", "tls": {"ca": "x"}},
        {"host": "tcp://x", "tls": {"cert": "x"}},
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(options, DockerOptions)


def test_options_that_mean_something_are_taken() -> None:
    options = {"mounts": ["/a:/b:ro"], "shm_size": "1Gi", "pids": None, "ulimits": {"nofile": 1000}, "host": "unix:///x.sock"}
    assert msgspec.convert(options, DockerOptions).mounts == ["/a:/b:ro"]


def test_without_an_engine_the_error_says_how_to_get_one_and_what_needs_none(tmp_path: Path) -> None:
    context = BackendContext(job_id="j", work_dir=tmp_path / "w", cache_dir=tmp_path / "c", concurrency=1)
    backend = DockerBackend(DockerOptions(host=f"unix://{tmp_path}/no.sock"), context)
    spec = EnvironmentSpec(task_name="t", directory=None, digest="d", docker_image="x")
    with pytest.raises(SandboxError, match=r"no Docker engine answers at unix://.*start one.*DOCKER_HOST.*type: local") as caught:
        backend.check(spec)
    assert not isinstance(caught.value, TaskError)
    assert "\n" not in str(caught.value)


def members(folder: Path) -> dict[str, tarfile.TarInfo]:
    out = io.BytesIO()
    _pack_context(folder, "Dockerfile", out)
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        return {member.name.removeprefix("./"): member for member in archive if member.isfile()}


def test_what_dockerignore_names_is_not_sent(tmp_path: Path) -> None:
    for name in ("Dockerfile", "a.log", "keep.log", "src/a.py", "src/a.log", "cache/big", "cache/small"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    (tmp_path / ".dockerignore").write_text("# comment\n**/*.log\n!keep.log\ncache\n!cache/small\n\nDockerfile\n")
    sent = set(members(tmp_path))
    assert {"Dockerfile", "keep.log", "src/a.py", "cache/small"} <= sent
    assert not {"a.log", "src/a.log", "cache/big"} & sent


def test_without_dockerignore_everything_is_sent_with_its_modes(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch")
    (tmp_path / "tool").write_text("x")
    (tmp_path / "tool").chmod(0o755)
    assert members(tmp_path)["tool"].mode == 0o755


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        ("RUN --mount=type=cache,target=/c true", True),
        ("RUN <<EOF\necho hi\nEOF", True),
        ("COPY <<'END' /file\nhi\nEND", True),
        ("COPY --chmod=755 a b", True),
        ("COPY --from=x --link a b", True),
        ("COPY --from=x --chown=1:1 a b", False),
        ("RUN cat a << b.txt && true", False),
        ("RUN echo $((1<<3))", False),
        ("RUN apt-get update \\\n    && true", False),
    ],
)
def test_what_only_buildkit_reads_is_seen(line: str, needed: bool) -> None:
    assert needs_buildkit(f"FROM x\n{line}\n") is needed
