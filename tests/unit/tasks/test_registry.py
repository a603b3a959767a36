"""registry.json: what it may say, how a dataset is found in it, and what its addresses may name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from git_server import Repository, write_task
from rollout.core.errors import ConfigError, RolloutError, TaskNotFoundError
from rollout.core.tasks.git import GitCache
from rollout.core.tasks.git_url import address_slug, git_address
from rollout.core.tasks.registry import Origin, Registry, fetch_dataset, registry_of


def registry(*datasets: Any, base_dir: Path | None = Path("/here")) -> Registry:
    return registry_of(list(datasets), Origin("registry.json", base_dir=base_dir))


def dataset(name: str, version: Any = None, *tasks: Any) -> dict[str, Any]:
    return {"name": name, "version": version, "tasks": list(tasks)}


VERSIONS = registry(dataset("bench", "1.0", {"name": "old"}), dataset("bench", "2.0", {"name": "new"}), dataset("other", "head"))


@pytest.mark.parametrize(
    ("name", "version", "found"),
    [
        ("bench", "1.0", "old"),
        ("bench", "2.0", "new"),
        ("bench", None, "old"),
        ("bench", "", "old"),
        ("bench", "3.0", "dataset 'bench' version '3.0' not found in registry.json; did you mean '1.0'? It has 1.0, 2.0"),
        ("nope", None, "dataset 'nope' not found in registry.json; It has bench, other"),
        ("benhc", "1.0", "dataset 'benhc' not found in registry.json; did you mean 'bench'? It has bench, other"),
    ],
)
def test_a_dataset_is_found_by_name_and_version_or_the_first_of_its_name(name: str, version: str | None, found: str) -> None:
    if " " not in found:
        assert VERSIONS.find(name, version).tasks[0].name == found
        return
    with pytest.raises(TaskNotFoundError) as raised:
        VERSIONS.find(name, version)
    assert str(raised.value).replace("? It", "? It").startswith(found.split(";")[0])
    assert found.rpartition("It has ")[2] in str(raised.value)
    assert ("did you mean" in found) == ("did you mean" in str(raised.value))


def test_a_version_that_is_there_twice_is_refused_when_it_is_asked_for() -> None:
    twice = registry(dataset("a", "1", {"name": "x"}), dataset("a", "1", {"name": "y"}), dataset("b", "1", {"name": "z"}))
    assert twice.find("b", "1").tasks[0].name == "z"
    with pytest.raises(ConfigError, match="is there 2 times"):
        twice.find("a", "1")


def test_the_list_and_the_object_form_are_the_same() -> None:
    datasets = [dataset("a", "1", {"name": "x", "git_url": "https://example.org/x.git"})]
    origin = Origin("r")
    assert registry_of(datasets, origin) == registry_of({"datasets": datasets}, origin)


def test_the_formats_own_example_is_read() -> None:
    example = [
        {
            "name": "hello-world",
            "version": "head",
            "description": "A single, simple task for debugging.",
            "tasks": [
                {"name": "hello-world", "git_url": "https://example.org/harbor.git", "path": "examples/tasks/hello-world"},
            ],
        },
        {
            "name": "bench",
            "version": 2.0,
            "description": None,
            "metrics": [{"type": "mean"}],
            "tasks": [
                {
                    "name": "a",
                    "git_url": "https://example.org/b.git",
                    "git_commit_id": "69671fbaac6d67a7ef0dfec016cc38a64ef7a77c",
                    "path": "a",
                }
            ],
        },
    ]
    infos = registry_of(example, Origin("r")).infos()
    assert [(info.name, info.version, info.task_count) for info in infos] == [("hello-world", "head", 1), ("bench", "2.0", 1)]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (None, "a registry is a list"),
        ({}, "a registry is a list"),
        ({"datasets": {}}, "a registry is a list"),
        ("text", "a registry is a list"),
        ([1], "[0]: Expected `object`"),
        ([{"name": "a"}], "`tasks`"),
        ([{"tasks": []}], "`name`"),
        ([{"name": "a", "tasks": [{"path": 1}]}], "[0].tasks[0].path"),
        ([{"name": "a", "version": [], "tasks": []}], "[0].version"),
        ([{"name": "a", "tasks": [{"name": "x", "git_commit": "1"}]}], "did you mean 'git_commit_id'"),
        ([{"name": "a", "tasks": [{"name": "x", "gitUrl": "1"}]}], "did you mean 'git_url'"),
        ([{"name": "a", "verison": "1", "tasks": []}], "did you mean 'version'"),
    ],
)
def test_what_is_no_registry_is_said_in_one_line(document: Any, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        registry_of(document, Origin("registry.json"))
    assert said in str(raised.value)
    assert str(raised.value).startswith("registry.json: ")
    assert "\n" not in str(raised.value)


async def fetch(registry: Registry, name: str = "a", tmp_path: Path = Path("/nonexistent")) -> list[Any]:
    return await fetch_dataset(registry, name, None, lambda task: True, GitCache(tmp_path / "cache", offline=True))


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([], "has no tasks"),
        ([{"name": "x", "git_url": "https://h/r"}] * 2, "two tasks are called 'x'"),
        ([{"name": "x", "git_url": "https://h/r"}, {"name": "X", "git_url": "https://h/r"}], "'x' and 'X' differ only in case"),
        ([{"git_url": "https://h/r"}], "tasks[0]: a name must not be empty"),
        ([{"name": "a\u0000b", "git_url": "https://h/r"}], "cannot be printed"),
        ([{"name": "x" * 400, "git_url": "https://h/r"}], "400 characters"),
        ([{"name": "x", "git_url": "https://h/r", "path": "../up"}], "task 'x': path '../up' does not stay inside"),
        ([{"name": "x", "git_url": "https://h/r", "path": "/etc"}], "path '/etc' does not stay inside"),
        ([{"name": "x", "git_url": "https://h/r", "path": "a/.git/hooks"}], "does not stay inside"),
        ([{"name": "x", "path": "../up"}], "does not stay inside"),
        ([{"name": "x", "path": "nothing-there"}], "no folder /here/nothing-there"),
        ([{"name": "x", "git_url": "ext::sh -c touch% /tmp/x"}], "only https, http, ssh, file addresses and paths"),
        ([{"name": "x", "git_url": "https://h/r", "git_commit_id": "--upload-pack=x"}], "is not a commit, branch or tag"),
    ],
)
async def test_a_dataset_that_cannot_be_meant_is_refused_before_anything_is_fetched(tasks: list[Any], said: str) -> None:
    with pytest.raises(RolloutError) as raised:
        await fetch(registry(dataset("a", None, *tasks)))
    assert said in str(raised.value)


async def test_a_fault_of_another_dataset_is_no_obstacle(tmp_path: Path) -> None:
    write_task(tmp_path / "x")
    both = registry(
        dataset("bad", None, {"name": "e", "git_url": "ext::evil"}), dataset("a", None, {"path": "x"}), base_dir=tmp_path
    )
    assert [(folder.name, folder.path) for folder in await fetch(both)] == [("x", tmp_path / "x")]


async def test_a_link_out_of_the_registrys_folder_is_refused(tmp_path: Path) -> None:
    write_task(tmp_path / "outside")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x").symlink_to("../outside")
    with pytest.raises(ConfigError, match="link out of"):
        await fetch(registry(dataset("a", None, {"path": "x"}), base_dir=tmp_path / "in"))


@pytest.mark.parametrize("url", ["/srv/repository", "../repository", "./r", "~/r", "file:///srv/r", None])
async def test_a_downloaded_registry_cannot_name_this_machine(url: str | None) -> None:
    with pytest.raises(ConfigError, match="downloaded registry"):
        await fetch(registry(dataset("a", None, {"name": "x", "git_url": url, "path": "p"}), base_dir=None))


async def test_tasks_come_from_several_repositories_in_the_registrys_order(tmp_path: Path) -> None:
    commits = {}
    for name in ("one", "two"):
        repository = Repository(tmp_path / name)
        write_task(repository.path / "tasks" / "t", f"From {name}.")
        commits[name] = repository.commit()
    tasks = [
        {"name": "z", "git_url": "./two", "path": "tasks/t", "git_commit_id": commits["two"]},
        {"name": "same-folder", "git_url": str(tmp_path / "one"), "path": "tasks/t/"},
        {"name": "a", "git_url": f"file://{tmp_path}/one", "path": "./tasks/t"},
        {"name": "again", "git_url": "one", "path": "tasks/t"},
    ]
    cache = GitCache(tmp_path / "cache")
    folders = await fetch_dataset(registry(dataset("a", None, *tasks), base_dir=tmp_path), "a", None, lambda name: True, cache)
    assert [(folder.name, (folder.path / "instruction.md").read_text()) for folder in folders] == [
        ("z", "From two.\n"),
        ("same-folder", "From one.\n"),
        ("a", "From one.\n"),
        ("again", "From one.\n"),
    ]
    assert folders[1].path == folders[3].path
    assert [folder.git_commit_id for folder in folders] == [commits["two"], *[commits["one"]] * 3]


async def test_one_repository_that_cannot_be_had_is_named(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "one")
    write_task(repository.path / "t")
    repository.commit()
    tasks = [{"name": "x", "git_url": "one", "path": "t"}, {"name": "y", "git_url": "gone", "path": "t"}]
    with pytest.raises(TaskNotFoundError, match=f"{tmp_path}/gone"):
        await fetch_dataset(
            registry(dataset("a", None, *tasks), base_dir=tmp_path), "a", None, lambda name: True, GitCache(tmp_path / "cache")
        )


BASE = Path("/base")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://example.org/a/b.git", "https://example.org/a/b.git"),
        ("http://127.0.0.1:8080/b", "http://127.0.0.1:8080/b"),
        ("https://user@example.org/b", "https://user@example.org/b"),
        ("ssh://git@example.org:2222/b.git", "ssh://git@example.org:2222/b.git"),
        ("git@example.org:group/b.git", "git@example.org:group/b.git"),
        ("example.org:b", "example.org:b"),
        ("file:///srv/b", "file:///srv/b"),
        ("file:///srv/a%20b/../c%25", "file:///srv/c%25"),
        ("/srv/../b", "/b"),
        ("../b", "/b"),
        ("b", "/base/b"),
        ("./a:b", "/base/a:b"),
    ],
)
def test_addresses_of_repositories(url: str, address: str) -> None:
    assert git_address(url, BASE) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        " ",
        "ext::sh -c evil",
        "fd::17",
        "git://example.org/b",
        "ftp://example.org/b",
        "javascript://x",
        "-oProxyCommand=evil",
        "--upload-pack=evil",
        "ssh://-oProxyCommand=evil/b",
        "ssh://-oProxyCommand=evil@host/b",
        "git@-oProxyCommand=evil:b",
        "-x@host:b",
        "host:-b",
        "https:///b",
        "https://[::1/b",
        "file://host/b",
        "https://user:secret@example.org/b",
        "https://exa\nmple.org/b",
        "https://example.org/\0",
    ],
)
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        git_address(url, BASE)
    assert "secret" not in str(raised.value)


def test_different_addresses_have_different_folders_and_a_trailing_slash_is_no_difference() -> None:
    addresses = ["https://a.example/x.git", "https://b.example/x.git", "/srv/x", "git@h:x", "https://h/", "/"]
    assert len({address_slug(address) for address in addresses}) == len(addresses)
    assert address_slug("https://h/x/") == address_slug("https://h/x")
    assert all("/" not in address_slug(address) for address in addresses)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
task_values = st.fixed_dictionaries(
    {}, optional={key: json_values | st.text(max_size=20) for key in ("name", "git_url", "git_commit_id", "path")}
)
dataset_values = st.fixed_dictionaries(
    {"name": st.just("a") | json_values, "tasks": st.lists(task_values, max_size=3) | json_values},
    optional={"version": json_values, "description": json_values},
)


@settings(max_examples=300, deadline=None)
@given(st.lists(dataset_values | json_values, max_size=3) | json_values)
async def test_any_document_gives_folders_or_one_typed_line(document: Any) -> None:
    document = json.loads(json.dumps(document))
    try:
        await fetch(registry_of(document, Origin("registry.json", base_dir=None)))
    except (ConfigError, TaskNotFoundError) as error:
        assert "\n" not in str(error)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.from_regex(r"(ssh|https|file|ext)(://|::)[-a-z@:/.]{0,20}", fullmatch=True))
def test_any_text_is_an_address_or_refused_and_never_an_option(url: str) -> None:
    try:
        address = git_address(url, BASE)
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        assert not address.startswith("-")
        assert "::" not in address.partition("/")[0]
        assert address.startswith(("https://", "http://", "ssh://", "file://", "/")) or ":" in address
