"""The command, end to end: real jobs in `type: local`."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from integration.jobs import command, environ, rollout, trial_results, write_job, write_task

pytestmark = pytest.mark.needs("local")

NOP_AND_ORACLE = [{"name": "oracle"}, {"name": "nop"}]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two tasks, an agent that solves them and one that does not."""
    for name in ("one", "two"):
        write_task(tmp_path / "tasks" / name)
    return write_job(tmp_path, {"name": "demo", "agents": NOP_AND_ORACLE})


@pytest.mark.parametrize(
    "words", [["job.json"], ["run", "job.json"], ["-n", "2", "job.json"], ["./job.json", "--display", "plain"]]
)
def test_a_job_file_runs_and_the_table_is_all_of_stdout(tmp_path: Path, job: Path, words: list[str]) -> None:
    ended = rollout(tmp_path, *words)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("demo: 4 trials in ")
    assert [line.split() for line in lines[2:5]] == [
        ["agent", "dataset", "trials", "scored", "errored", "mean"],
        ["oracle", "tasks", "2", "2", "0", "1.000", "(n=2)"],
        ["nop", "tasks", "2", "2", "0", "0.000", "(n=2)"],
    ]
    assert lines[-1] == "results: jobs/demo"
    assert "4/4" in ended.stderr
    assert " on tasks: mean " in ended.stderr


