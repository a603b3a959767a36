"""One task: what it needs, what is wrong with it, and what identifies its content."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from git_server import write_task
from rollout.core.errors import TaskError, TaskNotFoundError
from rollout.core.tasks.task import load_task


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_task(tmp_path / "hello")


def test_a_task_is_named_after_its_folder_and_knows_its_parts(folder: Path) -> None:
    task = load_task(folder)
    assert task.name == "hello"
    assert task.path == folder.resolve()
    assert task.instruction() == "Do it.\n"
    assert task.environment_dir == folder.resolve() / "environment"
    assert task.has_solution
    assert task.warnings == ()
    assert (task.git_url, task.git_commit_id) == (None, None)


def test_a_registry_may_name_it_otherwise(folder: Path) -> None:
    task = load_task(folder, name="group/other", git_url="https://example.org/x.git", git_commit_id="a" * 40)
    assert (task.name, task.git_url, task.git_commit_id) == ("group/other", "https://example.org/x.git", "a" * 40)


def test_only_instruction_configuration_and_test_are_needed(folder: Path) -> None:
    (folder / "task.toml").write_text("")
    shutil.rmtree(folder / "environment")
    shutil.rmtree(folder / "solution")
    task = load_task(folder)
    assert task.environment_dir is None
    assert not task.has_solution
    assert task.config.version == "1.0"
    assert any("no environment/" in warning for warning in task.warnings)


def test_a_docker_image_is_environment_enough(folder: Path) -> None:
    shutil.rmtree(folder / "environment")
    (folder / "task.toml").write_text('version = "1.0"\n[environment]\ndocker_image = "debian:12"\n')
    assert load_task(folder).warnings == ()


def test_a_solution_may_be_at_the_top(folder: Path) -> None:
    (folder / "solution").rename(folder / "other")
    (folder / "other" / "solve.sh").rename(folder / "solve.sh")
    assert load_task(folder).has_solution


def test_a_byte_order_mark_is_no_part_of_the_instruction(folder: Path) -> None:
    (folder / "instruction.md").write_bytes(b"\xef\xbb\xbfDo it.")
    assert load_task(folder).instruction() == "Do it."


def test_every_fault_is_a_line_that_names_the_file(folder: Path) -> None:
    for name in ("instruction.md", "task.toml", "tests/test.sh"):
        (folder / name).unlink()
    with pytest.raises(TaskError) as raised:
        load_task(folder)
    lines = str(raised.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        str(folder / name) for name in ("instruction.md", "task.toml", "tests/test.sh")
    ]
    assert all("missing" in line for line in lines)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"one\ntwo \xff", "line 2 is not UTF-8 (byte 0xff)"),
        (b"\xff\xfeD\x00o\x00", "line 1 is not UTF-8"),
        (b"Do\0it", "NUL"),
        (b"x" * (16 * 1024**2 + 1), "larger than 16 MiB"),
    ],
)
def test_an_instruction_that_is_no_text_is_a_fault(content: bytes, said: str, folder: Path) -> None:
    (folder / "instruction.md").write_bytes(content)
    with pytest.raises(TaskError) as raised:
        load_task(folder)
    assert str(folder / "instruction.md") in str(raised.value)
    assert said in str(raised.value)


@pytest.mark.parametrize("text", ["version = ", "[agent]\ntimeout_sec = -1\n", "[agent]\ntimeout_sec = 'soon'\n"])
def test_a_configuration_that_cannot_be_read_is_a_fault_of_one_line(text: str, folder: Path) -> None:
    (folder / "task.toml").write_text(text)
    with pytest.raises(TaskError) as raised:
        load_task(folder)
    assert "task.toml" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[steps]]\nname = "one"\n[steps.verifier.environment]\ndocker_image = "x"\n', "steps.verifier.environment"),
        ('[environment]\nos = "windows"\n', "windows"),
    ],
)
def test_what_would_change_the_tasks_meaning_is_not_ignored(text: str, said: str, folder: Path) -> None:
    (folder / "task.toml").write_text(text)
    with pytest.raises(TaskError, match=r"needs .*which Rollout does not do") as raised:
        load_task(folder)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("environment/keys", "/root/.ssh"),
        ("tests/up", "../../secret"),
        ("instruction.md", "../secret"),
        ("task.toml", "/etc/passwd"),
        ("solution", "/"),
        ("environment/absolute", "{folder}/tests"),
        ("tests/a/b/by-way-of-a-link", "up-two/../secret"),
    ],
)
def test_a_link_out_of_the_task_is_a_fault(link: str, target: str, folder: Path) -> None:
    (folder.parent / "secret").write_text("s")
    (folder / "tests" / "a" / "b").mkdir(parents=True)
    (folder / "tests" / "a" / "b" / "up-two").symlink_to("../../..")  # the task itself: inside, but `up-two/..` is not
    place = folder / link
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.symlink_to(target.format(folder=folder))
    with pytest.raises(TaskError, match="outside the task") as raised:
        load_task(folder)
    assert [line.partition(":")[0] for line in str(raised.value).splitlines()] == [str(folder / link)]


def test_links_inside_the_task_and_to_nothing_are_fine(folder: Path) -> None:
    (folder / "environment" / "tests").symlink_to("../tests")
    (folder / "environment" / "nothing").symlink_to("not-there")
    (folder / "environment" / "self").symlink_to("self")
    assert load_task(folder).name == "hello"


def test_a_pipe_in_the_task_is_a_fault_and_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "tests" / "pipe")
    with pytest.raises(TaskError, match="neither a file"):
        load_task(folder)


@pytest.mark.parametrize("place", ["instruction.md", "task.toml", "tests/test.sh"])
def test_a_folder_in_place_of_a_file_is_a_fault(place: str, folder: Path) -> None:
    (folder / place).unlink()
    (folder / place).mkdir()
    with pytest.raises(TaskError, match="missing"):
        load_task(folder)


def test_a_file_in_place_of_the_environment_is_a_fault(folder: Path) -> None:
    shutil.rmtree(folder / "environment")
    (folder / "environment").write_text("")
    with pytest.raises(TaskError, match="environment: is not a folder"):
        load_task(folder)


def test_no_folder_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(TaskNotFoundError, match="does not exist"):
        load_task(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(TaskNotFoundError, match="is not a folder"):
        load_task(tmp_path / "file")


@pytest.mark.parametrize("name", [" ", "a\nb", "a\0b", "\x1b[31m", "x" * 301])
def test_a_name_that_cannot_be_shown_is_a_fault(name: str, folder: Path) -> None:
    with pytest.raises(TaskError, match="name"):
        load_task(folder, name=name)


def digest(folder: Path) -> str:
    return load_task(folder).digest


def test_equal_content_has_an_equal_digest_wherever_and_whenever(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(folder, copy, copy_function=shutil.copy)
    os.utime(copy / "instruction.md", (1, 1))
    assert digest(copy) == digest(folder)
    assert load_task(copy).environment_digest == load_task(folder).environment_digest


def change_content(folder: Path) -> None:
    (folder / "tests" / "test.sh").write_text("other")


def change_x_bit(folder: Path) -> None:
    (folder / "tests" / "test.sh").chmod(0o644)


def rename_file(folder: Path) -> None:
    (folder / "solution" / "solve.sh").rename(folder / "solution" / "solved.sh")


def add_link(folder: Path) -> None:
    (folder / "tests" / "link").symlink_to("test.sh")


def add_empty_folder(folder: Path) -> None:
    (folder / "tests" / "empty").mkdir()


def move_bytes_between_files(folder: Path) -> None:
    (folder / "tests" / "test.sh").write_text("")
    (folder / "tests" / "more").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")


CHANGES = [change_content, change_x_bit, rename_file, add_link, add_empty_folder, move_bytes_between_files]


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_of_content_changes_the_digest(change, folder: Path) -> None:
    before, environment = digest(folder), load_task(folder).environment_digest
    change(folder)
    assert digest(folder) != before
    assert load_task(folder).environment_digest == environment


def test_a_links_target_counts_and_not_what_is_behind_it(folder: Path) -> None:
    (folder / "tests" / "link").symlink_to("a")
    before = digest(folder)
    (folder / "tests" / "link").unlink()
    (folder / "tests" / "link").symlink_to("b")
    assert digest(folder) != before


def test_the_environments_digest_covers_its_folder_and_the_image(folder: Path) -> None:
    before = load_task(folder).environment_digest
    (folder / "environment" / "data").write_text("1")
    with_data = load_task(folder).environment_digest
    assert with_data != before
    (folder / "task.toml").write_text('version = "1.0"\n[environment]\ndocker_image = "debian:12"\n')
    assert load_task(folder).environment_digest not in (before, with_data)


def test_the_repository_around_a_task_is_no_part_of_it(folder: Path) -> None:
    before = digest(folder)
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "tests" / ".git").write_text("but this is")
    inner = digest(folder)
    (folder / "tests" / ".git").unlink()
    assert digest(folder) == before != inner


def test_the_digest_is_taken_once(folder: Path) -> None:
    task = load_task(folder)
    before = task.digest
    change_content(folder)
    assert task.digest == before


def test_the_digest_says_what_cannot_be_read(folder: Path) -> None:
    task = load_task(folder)
    shutil.rmtree(folder)
    with pytest.raises(TaskError, match="cannot be read"):
        _ = task.digest


names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20).filter(
    lambda n: n not in (".", "..")
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(names, st.tuples(st.binary(max_size=50), st.booleans()), max_size=5))
def test_digests_are_equal_exactly_when_files_are(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, tuple[bytes, bool]]
) -> None:
    root = tmp_path_factory.mktemp("digest")

    def write(name: str, content: dict[str, tuple[bytes, bool]]) -> Path:
        folder = write_task(root / name)
        for file, (data, executable) in content.items():
            (folder / "tests" / f"f{file.encode().hex()}").write_bytes(data)
            (folder / "tests" / f"f{file.encode().hex()}").chmod(0o755 if executable else 0o644)
        return folder

    one, two = write("one", files), write("two", dict(reversed(files.items())))
    assert digest(one) == digest(two)
    for file, (data, executable) in files.items():
        assert digest(write(f"x{file.encode().hex()}"[:50] + "x", files | {file: (data + b"!", executable)})) != digest(one)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_any_bytes_as_configuration_give_a_task_or_one_kind_of_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = write_task(tmp_path_factory.mktemp("any") / "task")
    (folder / "task.toml").write_bytes(data)
    try:
        load_task(folder)
    except TaskError as error:
        assert "task.toml" in str(error)
