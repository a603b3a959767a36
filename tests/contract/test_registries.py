"""The three built-in registry sources keep the contract, and what each does of its own."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from git_server import Repository, Server, git, plain_http, served, smart_http, write_task
from rollout.builtin import download as downloading
from rollout.builtin.download import download
from rollout.builtin.registries import GitOptions, GitRegistry, PathOptions, PathRegistry, UrlOptions, UrlRegistry
from rollout.core.errors import ConfigError, TaskNotFoundError
from rollout.core.protocols import RegistryContext, RegistrySource
from rollout.testing.registry import RegistrySuite


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Server]]:
    """A repository with tasks and a registry.json, and a server for it; the registry's copy is beside it too."""
    root = tmp_path_factory.mktemp("registry")
    repository = Repository(root / "tasks")
    for name in ("one", "two"):
        write_task(repository.path / "suite" / name, f"Do {name}.")
    commit = repository.commit()
    with smart_http(root) as server:
        address = f"{server.url}/tasks/.git"

        def tasks(**more: str) -> list[dict[str, str]]:
            return [{"name": name, "path": f"suite/{name}", **more} for name in ("two", "one")]

        registry = [
            {"name": "bench", "version": "2.0", "description": "Two.", "tasks": tasks(git_url=address, git_commit_id=commit)},
            {"name": "bench", "version": "1.0", "tasks": tasks(git_url=address)},
        ]
        (root / "registry.json").write_text(json.dumps(registry))
        inner = [{"name": "bench", "version": "1", "tasks": tasks()}, {"name": "bench", "version": "2", "tasks": tasks()[:1]}]
        (repository.path / "registry.json").write_text(json.dumps({"datasets": inner}))
        repository.commit()
        yield root, server


class _Suite(RegistrySuite):
    @pytest.fixture(autouse=True)
    def _place(self, place: tuple[Path, Server]) -> None:
        self.root, self.server = place


class TestPathRegistry(_Suite):
    def make(self, cache_dir: Path, *, offline: bool = False) -> RegistrySource:
        context = RegistryContext(base_dir=self.root, cache_dir=cache_dir, offline=offline)
        return PathRegistry(PathOptions(path="registry.json"), context)


class TestPathRegistryBesideItsTasks(_Suite):
    works_offline_unfetched = True

    def make(self, cache_dir: Path, *, offline: bool = False) -> RegistrySource:
        context = RegistryContext(base_dir=self.root, cache_dir=cache_dir, offline=offline)
        return PathRegistry(PathOptions(path="tasks"), context)


class TestUrlRegistry(_Suite):
    @pytest.fixture(autouse=True)
    def _files(self, place: tuple[Path, Server]) -> Iterator[None]:
        with plain_http(place[0]) as self.files:
            yield

    def make(self, cache_dir: Path, *, offline: bool = False) -> RegistrySource:
        context = RegistryContext(base_dir=Path("/nowhere"), cache_dir=cache_dir, offline=offline)
        return UrlRegistry(UrlOptions(url=f"{self.files.url}/registry.json"), context)


class TestGitRegistry(_Suite):
    def make(self, cache_dir: Path, *, offline: bool = False) -> RegistrySource:
        context = RegistryContext(base_dir=Path("/nowhere"), cache_dir=cache_dir, offline=offline)
        return GitRegistry(GitOptions(git=f"{self.server.url}/tasks/.git"), context)

    async def test_tasks_are_at_the_registrys_commit(self, tmp_path: Path) -> None:
        commit = git(self.root / "tasks", "rev-parse", "HEAD")
        folders = await self.make(tmp_path).fetch("bench", None)
        assert {folder.git_commit_id for folder in folders} == {commit}

    async def test_a_ref_and_a_file_may_be_named(self, tmp_path: Path) -> None:
        context = RegistryContext(base_dir=self.root, cache_dir=tmp_path)
        first = git(self.root / "tasks", "rev-list", "--max-parents=0", "HEAD")
        with pytest.raises(TaskNotFoundError, match=r"no file 'registry\.json'"):
            await GitRegistry(GitOptions(git="tasks", ref=first), context).datasets()
        with pytest.raises(ConfigError, match=r"instruction\.md"):
            await GitRegistry(GitOptions(git="tasks", file="suite/one/instruction.md"), context).datasets()


async def test_a_registry_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    context = RegistryContext(base_dir=tmp_path, cache_dir=tmp_path)
    with pytest.raises(TaskNotFoundError, match="no such file"):
        await PathRegistry(PathOptions(path="nothing.json"), context).datasets()