def test_flags_are_settings_of_the_job(tmp_path: Path, job: Path) -> None:
    ended = rollout(
        tmp_path, job, "-k", "2", "-n", "3", "--jobs-dir", "elsewhere", "--name", "007", "--set", "timeout_multiplier=2", "-q"
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    config = json.loads((tmp_path / "elsewhere" / "007" / "config.json").read_text())["config"]
    assert (config["n_attempts"], config["n_concurrent_trials"], config["timeout_multiplier"]) == (2, 3, 2.0)
    assert len(trial_results(tmp_path / "elsewhere" / "007")) == 8


def test_agents_and_tasks_can_be_chosen(tmp_path: Path, job: Path) -> None:
    ended = rollout(tmp_path, job, "--agent", "or*", "--task", "on*", "--display", "none")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert list(trial_results(tmp_path / "jobs" / "demo")) == ["oracle/tasks/one__1"]


def test_a_plugin_that_is_not_in_the_job_is_added_by_its_name(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    job = write_job(tmp_path, {"name": "demo"})
    assert rollout(tmp_path, job, "--agent", "nop", "-q").returncode == 0
    assert list(trial_results(tmp_path / "jobs" / "demo")) == ["nop/tasks/one__1"]


def test_dry_run_starts_nothing_and_leaves_nothing(tmp_path: Path, job: Path) -> None:
    ended = rollout(tmp_path, job, "--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert "4 trials to run, 4 at once; 0 kept" in ended.stdout
    assert not (tmp_path / "jobs").exists()
    work = tmp_path / "cache" / "work"
    assert not work.exists() or not list(work.iterdir())


def test_dry_run_as_json_says_what_would_be_kept(tmp_path: Path, job: Path) -> None:
    assert rollout(tmp_path, job, "--agent", "oracle", "-q").returncode == 0
    plan = json.loads(rollout(tmp_path, job, "--dry-run", "--json").stdout)
    assert (plan["total_trials"], plan["kept_trials"]) == (4, 2)
    assert [(group["agent"], group["kept"]) for group in plan["groups"]] == [("oracle", 2), ("nop", 0)]


def test_json_prints_the_events_of_the_job_and_nothing_else(tmp_path: Path, job: Path) -> None:
    ended = rollout(tmp_path, job, "--json", "--fail-under", "mean=0.5")
    records = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [record["event"] for record in records].count("trial_finished") == 4
    assert records[0]["event"] == "job_started"
    assert records[-2]["event"] == "job_finished"
    assert (records[-1]["event"], records[-1]["passed"]) == ("gate_checked", False)
    assert ended.returncode == 3
    assert ended.stderr == ""


def test_gates(tmp_path: Path, job: Path) -> None:
    passed = rollout(tmp_path, job, "-q", "--fail-under", "oracle:mean=1")
    assert (passed.returncode, passed.stderr) == (0, "")
    failed = rollout(tmp_path, job, "-q", "--fail-under", "oracle:mean=1", "--fail-under", "nop:mean=0.5")
    assert failed.returncode == 3
    assert failed.stderr == "rollout: --fail-under nop:mean=0.5: nop on tasks: mean is 0.000 (n=2), below 0.5\n"
    refused = rollout(tmp_path, job, "-q", "--fail-under", "median=1")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1


def test_a_job_with_errored_trials_exits_1_and_says_what_to_do(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one", tests="#!/bin/bash\necho cannot find it >&2\nexit 3\n")
    job = write_job(tmp_path, {"name": "demo"})
    ended = rollout(tmp_path, job, "--junit", "out/junit.xml")
    assert ended.returncode == 1
    assert "errors of oracle on tasks: verifier_reward_missing 1" in ended.stdout
    assert "the same command again runs only those (why: `rollout show jobs/demo`)" in ended.stdout
    (error,) = ET.parse(tmp_path / "out" / "junit.xml").getroot().iter("error")
    assert error.get("type") == "verifier_reward_missing"
    shown = rollout(tmp_path, "show", "jobs/demo")
    assert shown.returncode == 0
    assert "test.sh exited with code 3" in shown.stdout
    data = json.loads(rollout(tmp_path, "show", "jobs/demo", "--json").stdout)
    assert data["state"] == "finished"
    assert [failure["error"]["type"] for failure in data["failures"]] == ["verifier_reward_missing"]


def test_variables_come_from_an_env_file_and_its_values_stay_secret(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    agent = {
        "name": "keyed",
        "execute": 'test -n "$API_KEY" && echo 42 > /app/answer.txt; echo $API_KEY',
        "env": {"API_KEY": "${API_KEY}"},
    }
    job = write_job(tmp_path, {"name": "demo", "agents": [agent]})
    (tmp_path / "vars.env").write_text("# keys\nexport API_KEY='s3cret-0123456789'\n")
    without = rollout(tmp_path, job, "-q")
    assert without.returncode == 2
    assert "API_KEY" in without.stderr
    ended = rollout(tmp_path, job, "-q", "--env-file", "vars.env")
    assert ended.returncode == 0, ended.stderr
    assert "1.000 (n=1)" in ended.stdout
    assert "s3cret" not in "".join(
        path.read_text("utf-8", "replace") for path in (tmp_path / "jobs").rglob("*") if path.is_file()
    )


def test_a_trial_runs_from_its_spec_alone(tmp_path: Path, job: Path) -> None:
    assert rollout(tmp_path, job, "-q").returncode == 0
    spec = tmp_path / "jobs" / "demo" / "nop" / "tasks" / "one__1" / "config.json"
    result = spec.with_name("result.json")
    result.unlink()
    ended = rollout(tmp_path, "trial", "run", spec)
    assert (ended.returncode, ended.stdout) == (0, "nop/tasks/one__1: reward 0.000\n"), ended.stderr
    assert json.loads(result.read_text())["reward"] == 0.0
    assert json.loads(rollout(tmp_path, "trial", "run", spec, "--json").stdout)["status"] == "scored"


@pytest.mark.parametrize("content", [None, "{", "{}", '{"trial_id": 3}'])
def test_what_is_no_spec_is_one_line_and_exit_2(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "spec.json").write_text(content)
    ended = rollout(tmp_path, "trial", "run", "spec.json")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "spec.json" in ended.stderr


def test_clean_says_that_there_is_nothing_to_clean(tmp_path: Path, job: Path) -> None:
    assert rollout(tmp_path, job, "-q").returncode == 0
    ended = rollout(tmp_path, "clean", "jobs/demo")
    assert (ended.returncode, ended.stdout) == (0, "nothing to clean\n"), ended.stderr
    assert len(trial_results(tmp_path / "jobs" / "demo")) == 4


def test_clean_removes_abandoned_scratch_folders_and_leaves_those_in_use(tmp_path: Path) -> None:
    work = tmp_path / "cache" / "work"
    long_ago = time.time() - 100_000
    for name in ("dead-12345678", "open-12345678", "fresh-12345678"):
        (work / name).mkdir(parents=True)
    for name in ("dead-12345678", "open-12345678"):
        (work / name / "file").write_text("x")
        os.utime(work / name, (long_ago, long_ago))
    with (work / "open-12345678" / "file").open():
        assert rollout(tmp_path, "clean", "--all", "--dry-run").stdout == (
            f"would remove the scratch folder {work}/dead-12345678\n"
        )
        ended = rollout(tmp_path, "clean", "--all")
    assert ended.returncode == 0, ended.stderr
    assert sorted(path.name for path in work.iterdir()) == ["fresh-12345678", "open-12345678"]


@pytest.mark.parametrize("arguments", [[], ["missing"], ["tasks"]])
def test_clean_refuses_what_is_no_job(tmp_path: Path, job: Path, arguments: list[str]) -> None:
    ended = rollout(tmp_path, "clean", *arguments)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1


# Interrupts and terminals


@pytest.fixture
def slow_job(tmp_path: Path) -> Path:
    write_task(tmp_path / "tasks" / "one")
    return write_job(
        tmp_path, {"name": "slow", "agents": [{"name": "sleeper", "execute": "echo up > /logs/agent/up; sleep 1000"}]}
    )


def wait_for_agent(folder: Path) -> None:
    log = folder / "jobs" / "slow" / "sleeper" / "tasks" / "one__1" / "trial.log"
    deadline = time.monotonic() + 30
    while not (log.exists() and "agent_execution started" in log.read_text()):
        assert time.monotonic() < deadline, "the agent did not start"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_ends_the_job_well(tmp_path: Path, slow_job: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        command(slow_job), cwd=tmp_path, env=environ(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for_agent(tmp_path)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: ending the trials under way" in err
    assert "interrupted: 1 trial not run; the same command again goes on from here" in out
    assert "Traceback" not in err


def test_the_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    job = write_job(tmp_path, {"name": "slow", "agents": [{"name": "sleeper", "execute": "sleep 1000"}]})
    process = subprocess.Popen(command(job), cwd=tmp_path, env=environ(tmp_path), stderr=subprocess.PIPE, text=True)
    wait_for_agent(tmp_path)
    process.send_signal(signal.SIGSTOP)
    # Both are pending when it goes on; Python handles one after the other before the loop gets to run.
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    # It may come in the middle of the first signal's line.
    assert err.endswith("rollout: ended at once; `rollout clean --all` tidies up\n")
    assert rollout(tmp_path, "clean", "--all").returncode == 0
    work = tmp_path / "cache" / "work"
    assert not list(work.iterdir())


def test_an_ignored_hangup_stays_ignored(tmp_path: Path, job: Path) -> None:
    script = f"trap '' HUP; exec {' '.join(command(job, '-q'))}"
    process = subprocess.Popen(["bash", "-c", script], cwd=tmp_path, env=environ(tmp_path), stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not (tmp_path / "jobs").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == 0


def on_a_terminal(folder: Path, *arguments: str | Path, columns: int, **more: str) -> tuple[int, str]:
    """Run the command with a terminal as stdout and stderr; its exit code and all that it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {**environ(folder, TERM="xterm-256color", **more)}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI"):
        if name not in more:
            env.pop(name, None)
    process = subprocess.Popen(command(*arguments), cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError as error:
            assert error.errno == errno.EIO
            break
        if not chunk:
            break
        written += chunk
    os.close(ours)
    return process.wait(), written.decode()


def test_a_terminal_gets_the_live_view_and_is_left_as_it_was(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one", solution="#!/bin/bash\nsleep 1\necho 42 > /app/answer.txt\n")
    job = write_job(tmp_path, {"name": "demo"})
    code, text = on_a_terminal(tmp_path, job, columns=70)
    assert code == 0, text
    assert "\x1b[?25l" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "0/1" in text
    assert "oracle/tasks/one__1" in text
    assert "results: jobs/demo" in text


def test_no_color_is_honoured_on_a_terminal(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one", solution="#!/bin/bash\nsleep 1\necho 42 > /app/answer.txt\n")
    _, text = on_a_terminal(tmp_path, write_job(tmp_path, {"name": "demo"}), columns=70, NO_COLOR="1")
    assert "\x1b[3" not in text.replace("\x1b[?25", "")
    assert "0/1" in text


def test_a_pipe_gets_no_control_sequences(tmp_path: Path, job: Path) -> None:
    ended = rollout(tmp_path, job)
    assert "\x1b" not in ended.stdout + ended.stderr
