"""Whatever is wrong with the input ends in exit code 2 and one line that says what and where; nothing is started or created."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from integration import jobs
from integration.bad_input import CASES, JOB, SUBPROCESS, Case
from rollout.cli import main


def verdict(case: Case, folder: Path, code: int, stdout: str, stderr: str) -> None:
    assert "Traceback" not in stderr
    assert code == 2, stderr
    lines = stderr.splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("rollout: ")
    assert len(lines[0]) < 1000
    for part in case.says:
        assert part in lines[0]
    assert stdout == ""
    assert not (folder / "jobs").exists()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bad_input_ends_in_one_line(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    case.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLOUT_CACHE_DIR", str(tmp_path / "cache"))
    for name, value in case.environ.items():
        monkeypatch.setenv(name, value)
    capfd.readouterr()
    code = main.run(case.args)
    gc.collect()  # whatever was left open is this case's fault, not the next one's
    stdout, stderr = capfd.readouterr()
    verdict(case, tmp_path, code, stdout, stderr)


@pytest.mark.parametrize("name", SUBPROCESS)
def test_the_command_itself_ends_in_one_line(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    case.prepare(tmp_path)
    done = jobs.rollout(tmp_path, *case.args, **case.environ)
    verdict(case, tmp_path, done.returncode, done.stdout, done.stderr)


def test_all_faulty_tasks_are_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Case().prepare(tmp_path)
    for name in ("two", "three"):
        jobs.write_task(tmp_path / "tasks" / name)
        (tmp_path / "tasks" / name / "tests" / "test.sh").unlink()
    monkeypatch.chdir(tmp_path)
    assert main.run(["job.yaml"]) == 2
    stderr = capfd.readouterr().err
    assert "two/tests/test.sh" in stderr
    assert "three/tests/test.sh" in stderr
    assert "--skip-invalid" in stderr
    assert not (tmp_path / "jobs").exists()


def test_names_that_no_folder_can_have_are_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Names of jobs, agents and datasets are free; their folders are made plain, and stay inside the jobs folder."""
    Case().prepare(tmp_path)
    text = JOB.replace("- name: oracle", "- {name: ../../up, type: nop}\n- {name: A, type: nop}\n- {name: a, type: nop}")
    (tmp_path / "job.yaml").write_text(f"name: ../../{'n' * 200}\n{text}".replace("- path: tasks", "- {path: tasks, name: /etc}"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLOUT_CACHE_DIR", str(tmp_path / "cache"))
    assert main.run(["run", "job.yaml", "--dry-run"]) == 0
    assert not (tmp_path / "jobs").exists()