class _Answers(BaseHTTPRequestHandler):
    """Answers by path, and keeps what it was asked."""

    asked: list[tuple[str, dict[str, str]]] = []
    body = b"[]"

    def do_GET(self) -> None:
        self.asked.append((self.path, dict(self.headers)))
        path = self.path
        if path == "/tagged" and self.headers.get("If-None-Match") == '"v1"':
            self.send_response(304)
            self.end_headers()
            return
        if path.startswith("/status/"):
            self.send_error(int(path.rpartition("/")[2]))
            return
        if path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", path[4:].replace("SERVER", f"http://127.0.0.1:{self.server.server_address[1]}"))
            self.end_headers()
            return
        self.send_response(200)
        if path == "/tagged":
            self.send_header("ETag", '"v1"')
        cut = 100 if path == "/cut" else 0
        self.send_header("Content-Length", str(len(self.body) + cut))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def http() -> Iterator[str]:
    _Answers.asked.clear()
    with served(_Answers, []) as server:
        yield server.url


async def test_a_copy_is_asked_about_and_used_when_it_is_still_right(http: str, tmp_path: Path) -> None:
    assert await download(f"{http}/tagged", tmp_path) == b"[]"
    assert await download(f"{http}/tagged", tmp_path) == b"[]"
    assert [headers.get("If-None-Match") for _, headers in _Answers.asked] == [None, '"v1"']
    assert await download(f"{http}/tagged", tmp_path, offline=True) == b"[]"
    assert len(_Answers.asked) == 2


async def test_a_damaged_copy_is_not_used(http: str, tmp_path: Path) -> None:
    await download(f"{http}/tagged", tmp_path)
    (copy,) = tmp_path.iterdir()
    for damaged in (copy.read_bytes()[:-1], b"", b"{}\n[]", b"\xff\n"):
        copy.write_bytes(damaged)
        with pytest.raises(TaskNotFoundError, match="never fetched"):
            await download(f"{http}/tagged", tmp_path, offline=True)
    assert await download(f"{http}/tagged", tmp_path) == b"[]"
    assert "If-None-Match" not in _Answers.asked[-1][1]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/status/404", "HTTP 404"),
        ("/status/500", "HTTP 500"),
        ("/status/304", "HTTP 304"),
        ("/cut", "before the file was complete"),
        ("/to/file:///etc/passwd", "not allowed"),
        ("/to/ftp://127.0.0.1/x", "not followed"),
        ("/to/SERVER/status/403", "HTTP 403"),
    ],
)
async def test_what_a_server_does_wrong_is_one_line_with_the_address(path: str, said: str, http: str, tmp_path: Path) -> None:
    with pytest.raises(TaskNotFoundError) as raised:
        await download(f"{http}{path}", tmp_path)
    assert said in str(raised.value)
    assert f"{http}{path}" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


async def test_a_redirect_to_http_is_followed(http: str, tmp_path: Path) -> None:
    assert await download(f"{http}/to/SERVER/plain", tmp_path) == b"[]"


async def test_a_server_that_is_not_there_is_said_so_and_the_copy_is_mentioned(tmp_path: Path) -> None:
    with served(_Answers, []) as server:
        url = f"{server.url}/plain"
        await download(url, tmp_path)
    with pytest.raises(TaskNotFoundError, match=r"Connection refused; --offline uses the copy"):
        await download(url, tmp_path)


async def test_a_body_without_end_is_cut_off(http: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloading, "MAX_BYTES", 1)
    with pytest.raises(TaskNotFoundError, match="larger than"):
        await download(f"{http}/plain", tmp_path)


async def test_a_silent_server_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloading, "_SILENCE_SEC", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(TaskNotFoundError, match="no answer"):
            await download(f"http://127.0.0.1:{port}/", tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "registry.json",
        "ftp://h/x",
        "file:///etc/passwd",
        "http://",
        "http://h:x/",
        "http://h:0/",
        "http://h/a b",
        "http://h/\n",
        "http://[::1",
        "http://hö/",
    ],
)
async def test_an_address_that_is_not_http_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="registry url"):
        await download(url, tmp_path)


async def test_credentials_in_an_address_are_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        await download("https://user:secret@example.org/registry.json", tmp_path)
    assert "secret" not in str(raised.value)


async def test_a_page_that_is_no_json_is_one_line_that_names_the_address(http: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(_Answers, "body", b"<html>")
    source = UrlRegistry(UrlOptions(url=f"{http}/page"), RegistryContext(base_dir=tmp_path, cache_dir=tmp_path))
    with pytest.raises(ConfigError, match=f"{http}/page"):
        await source.datasets()


async def test_two_sources_of_a_job_see_a_moving_branch_at_one_commit(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "r")
    write_task(repository.path / "t")
    tasks = [{"name": "t", "path": "t"}]
    (repository.path / "registry.json").write_text(json.dumps([{"name": "a", "tasks": tasks}, {"name": "b", "tasks": tasks}]))
    before = repository.commit()
    job = RegistryContext(base_dir=tmp_path, cache_dir=tmp_path / "cache")
    first = await GitRegistry(GitOptions(git="r"), job).fetch("a", None)
    after = repository.commit()
    second = await GitRegistry(GitOptions(git="r"), job).fetch("b", None)
    next_job = RegistryContext(base_dir=tmp_path, cache_dir=tmp_path / "cache")
    third = await GitRegistry(GitOptions(git="r"), next_job).fetch("b", None)
    assert [folder.git_commit_id for folder in (*first, *second, *third)] == [before, before, after]
