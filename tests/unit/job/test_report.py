"""Reading a job's folder, whole or in pieces."""

from __future__ import annotations

import fcntl
import json
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.core.errors import UsageError
from rollout.core.job.report import Cell, explain, last_meaningful_line, load_report
from rollout.core.records import TrialResult
from rollout.core.types import MetricValue
from unit.job_folder import trial, write_job_folder, write_output


def test_groups_metrics_and_matrix_of_a_finished_job(tmp_path: Path) -> None:
    job = write_job_folder(
        tmp_path / "demo",
        [
            trial("a", 1.0),
            trial("b", error="agent_install_failed"),
            trial("a", 0.5, agent="nop"),
            trial("b", 0.0, agent="nop"),
        ],
    )
    report = load_report(job)
    assert (report.job_name, report.job_id, report.state, report.duration_sec) == ("demo", "demo-1234abcd", "finished", 4.25)
    oracle, nop = report.groups
    assert (oracle.agent, oracle.total_trials, oracle.scored, oracle.errored) == ("oracle", 2, 1, 1)
    assert oracle.errors == {"agent_install_failed": 1}
    assert (nop.agent, nop.scored, nop.errored) == ("nop", 2, 0)
    assert [(metric.agent, metric.values) for metric in report.metrics] == [
        ("oracle", [MetricValue(name="mean", value=1.0, n=1), MetricValue(name="mean", value=0.5, n=2, basis="all")]),
        ("nop", [MetricValue(name="mean", value=0.25, n=2), MetricValue(name="mean", value=0.25, n=2, basis="all")]),
    ]
    assert [(row.task, row.cells["oracle"], row.cells["nop"].mean_reward) for row in report.matrix()] == [
        ("a", Cell(mean_reward=1.0, attempts=1, errored=0), 0.5),
        ("b", Cell(mean_reward=None, attempts=1, errored=1), 0.0),
    ]


def test_a_later_line_of_a_trial_supersedes_and_a_torn_one_is_ignored(tmp_path: Path) -> None:
    job = write_job_folder(tmp_path, [trial("a", error="environment_lost"), trial("b", 0.0), trial("a", 1.0)])
    with (job / "trials.jsonl").open("ab") as file:
        file.write(b"\xff\xfe not a line\n[]\n")
        file.write(msgspec.json.encode(trial("c", 1.0))[:50])
    report = load_report(job)
    assert [(t.task_name, t.reward) for t in report.trials] == [("b", 0.0), ("a", 1.0)]
    assert report.groups[0].errored == 0


