"""Agents that misbehave: each ends within its limits, is told apart from the others, and leaves nothing running."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import CHECK_ANSWER, environment_of, host_processes, memory_peak, trial_results, write_job, write_task
from require import require

MARK = f"{os.getpid()}"
"""Ends the arguments of what these agents start: somebody else on this machine may run the same tests."""
ANSWER = "echo 42 > /app/answer.txt\n"
ALIVE = (
    "for one in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $one; echo; done 2> /dev/null | grep '^sleep' > /logs/verifier/alive\n"
)

AGENTS = {
    "hangs": f"{ANSWER}echo begun\ntrap '' TERM INT HUP QUIT\n(trap '' TERM HUP; sleep 31337.{MARK}) &\n"
    f"while :; do sleep 31338.{MARK}; done\n",
    "closes-its-output": f"echo first\nexec > /dev/null 2>&1 >&- 2>&- <&-\nsleep 0.2\n{ANSWER}",
    "leaves-daemons": "echo begun\n"
    f"setsid sleep 31339.{MARK} &\n"  # holds the agent's own output
    f"setsid sh -c 'setsid sleep 31340.{MARK} > /dev/null 2>&1 < /dev/null &'\n{ANSWER}",
    "does-nothing": "exit 0\n",
    "wants-a-terminal": f"[ -t 0 ] && [ -t 1 ] || {{ echo 'standard input is not a terminal' >&2; exit 3; }}\n{ANSWER}",
    "has-a-terminal": f"script -qec '[ -t 0 ] && [ -t 1 ] && {ANSWER.strip()}' /dev/null\n",
    "kills-everything": f"{ANSWER}sleep 31341.{MARK} &\nkill -9 -1\nkill -9 $$\n",
}
FLOOD = f"#!/bin/sh\nhead -c 1000000000 /dev/zero | tr '\\0' x\n{ANSWER}exit 7\n"


class Jobs:
    """Two jobs of one environment: that of the misbehaving agents, side by side, and that of the one that floods."""

    def __init__(self, folder: Path, kind: str) -> None:
        require(kind)
        self.kind = kind
        write_task(folder / "tasks" / "t", tests="#!/bin/sh\n" + ALIVE + CHECK_ANSWER)
        agents: list[dict[str, Any]] = [{"name": name, "execute": f"#!/bin/sh\n{text}"} for name, text in AGENTS.items()]
        agents[0]["override_timeout_sec"] = 2
        self.peak = self._run(folder, "many", kind, agents=agents, n_concurrent_trials=len(agents))
        self.peak_of_flood = self._run(folder, "flood", kind, agents=[{"name": "floods", "execute": FLOOD}])
        records = {**trial_results(folder / "jobs" / "many"), **trial_results(folder / "jobs" / "flood")}
        self.records = {trial_id.split("/")[0]: record for trial_id, record in records.items()}
        self.folders = {path.parent.parent.name: path for path in sorted(folder.glob("jobs/*/*/*/*__*"))}
        self.left = host_processes(f".{MARK}")

    def _run(self, folder: Path, name: str, kind: str, **job: Any) -> int:
        return memory_peak(folder, write_job(folder, {"name": name, "environment": environment_of(kind, folder), **job}))

    def text(self, agent: str, file: str) -> str:
        return (self.folders[agent] / file).read_text()


@pytest.fixture(scope="module", params=["local", pytest.param("docker", marks=pytest.mark.needs("docker"))])
def jobs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    folder = tmp_path_factory.mktemp(str(request.param))
    yield Jobs(folder, request.param)
    for log in folder.rglob("stdout.txt"):  # a quarter of a gigabyte
        log.unlink()


def test_one_that_hangs_is_ended_at_its_deadline_with_its_children_and_its_work_is_verified(jobs: Jobs) -> None:
    record = jobs.records["hangs"]
    assert record["error"]["type"] == "agent_execution_timeout"
    assert "2 s" in record["error"]["message"]
    assert record["reward"] == 1.0
    assert jobs.text("hangs", "agent/stdout.txt") == "begun\n"
    assert jobs.text("hangs", "logs/verifier/alive") == ""


def test_one_that_closes_its_output_works_on_to_its_end(jobs: Jobs) -> None:
    record = jobs.records["closes-its-output"]
    assert (record["status"], record["error"], record["reward"]) == ("scored", None, 1.0)
    assert jobs.text("closes-its-output", "agent/stdout.txt") == "first\n"


def test_daemons_do_not_hold_up_the_end_of_their_agent_and_stay_for_the_verifier_alone(jobs: Jobs) -> None:
    record = jobs.records["leaves-daemons"]
    assert (record["error"], record["reward"]) == (None, 1.0)
    assert jobs.text("leaves-daemons", "agent/stdout.txt") == "begun\n"
    assert f"sleep 31339.{MARK}" in jobs.text("leaves-daemons", "logs/verifier/alive")
    assert f"sleep 31340.{MARK}" in jobs.text("leaves-daemons", "logs/verifier/alive")


def test_nothing_that_agents_started_is_left_when_their_job_is_done(jobs: Jobs) -> None:
    assert jobs.left == []


def test_one_that_does_nothing_gets_no_reward_and_no_error(jobs: Jobs) -> None:
    record = jobs.records["does-nothing"]
    assert (record["status"], record["error"], record["reward"]) == ("scored", None, 0.0)


def test_one_that_wants_a_terminal_fails_and_its_own_words_are_kept(jobs: Jobs) -> None:
    record = jobs.records["wants-a-terminal"]
    assert record["error"]["type"] == "agent_execution_failed"
    assert record["error"]["message"] == "the agent exited with code 3"
    assert jobs.text("wants-a-terminal", "agent/stderr.txt") == "standard input is not a terminal\n"
    assert record["reward"] == 0.0


def test_script_gives_an_agent_the_terminal_that_it_wants(jobs: Jobs) -> None:
    record = jobs.records["has-a-terminal"]
    assert (record["error"], record["reward"]) == (None, 1.0)


def test_one_that_kills_all_that_it_may_ends_its_own_trial_alone(jobs: Jobs) -> None:
    record = jobs.records["kills-everything"]
    if jobs.kind == "docker":  # the container's own main process was among them
        assert (record["status"], record["error"]["type"]) == ("errored", "environment_lost")
    else:
        assert (record["error"]["message"], record["reward"]) == ("the agent exited with code 137", 1.0)


def test_a_gigabyte_of_output_is_cut_with_a_word_and_costs_no_memory(jobs: Jobs) -> None:
    record = jobs.records["floods"]
    assert record["error"]["message"] == "the agent exited with code 7"
    assert record["reward"] == 1.0
    assert "agent/stdout.txt was cut: the first 256 MiB of 953 MiB are kept" in record["warnings"]
    file = jobs.folders["floods"] / "agent" / "stdout.txt"
    assert 256 * 2**20 < file.stat().st_size < 257 * 2**20
    with file.open("rb") as log:
        log.seek(-100, os.SEEK_END)
        assert b"cut here, more than 256 MiB" in log.read()
    assert jobs.peak_of_flood - jobs.peak < 60 * 2**20
