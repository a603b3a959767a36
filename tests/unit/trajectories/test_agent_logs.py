"""What readers are given of an agent's logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout import AgentLogs
from rollout.core import trajectories


def test_links_are_left_out_and_the_log_that_was_read_is_remembered(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("host's")
    logs = tmp_path / "logs"
    (logs / "runs").mkdir(parents=True)
    (logs / "runs" / "b.jsonl").write_text("{}")
    (logs / "runs" / "a.jsonl").symlink_to(tmp_path / "secret")
    left = AgentLogs(logs, logs / "nothing")
    assert (left.file("runs/a.jsonl"), left.printed(), left.native) == (None, b"", None)
    assert left.files("runs/*.jsonl") == [logs / "runs" / "b.jsonl"]
    assert left.file("runs/b.jsonl") == logs / "runs" / "b.jsonl"
    assert left.native == "logs/agent/runs/b.jsonl"


def test_what_was_printed_is_read_from_its_file_or_given(tmp_path: Path) -> None:
    (tmp_path / "stdout.txt").write_bytes(b"said")
    left = AgentLogs(None, tmp_path / "stdout.txt")
    assert (left.printed(), left.native, left.file("x"), left.files("*")) == (b"said", "agent/stdout.txt", None, [])
    assert AgentLogs(None, b"said").printed() == b"said"


def test_a_log_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectories, "MAX_TRAJECTORY_BYTES", 3)
    (tmp_path / "log").write_bytes(b"1234")
    left = AgentLogs(tmp_path, tmp_path / "log")
    for read in (left.printed, lambda: left.file("log"), lambda: left.files("*")):
        with pytest.raises(ValueError, match="log is larger than"):
            read()
