"""Folders of git repositories: fetched once, from whatever kind of server, and there when the network is not."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from git_server import Repository, Server, git, plain_http, smart_http, write_task
from rollout.core.errors import ConfigError, TaskNotFoundError
from rollout.core.tasks.git import GitCache, repository_path
from rollout.core.tasks.git_program import git_environment

KINDS = ("path", "file", "smart", "old smart", "plain files")
Address = Callable[[str], str]


@pytest.fixture
def origin(tmp_path: Path) -> Repository:
    """Two tasks and something large that no task needs."""
    repository = Repository(tmp_path / "origin" / "tasks")
    write_task(repository.path / "suite" / "one", "First.")
    write_task(repository.path / "suite" / "two [x] *", "Second.")
    (repository.path / "large.bin").write_bytes(os.urandom(400_000))
    repository.commit()
    return repository


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[[str], tuple[str, list[str]]]]:
    """The address of `origin` by one kind of server, and the list of requests it got."""
    with ExitStack() as stack:

        def start(kind: str) -> tuple[str, list[str]]:
            root = tmp_path / "origin"
            if kind == "path":
                return str(root / "tasks"), []
            if kind == "file":
                return f"file://{root}/tasks", []
            server: Server
            if kind == "plain files":
                server = stack.enter_context(plain_http(root))
            else:
                server = stack.enter_context(smart_http(root, newest_protocol=kind == "smart"))
            return f"{server.url}/tasks/.git", server.requests

        yield start


def cached_bytes(cache: Path) -> int:
    return sum(file.stat().st_size for file in cache.rglob("objects/**/*") if file.is_file())


@pytest.mark.parametrize("kind", KINDS)
async def test_a_folder_of_a_commit_is_fetched_and_is_what_it_was(kind: str, origin: Repository, served, tmp_path: Path) -> None:
    first = git(origin.path, "rev-parse", "HEAD")
    (origin.path / "suite" / "one" / "instruction.md").write_text("Changed.")
    second = origin.commit()
    address, _ = served(kind)
    cache = GitCache(tmp_path / "cache")
    old = await cache.folders(address, first, ["suite/one", "suite/two [x] *"])
    new = await cache.folders(address, second, ["suite/one"])
    assert (old.commit, new.commit) == (first, second)
    assert (old.folders["suite/one"] / "instruction.md").read_text() == "First.\n"
    assert (old.folders["suite/two [x] *"] / "instruction.md").read_text() == "Second.\n"
    assert (new.folders["suite/one"] / "instruction.md").read_text() == "Changed."
    assert os.access(old.folders["suite/one"] / "tests" / "test.sh", os.X_OK)


@pytest.mark.parametrize("kind", ("path", "file", "smart"))
async def test_files_that_no_task_needs_are_not_fetched(kind: str, origin: Repository, served, tmp_path: Path) -> None:
    address, _ = served(kind)
    await GitCache(tmp_path / "cache").folders(address, None, ["suite/one"])
    assert cached_bytes(tmp_path / "cache") < 100_000


async def test_a_server_without_partial_clones_is_good_enough(origin: Repository, tmp_path: Path) -> None:
    git(origin.path, "config", "uploadpack.allowFilter", "false")
    with smart_http(tmp_path / "origin") as server:
        address = f"{server.url}/tasks/.git"
        fetched = await GitCache(tmp_path / "cache").folders(address, None, ["suite/one", ""])
    assert (fetched.folders[""] / "large.bin").stat().st_size == 400_000


async def test_a_server_that_gives_commits_but_no_single_files_is_asked_for_everything(
    origin: Repository, tmp_path: Path
) -> None:
    """The old protocol with filters: whatever is not at the tip of a branch cannot be asked for, not even a file left out."""
    with smart_http(tmp_path / "origin", newest_protocol=False) as server:
        address = f"{server.url}/tasks/.git"
        fetched = await GitCache(tmp_path / "cache").folders(address, None, ["suite/one"])
    assert (fetched.folders["suite/one"] / "instruction.md").read_text() == "First.\n"


async def test_what_is_in_the_cache_is_not_asked_for_again(origin: Repository, served, tmp_path: Path) -> None:
    address, requests = served("smart")
    commit = git(origin.path, "rev-parse", "HEAD")
    first = await GitCache(tmp_path / "cache").folders(address, commit, ["suite/one"])
    requests.clear()
    assert await GitCache(tmp_path / "cache").folders(address, commit, ["suite/one"]) == first
    assert requests == []


async def test_many_folders_are_fetched_with_few_requests(origin: Repository, served, tmp_path: Path) -> None:
    names = [f"suite/t{number}" for number in range(30)]
    for name in names:
        write_task(origin.path / name, f"Instruction of {name}.")
    origin.commit()
    address, requests = served("smart")
    fetched = await GitCache(tmp_path / "cache").folders(address, None, names)
    assert len(fetched.folders) == 30
    assert len(requests) <= 8


async def test_folders_inside_one_another_are_each_complete(origin: Repository, tmp_path: Path) -> None:
    fetched = await GitCache(tmp_path / "cache").folders(str(origin.path), None, ["suite", "suite/one", "", "suite/one/tests"])
    assert (fetched.folders[""] / "suite" / "one" / "tests" / "test.sh").is_file()
    assert (fetched.folders["suite"] / "one" / "tests" / "test.sh").is_file()
    assert (fetched.folders["suite/one"] / "tests" / "test.sh").is_file()
    assert (fetched.folders["suite/one/tests"] / "test.sh").is_file()
    assert not (fetched.folders[""] / ".git").exists()


@pytest.mark.parametrize("kind", ("path", "smart", "plain files"))
async def test_branches_tags_and_short_hashes_name_commits(kind: str, origin: Repository, served, tmp_path: Path) -> None:
    first = git(origin.path, "rev-parse", "HEAD")
    git(origin.path, "tag", "-a", "v1", "-m", "one")
    git(origin.path, "branch", "side/old")
    second = origin.commit()
    git(origin.path, "update-server-info")
    address, _ = served(kind)
    cache = GitCache(tmp_path / "cache")
    revisions = {
        "v1": first,
        "refs/tags/v1": first,
        "side/old": first,
        first[:9]: first,
        "main": second,
        "HEAD": second,
        "head": second,
    }
    assert {revision: await cache.resolve(address, revision) for revision in revisions} == revisions
    assert await cache.resolve(address, None) == second


async def test_a_moved_branch_stays_what_it_was_for_the_job_and_is_new_for_the_next(origin: Repository, tmp_path: Path) -> None:
    address = str(origin.path)
    before = git(origin.path, "rev-parse", "HEAD")
    job = GitCache(tmp_path / "cache")
    assert (await job.folders(address, "main", ["suite/one"])).commit == before
    (origin.path / "suite" / "one" / "instruction.md").write_text("Moved.")
    after = origin.commit()
    assert (await job.folders(address, "main", ["suite/one"])).commit == before
    moved = await GitCache(tmp_path / "cache").folders(address, "main", ["suite/one"])
    assert moved.commit == after
    assert (moved.folders["suite/one"] / "instruction.md").read_text() == "Moved."


async def test_offline_uses_what_was_fetched_and_says_what_was_not(origin: Repository, tmp_path: Path) -> None:
    address = str(origin.path)
    online = await GitCache(tmp_path / "cache").folders(address, None, ["suite/one"])
    origin.path.rename(tmp_path / "away")
    offline = GitCache(tmp_path / "cache", offline=True)
    assert await offline.folders(address, None, ["suite/one"]) == online
    with pytest.raises(TaskNotFoundError, match="offline"):
        await offline.folders(address, None, ["large.bin"])
    with pytest.raises(TaskNotFoundError, match=r"side.*never fetched.*offline"):
        await offline.folders(address, "side", ["suite/one"])
    with pytest.raises(TaskNotFoundError, match=f"{'0' * 40}.*not in the cache.*offline"):
        await offline.folders(address, "0" * 40, ["suite/one"])


async def test_offline_asks_no_server(origin: Repository, served, tmp_path: Path) -> None:
    address, requests = served("smart")
    await GitCache(tmp_path / "cache").folders(address, None, ["suite/one"])
    requests.clear()
    with pytest.raises(TaskNotFoundError):
        await GitCache(tmp_path / "cache", offline=True).folders(address, None, ["suite/two [x] *"])
    assert requests == []


async def test_an_unreachable_server_is_one_line_that_mentions_the_cache(origin: Repository, tmp_path: Path) -> None:
    with smart_http(tmp_path / "origin") as server:
        address = f"{server.url}/tasks/.git"
        await GitCache(tmp_path / "cache").folders(address, None, ["suite/one"])
    with pytest.raises(TaskNotFoundError) as raised:
        await GitCache(tmp_path / "cache").folders(address, None, ["suite/one"])
    text = str(raised.value)
    assert address in text
    assert "HEAD" in text
    assert "--offline" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("revision", "path", "said"),
    [
        (None, "suite/three", "no folder 'suite/three'"),
        (None, "suite/one/instruction.md", "no folder 'suite/one/instruction.md'"),
        ("0" * 40, "suite/one", "not our ref"),
        ("nobranch", "suite/one", "no commit, branch or tag nobranch"),
        ("abcdef0", "suite/one", "no commit, branch or tag abcdef0"),
    ],
)
async def test_what_is_not_there_is_named(revision: str | None, path: str, said: str, origin: Repository, tmp_path: Path) -> None:
    with pytest.raises(TaskNotFoundError) as raised:
        await GitCache(tmp_path / "cache").folders(str(origin.path), revision, ["suite/one", path])
    assert said in str(raised.value)
    assert str(origin.path) in str(raised.value)


async def test_a_missing_folder_does_not_lose_the_others(origin: Repository, tmp_path: Path) -> None:
    commit = git(origin.path, "rev-parse", "HEAD")
    with pytest.raises(TaskNotFoundError):
        await GitCache(tmp_path / "cache").folders(str(origin.path), commit, ["suite/one", "nope"])
    offline = await GitCache(tmp_path / "cache", offline=True).folders(str(origin.path), commit, ["suite/one"])
    assert (offline.folders["suite/one"] / "instruction.md").is_file()


async def test_a_repository_that_does_not_exist_or_is_empty_is_said_so(tmp_path: Path) -> None:
    empty = Repository(tmp_path / "empty")
    with pytest.raises(TaskNotFoundError, match="has no commit yet"):
        await GitCache(tmp_path / "cache").folders(str(empty.path), None, [""])
    with pytest.raises(TaskNotFoundError, match=r"does not appear to be a git repository"):
        await GitCache(tmp_path / "cache").folders(str(tmp_path / "nothing"), None, [""])


@pytest.mark.parametrize("revision", ["-x", "--upload-pack=touch x", "a..b", "a b", "a~1", "HEAD:x", "a\nb", "", "@{1}"])
async def test_a_revision_that_git_could_misread_is_refused(revision: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a commit, branch or tag"):
        await GitCache(tmp_path / "cache").folders(str(tmp_path), revision, [""])


@pytest.mark.parametrize("path", ["..", "a/../b", "/etc", "a/.git", ".GIT/hooks", "a\nb", "a\0b"])
def test_a_path_out_of_the_repository_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="does not stay inside"):
        repository_path(path)


@pytest.mark.parametrize(
    ("path", "clean"), [("", ""), (".", ""), ("./a//b/", "a/b"), ("-a", "-a"), ("a/.gitignore", "a/.gitignore")]
)
def test_paths_are_written_in_one_way(path: str, clean: str) -> None:
    assert repository_path(path) == clean


async def test_a_folder_behind_a_link_of_the_repository_is_not_there(origin: Repository, tmp_path: Path) -> None:
    (origin.path / "linked").symlink_to("/etc")
    (origin.path / "inner").symlink_to("suite")
    origin.commit()
    for path in ("linked", "linked/ssl", "inner/one"):
        with pytest.raises(TaskNotFoundError, match="no folder"):
            await GitCache(tmp_path / "cache").folders(str(origin.path), None, [path])


@pytest.mark.parametrize("damage", ["truncate", "remove", "add", "no digest", "empty digest"])
async def test_a_damaged_checkout_is_made_anew(damage: str, origin: Repository, tmp_path: Path, caplog) -> None:
    commit = git(origin.path, "rev-parse", "HEAD")
    folder = (await GitCache(tmp_path / "cache").folders(str(origin.path), commit, ["suite/one"])).folders["suite/one"]
    digest = folder.with_name(f"{folder.name}.digest")
    match damage:
        case "truncate":
            (folder / "instruction.md").write_text("")
        case "remove":
            (folder / "tests" / "test.sh").unlink()
        case "add":
            (folder / "tests" / "extra").write_text("x")
        case "no digest":
            digest.unlink()
        case _:
            digest.write_text("")
    again = await GitCache(tmp_path / "cache").folders(str(origin.path), commit, ["suite/one"])
    assert again.folders["suite/one"] == folder
    assert (folder / "instruction.md").read_text() == "First.\n"
    assert (folder / "tests" / "test.sh").is_file()
    assert not (folder / "tests" / "extra").exists()


@pytest.mark.parametrize("damage", ["objects", "head", "empty folder", "pack", "config"])
async def test_a_damaged_repository_is_fetched_again(damage: str, origin: Repository, tmp_path: Path) -> None:
    commit = git(origin.path, "rev-parse", "HEAD")
    await GitCache(tmp_path / "cache").folders(str(origin.path), commit, ["suite/one"])
    repository = next((tmp_path / "cache" / "git").glob("*/repository"))
    match damage:
        case "head":
            (repository / "HEAD").write_text("")
        case "config":
            (repository / "config").write_text("[core")
        case "empty folder":
            (repository / "HEAD").unlink()
        case _:
            files = [file for file in repository.rglob("objects/**/*") if file.is_file()]
            assert files
            for file in files:
                file.chmod(0o644)
                file.write_bytes(file.read_bytes()[: file.stat().st_size // 2] if damage == "objects" else b"")
    fetched = await GitCache(tmp_path / "cache").folders(str(origin.path), commit, ["suite/two [x] *"])
    assert (fetched.folders["suite/two [x] *"] / "instruction.md").read_text() == "Second.\n"


async def test_a_lock_file_of_an_interrupted_git_is_no_obstacle(origin: Repository, tmp_path: Path) -> None:
    await GitCache(tmp_path / "cache").folders(str(origin.path), None, ["suite/one"])
    repository = next((tmp_path / "cache" / "git").glob("*/repository"))
    for name in ("shallow.lock", "config.lock", "packed-refs.lock", "HEAD.lock"):
        (repository / name).write_text("")
    (repository.parent / "tmp-left").mkdir()
    origin.commit()
    await GitCache(tmp_path / "cache").folders(str(origin.path), None, ["suite/two [x] *"])
    assert not list(repository.parent.glob("tmp-*"))


FETCH = """
import asyncio, sys
from pathlib import Path
from rollout.core.tasks.git import GitCache
fetched = asyncio.run(GitCache(Path(sys.argv[1])).folders(sys.argv[2], None, sys.argv[3:]))
print(fetched.commit, *fetched.folders.values(), sep="\\n")
"""


async def test_two_processes_fetch_once(origin: Repository, served, tmp_path: Path) -> None:
    address, requests = served("smart")
    command = [sys.executable, "-c", FETCH, str(tmp_path / "cache"), address, "suite/one", "suite/two [x] *"]
    processes = [await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE) for _ in range(3)]
    printed = [(await process.communicate())[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(set(printed)) == 1
    # Each asks what HEAD is (two requests); one fetches.
    assert len([request for request in requests if request.endswith("git-upload-pack")]) <= 3 * 2 + 4


def _slow_git(folder: Path, *, at: str) -> dict[str, str]:
    """A `git` on the PATH that says that it runs, and hangs, when it comes to the sub-command `at`."""
    real = subprocess.run(["which", "git"], capture_output=True, text=True, check=True).stdout.strip()
    folder.mkdir(exist_ok=True)
    program = folder / "git"
    program.write_text(
        f'#!/bin/sh\ncase " $* " in *" {at} "*) sleep 300 & echo $$ $! > "{folder}/pids"; wait;; esac\nexec {real} "$@"\n'
    )
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


async def _pids(folder: Path) -> list[int]:
    for _ in range(1500):
        if (folder / "pids").exists() and (text := (folder / "pids").read_text()).endswith("\n"):
            return [int(pid) for pid in text.split()]
        await asyncio.sleep(0.02)
    raise AssertionError("git was never started")


async def _gone(pids: list[int]) -> bool:
    """Whether they all end: a signal takes its time."""
    for _ in range(500):
        if not any(_is_running(pid) for pid in pids):
            return True
        await asyncio.sleep(0.02)
    return False


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("at", ["fetch", "read-tree", "remote"])
async def test_killed_in_mid_fetch_and_started_again_it_finishes(at: str, origin: Repository, tmp_path: Path) -> None:
    slow = _slow_git(tmp_path / "bin", at=at)
    command = [sys.executable, "-c", FETCH, str(tmp_path / "cache"), str(origin.path), "suite/one"]
    process = await asyncio.create_subprocess_exec(*command, env=slow, stdout=subprocess.DEVNULL)
    pids = await _pids(tmp_path / "bin")
    process.send_signal(signal.SIGKILL)
    await process.wait()
    assert all(_is_running(pid) for pid in pids)
    fetched = await GitCache(tmp_path / "cache").folders(str(origin.path), None, ["suite/one"])
    assert (fetched.folders["suite/one"] / "instruction.md").read_text() == "First.\n"
    assert not _is_running(pids[0])
    assert await _gone(pids)
    assert not list((tmp_path / "cache" / "git").glob("*/tmp-*"))


async def test_what_git_leaves_running_is_not_waited_for(origin: Repository, tmp_path: Path, monkeypatch) -> None:
    """As `ControlPersist` of ssh does: a process of its own that keeps git's output open."""
    program = tmp_path / "ssh"
    program.write_text(f'#!/bin/sh\nsetsid sleep 300 & echo $! >> {tmp_path}/left\nfor last; do :; done\nexec sh -c "$last"\n')
    program.chmod(0o755)
    monkeypatch.setenv("GIT_SSH", str(program))
    try:
        async with asyncio.timeout(60):
            await GitCache(tmp_path / "cache").folders(f"git@example.org:{origin.path}", None, ["suite/one"])
        left = [int(pid) for pid in (tmp_path / "left").read_text().split()]
        assert all(_is_running(pid) for pid in left)
    finally:
        for pid in (tmp_path / "left").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize("at", ["fetch", "ls-remote"])
