"""SIGKILL at every phase of a trial, then the same command: nothing finished is lost or run twice, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.jobs import CHECK_ANSWER, command, environ, rollout, trial_results, write_job, write_task

pytestmark = pytest.mark.needs("local")

DONE = 2
"""Trials that finish before the kill."""


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)


def processes_with(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("phase", ["environment_setup", "agent_setup", "agent_execution", "verifier"])
def test_a_job_killed_in_any_phase_resumes_where_it_was(tmp_path: Path, phase: str) -> None:
    mark = f"{os.getpid()}{time.monotonic_ns() % 10**9}"
    hang = f'if [ "$HANG_IN" = {{}} ]; then sleep {mark}; fi\n'
    for number in range(DONE):
        write_task(tmp_path / "tasks" / f"quick{number}")
    slow = write_task(tmp_path / "tasks" / "slow", tests="#!/bin/bash\n" + hang.format("verifier") + CHECK_ANSWER)
    if phase == "environment_setup":
        (slow / "environment" / "Dockerfile").write_text(f"FROM x\nWORKDIR /app\nRUN sleep {mark}\n")
    only_slow = 'case "$ROLLOUT_TASK_INSTRUCTION" in *slow*) ;; *) HANG_IN= ;; esac\n'
    (slow / "instruction.md").write_text("This one is slow: write 42 to /app/answer.txt.\n")
    agent = {
        "name": "scripted",
        "install": only_slow + hang.format("agent_setup"),
        "execute": only_slow + hang.format("agent_execution") + "echo 42 > /app/answer.txt\n",
        "env": {"HANG_IN": "${HANG_IN:-}"},
    }
    job = write_job(
        tmp_path, {"name": "k", "agents": [agent], "verifier": {"env": {"HANG_IN": "${HANG_IN:-}"}}, "n_concurrent_trials": 4}
    )
    job_dir = tmp_path / "jobs" / "k"
    log = job_dir / "scripted" / "tasks" / "slow__1" / "trial.log"

    def in_phase() -> bool:
        trials = job_dir / "trials.jsonl"
        return (
            log.exists()
            and f"{phase} started" in log.read_text()
            and trials.exists()
            and trials.read_text().count("\n") == DONE
            and bool(processes_with(mark))
        )

    process = subprocess.Popen(
        command(job, "--display", "none"), cwd=tmp_path, env=environ(tmp_path, HANG_IN=phase), start_new_session=True
    )
    try:
        wait_for(in_phase, f"phase {phase}")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    wait_for(lambda: not processes_with(mark), "the end of the killed job's processes", 10)
    before = trial_results(job_dir)
    assert len(before) == DONE

    if phase == "environment_setup":
        (slow / "environment" / "Dockerfile").write_text("FROM x\nWORKDIR /app\n")
    again = rollout(tmp_path, job, "--display", "none")
    assert again.returncode == 0, again.stderr
    after = trial_results(job_dir)
    assert len(after) == DONE + 1
    assert {key: after[key] for key in before} == before
    assert all(record["reward"] == 1.0 for record in after.values())

    cleaned = rollout(tmp_path, "clean", "--all")
    assert cleaned.returncode == 0, cleaned.stderr
    work = tmp_path / "cache" / "work"
    assert not work.exists() or not list(work.iterdir())
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


@pytest.mark.parametrize("what", ["job", "regrade"])
def test_what_python_verifiers_leave_when_killed_is_found_by_clean(tmp_path: Path, what: str) -> None:
    task = write_task(tmp_path / "tasks" / "one")
    evaluate = task / "tests" / "evaluate.py"
    started = tmp_path / "started"
    hangs = f"import time\ndef evaluate(task):\n    open({str(started)!r}, 'w').close()\n    time.sleep(1000)\n"
    verifier = {"type": "python", "options": {"module": "tests.evaluate"}}
    job = write_job(tmp_path, {"name": "k", "verifier": verifier})
    arguments: list[str | Path] = [job, "--display", "none"]
    if what == "regrade":
        evaluate.write_text("def evaluate(task): return 1\n")
        assert rollout(tmp_path, *arguments).returncode == 0
        arguments = ["regrade", "jobs/k"]
    evaluate.write_text(hangs)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        command(*arguments), cwd=tmp_path, env=environ(tmp_path, TMPDIR=str(temporary)), start_new_session=True
    )
    try:
        wait_for(started.exists, "the verifier")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    work = tmp_path / "cache" / "work"
    wait_for(lambda: not uses(work), "the end of the killed job's processes")
    assert list(temporary.iterdir()) == []
    assert list(work.iterdir()) != []
    cleaned = rollout(tmp_path, "clean", "jobs/k")
    assert cleaned.returncode == 0, cleaned.stderr
    assert list(work.iterdir()) == []


def uses(folder: Path) -> bool:
    """Whether a process works below the folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if Path(os.readlink(process / "cwd")).is_relative_to(folder):
                return True
        except OSError:
            continue
    return False


