"""A job's folder survives crashes, foreign lines and second writers."""

from pathlib import Path

import pytest

from rollout.core.errors import StoreError, UsageError
from rollout.core.files import write_atomic
from rollout.core.job.store import FinishedTrial, JobStore, is_running, read_json, read_trials
from rollout.core.records import TrialResult


def result(trial_id: str, reward: float = 1.0) -> TrialResult:
    return TrialResult(
        trial_id=trial_id,
        task_name="t",
        dataset_name="d",
        agent_name="a",
        attempt=1,
        status="scored",
        reward=reward,
        rewards={"reward": reward},
    )


def opened(directory: Path) -> JobStore:
    store = JobStore(directory)
    store.open()
    return store


def test_finished_trials_are_read_back_and_the_last_line_of_a_trial_counts(tmp_path: Path) -> None:
    store = opened(tmp_path / "job")
    store.add_trial(result("x", 0.0))
    store.add_trial(result("y", 1.0))
    store.add_trial(result("x", 0.5))
    store.close()
    assert [(trial.trial_id, trial.rewards["reward"]) for trial in read_trials(tmp_path / "job", FinishedTrial)] == [
        ("y", 1.0),
        ("x", 0.5),
    ]


def test_a_torn_last_line_is_cut_off_and_the_next_one_is_whole(tmp_path: Path) -> None:
    store = opened(tmp_path / "job")
    store.add_trial(result("x"))
    store.close()
    trials = tmp_path / "job" / "trials.jsonl"
    whole = trials.read_bytes()
    for length in range(len(whole)):
        trials.write_bytes(whole + whole[:length])
        store = opened(tmp_path / "job")
        store.add_trial(result("y"))
        store.close()
        assert [trial.trial_id for trial in read_trials(tmp_path / "job", FinishedTrial)] == ["x", "y"]
        trials.write_bytes(whole)


def test_foreign_lines_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "trials.jsonl").write_bytes(b'nonsense\n{"a": 1}\n\xff\xfe\n[]\n\n')
    assert list(read_trials(tmp_path, FinishedTrial)) == []
    assert list(read_trials(tmp_path / "missing", FinishedTrial)) == []


def test_one_process_at_a_time(tmp_path: Path) -> None:
    store = opened(tmp_path / "job")
    assert is_running(tmp_path / "job")
    with pytest.raises(UsageError, match="used by another running job"):
        opened(tmp_path / "job")
    store.close()
    assert not is_running(tmp_path / "job")
    opened(tmp_path / "job").close()


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="not a job's folder"):
        opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_json_files_are_replaced_whole(tmp_path: Path) -> None:
    store = opened(tmp_path / "job")
    store.write("result.json", {"a": 1})
    store.write("result.json", {"a": 2})
    store.close()
    assert read_json(tmp_path / "job", "result.json") == {"a": 2}
    assert read_json(tmp_path / "job", "missing.json") == {}
    assert not list((tmp_path / "job").glob("*.tmp*"))


def test_a_folder_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write .*file"):
        write_atomic(tmp_path / "file" / "x", b"")


def test_a_full_disk_says_so() -> None:
    with (
        pytest.raises(StoreError, match="No space left on device; free some space, then"),
        open("/dev/full", "wb", buffering=0) as file,
    ):
        from rollout.core.files import storing

        with storing("/dev/full"):
            file.write(b"x")