async def test_cancelling_kills_git_and_what_it_started(at: str, origin: Repository, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", _slow_git(tmp_path / "bin", at=at)["PATH"])
    task = asyncio.create_task(GitCache(tmp_path / "cache").folders(str(origin.path), None, ["suite/one"]))
    pids = await _pids(tmp_path / "bin")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not _is_running(pids[0])
    assert await _gone(pids)


@pytest.mark.parametrize("form", ["git@example.org:{path}", "ssh://git@example.org:2222{path}"])
async def test_repositories_behind_ssh(form: str, origin: Repository, tmp_path: Path, monkeypatch) -> None:
    program = tmp_path / "ssh"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\nfor last; do :; done\nexec sh -c "$last"\n')
    program.chmod(0o755)
    monkeypatch.setenv("GIT_SSH", str(program))
    address = form.format(path=origin.path)
    fetched = await GitCache(tmp_path / "cache").folders(address, None, ["suite/one"])
    assert (fetched.folders["suite/one"] / "instruction.md").read_text() == "First.\n"
    assert "git@example.org" in (tmp_path / "called").read_text()


async def test_a_sound_repository_is_not_fetched_again_for_somebody_elses_fault(origin: Repository, tmp_path: Path) -> None:
    cache = GitCache(tmp_path / "cache")
    await cache.folders(str(origin.path), None, ["suite/one"])
    repository = next((tmp_path / "cache" / "git").glob("*/repository"))
    before = repository.stat().st_ino
    for revision, path in (("0" * 40, "suite/one"), (None, "nope")):
        with pytest.raises(TaskNotFoundError):
            await cache.folders(str(origin.path), revision, [path])
    with pytest.raises(TaskNotFoundError):
        await cache.read(str(origin.path), None, "suite")
    assert repository.stat().st_ino == before


async def test_hooks_and_templates_of_the_user_do_not_run(origin: Repository, tmp_path: Path, monkeypatch) -> None:
    hooks = tmp_path / "templates" / "hooks"
    hooks.mkdir(parents=True)
    for name in ("post-checkout", "reference-transaction", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\necho ran > {tmp_path}/ran\n")
        (hooks / name).chmod(0o755)
    (tmp_path / "gitconfig").write_text(f"[init]\ntemplateDir = {hooks.parent}\n[core]\nhooksPath = {hooks}\nautocrlf = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    fetched = await GitCache(tmp_path / "cache").folders(str(origin.path), None, ["suite/one"])
    assert (fetched.folders["suite/one"] / "tests" / "test.sh").read_bytes().count(b"\r") == 0
    assert not (tmp_path / "ran").exists()


async def test_running_inside_a_git_hook_changes_nothing(origin: Repository, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    await GitCache(tmp_path / "cache").folders(str(origin.path), "main", ["suite/one"])
    assert not (tmp_path / "index").exists()


def test_git_never_asks_and_never_runs_a_transport_command() -> None:
    environ = git_environment({"GIT_WORK_TREE": "x", "HTTPS_PROXY": "p"})
    assert environ["GIT_TERMINAL_PROMPT"] == "0"
    assert "ext" not in environ["GIT_ALLOW_PROTOCOL"].split(":")
    assert environ["HTTPS_PROXY"] == "p"
    assert "GIT_WORK_TREE" not in environ


async def test_without_git_the_error_says_so(origin: Repository, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Exception, match="git is not installed"):
        await GitCache(tmp_path / "cache").folders(str(origin.path), "main", ["suite/one"])


async def test_a_password_in_what_git_says_is_hidden(tmp_path: Path) -> None:
    with pytest.raises(TaskNotFoundError) as raised:
        await GitCache(tmp_path / "cache").folders("http://token@127.0.0.1:1/x.git", None, [""])
    assert "unable to access" in str(raised.value)
    assert "token" not in str(raised.value).partition(": cannot get")[2]


async def test_a_file_is_read_at_a_commit(origin: Repository, tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    cache = GitCache(tmp_path / "cache")
    content, commit = await cache.read(str(origin.path), None, "suite/one/instruction.md")
    assert (content, commit) == (b"First.\n", git(origin.path, "rev-parse", "HEAD"))
    with pytest.raises(TaskNotFoundError, match=r"no file 'registry\.json'"):
        await cache.read(str(origin.path), None, "registry.json")
    with pytest.raises(TaskNotFoundError):
        await cache.read(str(origin.path), None, "suite")
