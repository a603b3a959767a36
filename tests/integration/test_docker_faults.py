"""What goes wrong under a job on a real engine: killed processes, dead containers, images that vanish, and full disks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import CHECK_ANSWER, command, environ, memory_peak, rollout, trial_results, write_task
from integration.jobs import write_job as write_local_job
from require import DOCKER_IMAGE

pytestmark = pytest.mark.needs("docker")

AT_ONCE = 8
PHASES = ("environment_setup", "agent_setup", "agent_execution", "verifier")


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.05)


def write_job(folder: Path, job: dict[str, Any]) -> Path:
    return write_local_job(folder, {"environment": {"type": "docker", "options": {"pull": "never"}}, **job})


def write_slow_task(folder: Path, tests: str = CHECK_ANSWER) -> Path:
    """A task with an image of its own."""
    task = write_task(folder, tests=tests)
    dockerfile = f"FROM {DOCKER_IMAGE}\nWORKDIR /app\nRUN echo {os.urandom(8).hex()} > /mark\n"
    (task / "environment" / "Dockerfile").write_text(dockerfile)
    return task


def hang_in(phase: str) -> str:
    """A line of shell that hangs when the host's variable HANG_IN names the phase."""
    return f'if [ "$HANG_IN" = {phase} ]; then sleep 3600; fi\n'


def hanging_job(folder: Path, name: str, **more: Any) -> Path:
    """Eight trials of one task, each of which hangs in the phase that HANG_IN names."""
    write_slow_task(folder / "tasks" / "t", "#!/bin/bash\n" + hang_in("verifier") + CHECK_ANSWER)
    agent = {
        "name": "scripted",
        "install": hang_in("agent_setup"),
        "execute": hang_in("agent_execution") + "echo 42 > /app/answer.txt\n",
        "env": {"HANG_IN": "${HANG_IN:-}"},
    }
    env = {"HANG_IN": "${HANG_IN:-}"}
    job = {"name": name, "agents": [agent], "verifier": {"env": env}, "n_attempts": AT_ONCE, "n_concurrent_trials": AT_ONCE}
    environment = {"type": "docker", "options": {"pull": "never"}, "agent_cache": False}  # an installation hangs in each trial
    return write_job(folder, {**job, "environment": environment, **more})


def logs(job_dir: Path) -> list[str]:
    return [path.read_text() for path in job_dir.glob("*/*/*/trial.log")]


def job_id(job_dir: Path) -> str:
    return str(json.loads((job_dir / "config.json").read_text())["job_id"])


def containers(job_dir: Path) -> list[str]:
    if not (job_dir / "config.json").exists():
        return []
    return docker("ps", "-aq", "--filter", f"label=rollout.job={job_id(job_dir)}").split()


def hanging(job_dir: Path) -> set[str]:
    """The job's containers in which a command hangs."""
    top = {
        name: subprocess.run(["docker", "top", name], capture_output=True, text=True, check=False) for name in containers(job_dir)
    }
    return {name for name, done in top.items() if "sleep 3600" in done.stdout}


