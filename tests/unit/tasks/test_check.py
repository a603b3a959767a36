"""`rollout tasks check`: each finding where it belongs, and silence about what is fine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from git_server import write_task
from rollout.core.errors import TaskNotFoundError, UsageError
from rollout.core.tasks.check import check_paths
from rollout.core.tasks.init import init_task
from rollout.core.tasks.task import load_task


def findings(folder: Path) -> list[tuple[str, str, str, int | None]]:
    return [(f.severity, f.code, str(Path(f.file).relative_to(folder)), f.line) for f in check_paths([folder]).findings]


def test_a_sound_task_has_no_findings(tmp_path: Path) -> None:
    assert findings(write_task(tmp_path / "t")) == []


def edit(path: str, text: str | bytes, *, executable: bool = True):
    def apply(folder: Path) -> None:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        file.chmod(0o755 if executable else 0o644)

    return apply


REWARD = "echo 1 > /logs/verifier/reward.txt\n"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (edit("task.toml", ""), ("warning", "task.toml", "task.toml", None)),
        (edit("task.toml", 'schema_version = "1.4"\n'), None),
        (edit("task.toml", 'version = "1.0"\n[environment]\nmemory = "2048"\n'), ("warning", "task.toml", "task.toml", 3)),
        (edit("tests/test.sh", REWARD), ("warning", "no-shebang", "tests/test.sh", 1)),
        (edit("tests/test.sh", f"#!/bin/sh\n{REWARD}", executable=False), ("warning", "not-executable", "tests/test.sh", None)),
        (
            edit("solution/solve.sh", "#!/bin/sh\ntrue\n", executable=False),
            ("warning", "not-executable", "solution/solve.sh", None),
        ),
        (edit("tests/test.sh", f"#!/bin/sh\n{REWARD}true\r\n"), ("error", "crlf", "tests/test.sh", 3)),
        (edit("environment/setup.sh", "#!/bin/sh\r\n"), ("warning", "crlf", "environment/setup.sh", 1)),
        (edit("environment/data.csv", "a\r\nb\r\n"), None),
        (edit("tests/test.sh", "#!/bin/sh\nexit 0\n"), ("warning", "no-reward", "tests/test.sh", None)),
        (edit("tests/test.sh", "#!/bin/sh\npython3 /tests/run.py\n"), ("warning", "no-reward", "tests/test.sh", None)),
        (edit("tests/run.py", f"#!/bin/sh\n{REWARD}cat /solution/answer\n"), ("warning", "solution-in-tests", "tests/run.py", 3)),
        (edit("tests/run.py", "x = '/oracle'\n"), ("warning", "solution-in-tests", "tests/run.py", 1)),
        (edit("tests/run.py", "p = '/app/solution/x'; q = '/solutions/y'; r = '/solution.txt'\n"), None),
        (edit("tests/core.bin", b"\0\0/solution/x"), None),
        (
            edit("tests/big.bin", b"version https://git-lfs.github.com/spec/v1\noid"),
            ("warning", "lfs-pointer", "tests/big.bin", None),
        ),
        (
            edit("task.toml", 'version = "1.0"\n[environment]\nallow_internet = false\n'),
            None,
        ),
    ],
)
def test_findings(change, found, tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t")
    change(folder)
    assert findings(folder) == ([found] if found else [])


def test_tests_that_download_without_a_network_are_found(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t", tests__test_sh="")
    (folder / "tests" / "test_sh").unlink()
    edit("tests/test.sh", f"#!/bin/sh\nset -e\n  apt-get install -y curl\n{REWARD}")(folder)
    assert findings(folder) == []
    edit("task.toml", 'version = "1.0"\n[environment]\nnetwork_mode = "no-network"\n')(folder)
    assert findings(folder) == [("warning", "network", "tests/test.sh", 3)]


def test_a_reward_written_by_a_program_of_the_environment_counts(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t")
    edit("tests/test.sh", "#!/bin/sh\nexec /usr/bin/judge\n")(folder)
    edit("environment/judge.py", "open('/logs/verifier/reward.json', 'w')\n")(folder)
    assert findings(folder) == []


def test_an_environment_that_nothing_can_build_is_found(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t")
    (folder / "environment" / "Dockerfile").rename(folder / "environment" / "dockerfile.txt")
    assert findings(folder) == [("warning", "no-dockerfile", "environment", None)]
    shutil.rmtree(folder / "environment")
    assert [found[:2] for found in findings(folder)] == [("warning", "task")]


def test_a_task_without_solution_is_found(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t")
    shutil.rmtree(folder / "solution")
    assert findings(folder) == [("warning", "no-solution", ".", None)]


def test_an_unknown_key_is_a_warning_with_its_line(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t")
    edit("task.toml", 'version = "1.0"\n\n[agent]\ntimeout_sec = 5\n\n[verifier]\ntimeout_sec = 5\ntimeout_seconds = 5\n')(folder)
    edit("task.toml", 'version = "1.0"\n[agent]\ntimeout_sec = 5\nfoo = 1\n[verifier]\nfoo = 5\n[colour]\n')(folder)
    assert [found.line for found in check_paths([folder]).findings] == [4, 6, 7]
    edit("task.toml", 'version = "1.0"\n\n[agent]\ntimeout_sec = 5\n\n[verifier]\ntimeout_sec = 5\ntimeout_seconds = 5\n')(folder)
    (found,) = check_paths([folder]).findings
    assert (found.severity, found.line, found.file) == ("warning", 8, str(folder / "task.toml"))
    assert "timeout_seconds" in found.message


def test_all_faults_of_all_tasks_are_errors_in_their_files(tmp_path: Path) -> None:
    one, two = write_task(tmp_path / "one"), write_task(tmp_path / "two")
    write_task(tmp_path / "fine")
    edit("instruction.md", b"a\n\xff")(one)
    (one / "tests" / "test.sh").unlink()
    edit("task.toml", 'version = "1.0"\nversion = "1.1"\n')(two)
    checked = check_paths([tmp_path])
    assert (checked.tasks, checked.errors) == (3, 3)
    assert [Path(f.file).relative_to(tmp_path).as_posix() for f in checked.findings] == [
        "one/instruction.md",
        "one/tests/test.sh",
        "two/task.toml",
    ]
    assert checked.findings[2].line == 2


def test_two_names_that_differ_in_case_are_an_error(tmp_path: Path) -> None:
    write_task(tmp_path / "a")
    write_task(tmp_path / "A")
    (found,) = check_paths([tmp_path]).findings
    assert (found.severity, found.code, found.file) == ("error", "dataset", str(tmp_path / "a"))
    assert "'A'" in found.message


def test_no_task_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(TaskNotFoundError):
        check_paths([tmp_path])


def test_a_new_task_is_sound_and_complete(tmp_path: Path) -> None:
    folder = init_task("my-task", tmp_path / "new" / "place")
    assert folder == tmp_path / "new" / "place" / "my-task"
    assert findings(folder) == []
    assert load_task(folder).has_solution


def test_a_new_task_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "precious").write_text("x")
    with pytest.raises(UsageError, match="is there already"):
        init_task("there", tmp_path)
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["precious"]


@pytest.mark.parametrize("name", ["", "a/b", "..", ".", "/abs", ".hidden", "-x", "a\nb", "a\0b", "x" * 301, "x" * 290])
def test_a_new_task_needs_a_folders_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        init_task(name, tmp_path)
    assert not list(tmp_path.iterdir())