def test_the_first_interrupt_ends_well_and_the_job_goes_on_later(tmp_path: Path) -> None:
    mark = f"{os.getpid()}{time.monotonic_ns() % 10**9}"
    write_task(tmp_path / "tasks" / "quick")
    write_task(tmp_path / "tasks" / "slow", instruction="slow")
    execute = f'if [ "$HANG" = 1 ] && [ "$ROLLOUT_TASK_INSTRUCTION" = slow ]; then sleep {mark}; fi\necho 42 > /app/answer.txt\n'
    agent = {"name": "scripted", "execute": execute, "env": {"HANG": "${HANG:-0}"}}
    job = write_job(tmp_path, {"name": "i", "agents": [agent]})
    process = subprocess.Popen(
        command(job, "--display", "none"), cwd=tmp_path, env=environ(tmp_path, HANG="1"), stderr=subprocess.PIPE, text=True
    )
    trials = tmp_path / "jobs" / "i" / "trials.jsonl"
    try:
        wait_for(lambda: bool(processes_with(mark)) and trials.exists() and trials.read_text().count("\n") == 1, "the slow trial")
    finally:
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert not processes_with(mark)
    result = (tmp_path / "jobs" / "i" / "result.json").read_text()
    assert '"cancelled": true' in result
    again = rollout(tmp_path, job, "--display", "none")
    assert again.returncode == 0, again.stderr
    assert len(trial_results(tmp_path / "jobs" / "i")) == 2


def test_a_second_process_on_the_same_job_is_refused(tmp_path: Path) -> None:
    mark = f"{os.getpid()}{time.monotonic_ns() % 10**9}"
    write_task(tmp_path / "tasks" / "one")
    job = write_job(tmp_path, {"name": "twice", "agents": [{"name": "sleeper", "execute": f"sleep {mark}"}]})
    process = subprocess.Popen(command(job, "--display", "none"), cwd=tmp_path, env=environ(tmp_path))
    try:
        wait_for(lambda: bool(processes_with(mark)), "the first job")
        second = rollout(tmp_path, job)
        assert second.returncode == 2
        assert "used by another running job" in second.stderr
        assert len(second.stderr.strip().splitlines()) == 1
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def test_a_read_only_jobs_dir_is_one_clear_line(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    job = write_job(tmp_path, {"jobs_dir": "/proc/jobs"})
    done = rollout(tmp_path, job)
    assert done.returncode == 2
    assert done.stderr.startswith("rollout: cannot write /proc/jobs")
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_full_disk_stops_the_job_with_one_line_and_loses_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)], check=True)
    try:
        write_task(tmp_path / "tasks" / "one")
        noisy = {"name": "noisy", "execute": "echo 42 > /app/answer.txt; head -c 300000 /dev/urandom | base64"}
        job = write_job(
            tmp_path, {"name": "full", "jobs_dir": str(small), "agents": [noisy], "n_attempts": 30, "n_concurrent_trials": 2}
        )
        done = rollout(tmp_path, job, "--display", "none")
        assert done.returncode == 1
        assert "No space left on device" in done.stderr
        assert "Traceback" not in done.stderr
        kept = trial_results(small / "full")
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
        again = rollout(tmp_path, job, "--display", "none")
        assert again.returncode == 0, again.stderr
        after = trial_results(small / "full")
        assert len(after) == 30
        assert {key: after[key] for key in kept} == kept
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