def left(job_dir: Path) -> list[str]:
    """What carries the job's label on the engine."""
    label = f"label=rollout.job={job_id(job_dir)}"
    networks = docker("network", "ls", "-q", "--filter", label).split()
    return [*containers(job_dir), *networks, *docker("images", "-q", "--filter", label).split()]


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []

    def start(folder: Path, job: Path, **more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command(job, "--display", "none"),
            cwd=folder,
            env=environ(folder, **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("phase", PHASES)
def test_a_job_killed_with_eight_trials_in_one_phase_resumes_and_leaves_nothing(
    tmp_path: Path, phase: str, started: Callable[..., subprocess.Popen[str]]
) -> None:
    job = hanging_job(tmp_path, "k")
    job_dir = tmp_path / "jobs" / "k"
    dockerfile = tmp_path / "tasks" / "t" / "environment" / "Dockerfile"
    text = dockerfile.read_text()
    if phase == "environment_setup":
        dockerfile.write_text(text + "RUN sleep 3600\n")
    process = started(tmp_path, job, HANG_IN=phase)
    wait_for(lambda: sum(f"{phase} started" in log for log in logs(job_dir)) == AT_ONCE, f"eight trials in {phase}")
    if phase == "environment_setup":
        build = ["docker", "ps", "-q", "--no-trunc", "--filter", f"ancestor={DOCKER_IMAGE}"]
        assert subprocess.run(build, capture_output=True, check=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()

    dockerfile.write_text(text)
    again = rollout(tmp_path, job, "--display", "none")
    assert again.returncode == 0, again.stderr
    assert [record["reward"] for record in trial_results(job_dir).values()] == [1.0] * AT_ONCE
    assert left(job_dir) == []


@pytest.mark.parametrize("phase", PHASES[1:])
def test_a_container_killed_in_any_phase_is_a_lost_environment(
    tmp_path: Path, phase: str, started: Callable[..., subprocess.Popen[str]]
) -> None:
    job = hanging_job(tmp_path, "c", n_attempts=1)
    job_dir = tmp_path / "jobs" / "c"
    process = started(tmp_path, job, HANG_IN=phase)
    wait_for(lambda: any(f"{phase} started" in log for log in logs(job_dir)), phase)
    time.sleep(0.5)  # the phase's own command is to run when its container dies
    docker("kill", *containers(job_dir))
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1, stderr
    (record,) = trial_results(job_dir).values()
    assert record["error"]["type"] == "environment_lost"
    assert record["error"]["retryable"]
    assert record["agent_exit_code"] in (None, 0)
    assert left(job_dir) == []


def test_a_container_killed_under_its_agent_is_tried_again_where_the_job_says_so(
    tmp_path: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    job = hanging_job(tmp_path, "r", n_attempts=1, retry={"max_retries": 1})
    job_dir = tmp_path / "jobs" / "r"
    process = started(tmp_path, job, HANG_IN="agent_execution")
    wait_for(lambda: any("agent_execution started" in log for log in logs(job_dir)), "the agent")
    wait_for(lambda: bool(hanging(job_dir)), "the agent's command")
    (first,) = hanging(job_dir)
    docker("kill", first)
    # The second try's agent hangs as well: what it waits for ends, so that it goes on.
    wait_for(lambda: bool(hanging(job_dir) - {first}), "the second try")
    docker("exec", *(hanging(job_dir) - {first}), "pkill", "sleep")
    process.communicate(timeout=120)
    (record,) = trial_results(job_dir).values()
    assert record["reward"] == 1.0
    assert [earlier["error"]["type"] for earlier in record["tries"]] == ["environment_lost"]


def test_an_image_that_is_deleted_while_its_job_runs_is_made_again(
    tmp_path: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    job = hanging_job(tmp_path, "i", n_concurrent_trials=1, n_attempts=2)
    job_dir = tmp_path / "jobs" / "i"
    process = started(tmp_path, job, HANG_IN="agent_execution")
    earlier: set[str] = set()
    for _ in range(2):
        wait_for(lambda: bool(hanging(job_dir) - earlier), "a trial's agent")
        (container,) = hanging(job_dir) - earlier
        docker("rmi", "-f", docker("inspect", "-f", "{{.Config.Image}}", container))
        docker("exec", container, "pkill", "sleep")
        earlier.add(container)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert [record["reward"] for record in trial_results(job_dir).values()] == [1.0, 1.0]
    assert sum("preparing it again" in log for log in logs(job_dir)) == 1
    assert containers(job_dir) == []
    for image in left(job_dir):  # what `rmi -f` took the name from stays with the engine, whoever did it
        docker("rmi", image)


def one_trial(folder: Path, execute: str, **more: Any) -> tuple[dict[str, Any], Path, int]:
    """Run one agent's script on one task; its record, the trial's folder and our process's peak memory."""
    write_slow_task(folder / "tasks" / "t")
    job = write_job(folder, {"name": "one", "agents": [{"name": "scripted", "execute": execute}], **more})
    peak = memory_peak(folder, job)
    job_dir = folder / "jobs" / "one"
    ((trial_id, record),) = trial_results(job_dir).items()
    assert left(job_dir) == []
    return record, job_dir / trial_id, peak


def test_ten_thousand_log_files_arrive_and_links_and_devices_among_them_do_no_harm(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host's own")
    execute = f"""#!/bin/sh
cd /logs/agent
i=0; while [ $i -lt 10000 ]; do echo $i > f$i; i=$((i + 1)); done
ln -s {secret} out; ln -s /etc/passwd password; ln -s ../../../../../.. up; mkfifo pipe; mknod null c 1 3
ln -s f1 inside
echo 42 > /app/answer.txt
"""
    record, trial, peak = one_trial(tmp_path / "many", execute)
    assert record["reward"] == 1.0
    folder = trial / "logs" / "agent"
    assert sum(path.is_file() for path in folder.glob("f*")) == 10_000
    for name in ("out", "password", "up", "pipe", "null"):
        assert not os.path.lexists(folder / name)
    assert secret.read_text() == "host's own"
    assert any("left out" in warning for warning in record["warnings"])
    assert peak < 150 * 1024 * 1024


def test_a_full_disk_in_the_container_is_the_trial_s_own_trouble(tmp_path: Path) -> None:
    execute = "#!/bin/sh\ndd if=/dev/zero of=/dev/shm/fill bs=1M count=4096\necho 42 > /app/answer.txt\n"
    record, trial, _ = one_trial(tmp_path / "full", execute)
    assert record["reward"] == 1.0
    assert "No space left" in (trial / "agent" / "stderr.txt").read_text()


def test_logs_that_cannot_be_written_are_a_missing_reward(tmp_path: Path) -> None:
    execute = "#!/bin/sh\nrm -rf /logs/verifier; ln -s /dev/full /logs/verifier\necho 42 > /app/answer.txt\n"
    record, _, _ = one_trial(tmp_path / "gone", execute)
    assert record["reward"] == 1.0


def test_sixty_four_trials_of_one_dockerfile_build_it_once(tmp_path: Path) -> None:
    task = write_slow_task(tmp_path / "tasks" / "t")
    dockerfile = task / "environment" / "Dockerfile"
    dockerfile.write_text(dockerfile.read_text() + "RUN date +%s%N > /built\n")
    execute = "#!/bin/sh\ncp /built /logs/agent/built\necho 42 > /app/answer.txt\n"
    job = write_job(
        tmp_path,
        {"name": "many", "agents": [{"name": "a", "execute": execute}], "n_attempts": 64, "n_concurrent_trials": 16},
    )
    done = rollout(tmp_path, job, "--display", "none", timeout=280)
    assert done.returncode == 0, done.stderr
    job_dir = tmp_path / "jobs" / "many"
    stamps = {(job_dir / trial / "logs" / "agent" / "built").read_text() for trial in trial_results(job_dir)}
    assert len(stamps) == 1
    assert len(trial_results(job_dir)) == 64
    assert left(job_dir) == []