def test_a_running_job_is_reported_as_far_as_it_is(tmp_path: Path) -> None:
    job = write_job_folder(tmp_path, [trial("a", 1.0)], tasks=["a", "b", "c"], n_attempts=2)
    (job / "result.json").unlink()
    assert load_report(job).state == "incomplete"
    with (job / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        report = load_report(job)
    assert report.state == "running"
    assert report.groups[0].total_trials == 6
    assert len(report.trials) == 1


def test_an_interrupted_job_says_so(tmp_path: Path) -> None:
    job = write_job_folder(tmp_path, [trial("a", 1.0)], tasks=["a", "b"])
    (job / "result.json").write_text('{"cancelled": true}')
    assert load_report(job).state == "interrupted"


@pytest.mark.parametrize("missing", ["config.json", "lock.json", "result.json"])
def test_a_missing_or_broken_file_costs_only_what_it_says(tmp_path: Path, missing: str) -> None:
    job = write_job_folder(tmp_path / "demo", [trial("a", 1.0), trial("b", 0.0)])
    for content in (None, "{", "[1]", '{"config": 3, "tasks": {"x": 1}, "warnings": "w"}'):
        if content is None:
            (job / missing).unlink()
        else:
            (job / missing).write_text(content)
        report = load_report(job)
        assert report.job_name == "demo"
        assert report.groups[0].scored == 2
        assert report.metrics[0].values[0].value == 0.5


def test_a_job_that_has_not_finished_a_trial_yet(tmp_path: Path) -> None:
    job = write_job_folder(tmp_path, [], tasks=["a"])
    (job / "trials.jsonl").unlink()
    report = load_report(job)
    assert report.trials == []
    assert report.matrix() == []
    assert report.groups[0].total_trials == 1


def test_a_metric_that_this_machine_lacks_is_left_out_and_named(tmp_path: Path) -> None:
    report = load_report(write_job_folder(tmp_path, [trial("a", 1.0)], metrics=[{"type": "no-such"}, {"type": "sum"}]))
    assert [metric.metric for metric in report.metrics] == ["sum"]
    assert any("no-such" in warning for warning in report.warnings)


def test_trials_of_an_agent_that_the_last_run_left_out_are_still_shown(tmp_path: Path) -> None:
    job = write_job_folder(tmp_path, [trial("a", 1.0), trial("a", 0.0, agent="old")])
    config = json.loads((job / "config.json").read_text())
    config["config"]["agents"] = [{"name": "oracle"}]
    (job / "config.json").write_text(json.dumps(config))
    assert [group.agent for group in load_report(job).groups] == ["oracle", "old"]


@pytest.mark.parametrize("kind", ["missing", "file", "foreign", "foreign-config"])
def test_what_is_not_a_jobs_folder_is_a_usage_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "file":
        path.write_text("x")
    elif kind != "missing":
        path.mkdir()
        (path / ("config.json" if kind == "foreign-config" else "notes.txt")).write_text("{}")
    with pytest.raises(UsageError):
        load_report(path)


# What explains a failure


def test_an_error_that_says_something_explains_itself(tmp_path: Path) -> None:
    result = trial("a", error="environment_build_failed", message="RUN make: no such program", phase="start")
    report = load_report(write_job_folder(tmp_path, [result]))
    assert explain(report.trials[0], tmp_path) == ("RUN make: no such program", None)


@pytest.mark.parametrize(
    ("result", "phase", "stream", "text", "expected"),
    [
        (
            trial("a", error="agent_install_failed", message="the installer exited with code 100", phase="install_agent"),
            "setup",
            "stderr",
            "Reading lists\nE: Unable to locate package foo\n\n",
            "the installer exited with code 100: E: Unable to locate package foo",
        ),
        (
            trial("a", 0.0, error="agent_execution_failed", message="the agent exited with code 1", phase="execute"),
            "agent",
            "stderr",
            "\x1b[31mConnection refused\x1b[0m\n",
            "the agent exited with code 1: Connection refused",
        ),
        (
            trial("a", 0.0),
            "verifier",
            "stdout",
            "FAILED test_it.py::test_answer - assert 41 == 42\n===== 1 failed in 0.02s =====\n\n",
            "FAILED test_it.py::test_answer - assert 41 == 42",
        ),
        (trial("a", 0.0), "verifier", "stderr", "diff: /app/out: No such file\n", "diff: /app/out: No such file"),
        (trial("a", 0.25), "verifier", "stdout", "", "the verifier printed nothing"),
        (
            trial("a", error="verifier_failed", message="test.sh exited with code 2", phase="verify"),
            "verifier",
            "stdout",
            "progress 1%\rprogress 100%\rsyntax error\n-----\n",
            "test.sh exited with code 2: syntax error",
        ),
        (
            trial("a", error="verifier_reward_missing", message="test.sh exited with code 4 and wrote no reward", phase="verify"),
            "verifier",
            "stderr",
            "pytest: not found\n",
            "test.sh exited with code 4 and wrote no reward: pytest: not found",
        ),
    ],
)
def test_otherwise_the_last_line_of_the_phase_that_failed_does(
    tmp_path: Path, result: TrialResult, phase: str, stream: str, text: str, expected: str
) -> None:
    job = write_job_folder(tmp_path, [result])
    write_output(job, result, phase, stream, text)
    (failure,) = load_report(job).failures()
    assert failure.line == expected
    assert failure.source == (f"{result.trial_id}/{phase}/{stream}.txt" if text else None)


def test_failures_are_errors_first_and_leave_out_full_marks_and_no_verdict(tmp_path: Path) -> None:
    job = write_job_folder(
        tmp_path,
        [trial("low", 0.5), trial("full", 1.0), trial("none", status="unscored"), trial("broken", error="environment_lost")],
    )
    assert [failure.trial_id for failure in load_report(job).failures()] == ["oracle/tools/broken__1", "oracle/tools/low__1"]


@pytest.mark.parametrize("trial_id", ["../../outside__1", "/etc/passwd__1"])
def test_a_record_that_points_out_of_the_folder_is_not_followed(tmp_path: Path, trial_id: str) -> None:
    job = tmp_path / "deep" / "job"
    outside = tmp_path / "outside__1" / "verifier"
    outside.mkdir(parents=True)
    (outside / "stdout.txt").write_text("secret\n")
    write_job_folder(job, [msgspec.structs.replace(trial("a", 0.0), trial_id=trial_id)])
    (failure,) = load_report(job).failures()
    assert failure.line == "the verifier printed nothing"


def test_only_the_end_of_a_huge_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "stdout.txt"
    with path.open("wb") as file:
        file.truncate(3 * 1024**3)
        file.seek(0, 2)
        file.write(b"\nthe end\n")
    assert last_meaningful_line(path) == "the end"


@given(st.binary(max_size=300))
def test_any_bytes_have_a_last_line_without_control_sequences_or_none(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.txt"
        path.write_bytes(data)
        line = last_meaningful_line(path)
        assert line is None or (line.strip() == line and "\n" not in line and "\x1b[0m" not in line)


@given(st.binary(max_size=400))
def test_any_bytes_as_trials_are_a_report(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "trials.jsonl").write_bytes(data)
        assert load_report(Path(folder)).trials == []
