"""What a reward file may hold: the golden rows of the Go program with our rule, and anything else."""

import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.core.errors import RewardInvalidError
from rollout.core.trial.rewards import (
    MAX_REWARD_BYTES,
    check_rewards,
    choose_rewards,
    parse_reward_json,
    parse_reward_text,
    read_reward_file,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0.0),
        ("0.5", 0.5),
        (" 1 ", 1.0),
        ("1e-1", 0.1),
        ("+1", 1.0),
        ("-3", -3.0),
        ("1\n", 1.0),
        (".5", 0.5),
        ("1e300", 1e300),
    ],
)
def test_reward_txt_holds_one_number(text: str, value: float) -> None:
    assert parse_reward_text(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  \n",
        "abc",
        "1 2",
        "0x10",
        "1_000",
        "nan",
        "inf",
        "-Infinity",
        "1e400",
        "١",
        "1,5",
        "1\0",
        "9" * 500,
        "\ufeff1",
        "NaN",
    ],
)
def test_reward_txt_refuses_anything_else(text: str) -> None:
    with pytest.raises(RewardInvalidError) as caught:
        parse_reward_text(text.encode())
    assert "reward.txt" in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "rewards"),
    [
        ("0.5", {"reward": 0.5}),
        ('{"reward": 1}', {"reward": 1.0}),
        ('{"runtime_sec": 1.23, "accuracy": 0.95}', {"runtime_sec": 1.23, "accuracy": 0.95}),
        (
            '{"reward": 0.75, "is_correct": false, "signals": {"tests_passed": 0.75}, "metadata": {"tests_total": 8}}',
            {"reward": 0.75, "is_correct": 0.0, "tests_passed": 0.75},
        ),
        ('{"reward": 1, "signals": [{"name": "a", "value": 0.5, "metadata": {}}]}', {"reward": 1.0, "a": 0.5}),
    ],
)
def test_reward_json_holds_numbers(text: str, rewards: dict[str, float]) -> None:
    assert parse_reward_json(text.encode()) == rewards


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "[1]",
        "null",
        "true",
        '"1"',
        "NaN",
        "Infinity",
        '{"a": NaN}',
        '{"a": true}',
        '{"a": "1"}',
        '{"a": null}',
        '{"a": {"b": 1}}',
        '{"a": 1, "a": 2}',
        '{"a": 1e400}',
        "9" * 400,
        "[" * 100_000 + "]" * 100_000,
        '{"reward": 1, "is_correct": 1, "metadata": {}}',
        '{"reward": 1, "signals": 3}',
        '{"reward": 1, "signals": [{"value": 3}]}',
        "\x00\x01",
        "\xff\xfe",
    ],
)
def test_reward_json_refuses_anything_else(text: str) -> None:
    with pytest.raises(RewardInvalidError) as caught:
        parse_reward_json(text.encode("latin-1"))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@given(st.binary(max_size=200))
def test_any_bytes_give_finite_rewards_or_one_typed_error(data: bytes) -> None:
    for parse in (parse_reward_json, lambda raw: {"reward": parse_reward_text(raw)}):
        try:
            rewards = parse(data)
        except RewardInvalidError:
            continue
        assert rewards
        assert all(math.isfinite(value) for value in rewards.values())


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_float_survives_both_formats(number: float) -> None:
    assert parse_reward_text(repr(number).encode()) == number
    assert parse_reward_json(f'{{"reward": {number!r}}}'.encode()) == {"reward": number}


def test_a_link_is_no_reward_file(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("1")
    (tmp_path / "reward.txt").symlink_to(tmp_path / "real")
    with pytest.raises(RewardInvalidError, match="not a regular file"):
        read_reward_file(tmp_path / "reward.txt", "/logs/verifier/reward.txt")


def test_a_fifo_is_no_reward_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "reward.txt")
    with pytest.raises(RewardInvalidError, match="not a regular file"):
        read_reward_file(tmp_path / "reward.txt", "/logs/verifier/reward.txt")


def test_a_sparse_gigabyte_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "reward.txt").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(RewardInvalidError, match=str(1 << 30)):
        read_reward_file(tmp_path / "reward.txt", "/logs/verifier/reward.txt")
    assert MAX_REWARD_BYTES < 1 << 30


def test_a_missing_file_is_no_error(tmp_path: Path) -> None:
    assert read_reward_file(tmp_path / "reward.txt", "reward.txt") is None


def test_the_first_file_counts_and_a_disagreement_is_told() -> None:
    chosen = choose_rewards({"reward.txt": {"reward": 1.0}, "reward.json": {"reward": 0.0}})
    assert chosen is not None
    source, rewards, warnings = chosen
    assert (source, rewards) == ("reward.txt", {"reward": 1.0})
    assert len(warnings) == 1
    assert "reward.json" in warnings[0]


def test_files_that_agree_on_what_they_share_need_no_warning() -> None:
    chosen = choose_rewards({"reward.txt": {"reward": 1.0}, "reward.json": {"reward": 1.0, "seconds": 2.0}})
    assert chosen == ("reward.txt", {"reward": 1.0}, [])


@pytest.mark.parametrize("rewards", [{}, {"a": float("nan")}, {"a": float("inf")}, {"a": True}, {"a": "1"}])
def test_what_a_verifier_returns_is_checked_too(rewards: dict[str, float]) -> None:
    with pytest.raises(RewardInvalidError):
        check_rewards(rewards)
