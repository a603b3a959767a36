"""Rubrics: how reward functions of every shape are called, weighed, reported, and what happens when one fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rollout
from rollout.builtin.rewards import CodeExecRewardFunc, StringMatch, StringMatchOptions, StringMatchRewardFunc, TestRewardFunc
from rollout.builtin.rewards_verifier import RewardsVerifier, RewardsVerifierOptions
from rollout.core.episodes import Episode, Task, Trajectory
from rollout.core.errors import ConfigError, EnvironmentLostError, NotKeptError, PluginError, VerifierError
from rollout.core.plugins import override
from rollout.core.protocols import TrialView
from rollout.core.trial.answer import EXPECTED_FIELDS, AnswerSource, answer_of, expected_of
from rollout.core.trial.recorded import RecordedEnvironment, recorded_trial
from rollout.core.trial.rubric import Rubric, unique_names
from rollout.core.types import VerifyResult
from rollout.testing.fakes import FakeEnvironment, FakeWorld
from rollout.testing.suite import Output, environment_spec, trial_view


def view(folder: Path, answer: str = "42", **metadata: Any) -> TrialView:
    task = folder / "task"
    task.mkdir(exist_ok=True)
    environment = FakeEnvironment(FakeWorld(), environment_spec())
    made = trial_view(environment, folder, task, env={}, sink=Output())
    return msgspec.structs.replace(
        made,
        task=Task(id="t", instruction="Q", metadata=metadata, dataset_dir=task),
        episode=Episode(trajectories=[Trajectory(output=answer)]),
    )


def half(trial: TrialView) -> float:
    return 0.5


async def one(task: Any, episode: Episode) -> bool:
    return episode.answer == "42"


def broken(trial: TrialView) -> float:
    raise ValueError("nothing to see")


async def test_the_reward_is_the_mean_and_each_part_is_reported(tmp_path: Path) -> None:
    result = await Rubric([half, one]).judge(view(tmp_path))
    assert result.reward == 0.75
    assert result.rewards == {"reward": 0.75, "half": 0.5, "one": 1.0}
    assert result.items == {"half": 0.5, "one": 1.0}
    assert [(event.source, event.reward, event.type) for event in result.events] == [
        ("half", 0.5, "terminal"),
        ("one", 1.0, "terminal"),
    ]


@pytest.mark.parametrize(
    ("weights", "reward"), [([1, 1], 0.75), ([0.7, 0.3], 0.65), ([2, 2], 0.75), ([0, 5], 1.0), ([3, 1], 0.625)]
)
async def test_weights_are_proportions(tmp_path: Path, weights: list[float], reward: float) -> None:
    assert (await Rubric([half, one], weights).judge(view(tmp_path))).reward == pytest.approx(reward)


@pytest.mark.parametrize(
    ("funcs", "weights", "reward", "error"),
    [
        ([half, one], [2, 2], 3.0, None),
        ([half, one], None, 0.75, None),
        ([], None, 0.0, None),
        ([broken, one], [0.5, 0.5], 0.5, "broken: it raised: ValueError: nothing to see"),
    ],
)
async def test_benchflow_sums_and_counts_errors_as_zero(
    tmp_path: Path, funcs: list[Any], weights: list[float] | None, reward: float, error: str | None
) -> None:
    result = await Rubric(funcs, weights, compat="benchflow").judge(view(tmp_path))
    assert (result.reward, result.error) == (reward, error)


async def test_a_function_that_raises_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(VerifierError, match=r"^broken: it raised: ValueError: nothing to see$"):
        await Rubric([one, broken]).judge(view(tmp_path))


async def test_all_functions_that_fail_are_named(tmp_path: Path) -> None:
    def other(trial: TrialView) -> None:
        return None

    with pytest.raises(VerifierError, match=r"broken: .*; other: it is NoneType None"):
        await Rubric([broken, other]).judge(view(tmp_path))


async def test_a_lost_sandbox_stays_one(tmp_path: Path) -> None:
    async def looks(trial: TrialView) -> float:
        raise EnvironmentLostError("the sandbox is gone")

    with pytest.raises(EnvironmentLostError):
        await Rubric([broken, looks]).judge(view(tmp_path))


async def test_functions_get_what_they_ask_for(tmp_path: Path) -> None:
    class Scores:
        async def score(self, rollout_dir: Path) -> float:
            return float(rollout_dir.name == "trial")

    class Looks:
        def score(self, trial: TrialView) -> dict[str, float]:
            return {"reward": 1.0, "extra": 0.25}

    class Evaluates:
        def evaluate(self, metadata: dict[str, Any], trajectory: dict[str, Any]) -> bool:
            return bool(trajectory["output"] == metadata["ground_truth"])

    funcs = [Scores(), Looks(), Evaluates(), CodeExecRewardFunc(lambda folder: 1.0)]
    result = await Rubric(funcs).judge(view(tmp_path, ground_truth="42"))
    assert result.items == {"Scores": 1.0, "Looks": 1.0, "Evaluates": 1.0, "CodeExecRewardFunc": 1.0}
    assert result.rewards["Looks.extra"] == 0.25


def test_equal_names_are_numbered() -> None:
    assert unique_names(["a", "a", "b", "a", "a_1"]) == ["a", "a_1", "b", "a_2", "a_1_1"]


@pytest.mark.parametrize(
    ("funcs", "weights"),
    [([half], [1, 2]), ([half], [-1]), ([half], [float("nan")]), ([half, one], [0, 0]), ([], None), ([3], None)],
)
def test_what_is_no_rubric_is_refused(funcs: list[Any], weights: list[float] | None) -> None:
    with pytest.raises(ConfigError):
        Rubric(funcs, weights)


async def test_the_example_of_the_python_api(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_text("1\n")
    (tmp_path / "answer.txt").write_text("hello there\n")
    rubric = rollout.Rubric(
        reward_funcs=[rollout.TestRewardFunc(), rollout.StringMatchRewardFunc(expected="hello world")], weights=[0.7, 0.3]
    )
    result = await rubric.score(rollout_dir=tmp_path)
    assert isinstance(result, rollout.VerifyResult)
    assert result.reward == pytest.approx(0.7)
    assert [event.source for event in result.events] == ["TestRewardFunc", "StringMatchRewardFunc"]
    assert all(isinstance(event, rollout.RewardEvent) for event in result.events)


async def test_a_trial_folder_is_scored_by_what_was_kept(tmp_path: Path) -> None:
    for name, text in {
        "logs/verifier/reward.txt": "0.5",
        "logs/agent/answer.txt": "Hello World",
        "artifacts/there": "kept",
        "artifacts/manifest.json": '{"artifacts": [{"source": "/app/x", "destination": "there", "status": "kept"}]}',
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert (await Rubric([TestRewardFunc()]).score(tmp_path)).reward == 0.5
    assert (await Rubric([StringMatchRewardFunc("hello", fuzzy=True)]).score(tmp_path)).reward == 1.0
    async with recorded_trial(tmp_path) as trial:
        assert await answer_of(trial, AnswerSource(file="/app/x")) == "kept"
        assert await answer_of(trial, AnswerSource(file="/logs/agent/answer.txt")) == "Hello World"


async def test_what_was_not_kept_is_said(tmp_path: Path) -> None:
    reward = StringMatch(StringMatchOptions(expected="x", answer=AnswerSource(file="/app/gone.txt")))
    with pytest.raises(NotKeptError, match=r"StringMatch: cannot look at /app/gone.txt"):
        await Rubric([reward]).score(tmp_path)
    with pytest.raises(VerifierError, match=r"left no /logs/agent/gone.txt"):
        async with recorded_trial(tmp_path) as trial:
            await answer_of(trial, AnswerSource(file="/logs/agent/gone.txt"))
    with pytest.raises(NotKeptError, match="not a folder of a trial"):
        await Rubric([half]).score(tmp_path / "nowhere")


async def test_a_recorded_environment_shows_nothing_outside_its_folder(tmp_path: Path) -> None:
    trial = tmp_path / "trial"
    (trial / "logs").mkdir(parents=True)
    (tmp_path / "secret").write_text("s")
    (trial / "logs/link").symlink_to(tmp_path / "secret")
    environment = RecordedEnvironment(trial)
    for source in ("/logs/../../secret", "/logs/link", "/../secret"):
        with pytest.raises((FileNotFoundError, NotKeptError)):
            await environment.download(source, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


async def test_the_answer_is_what_the_agent_printed_when_it_gave_none(tmp_path: Path) -> None:
    trial = view(tmp_path, answer="")
    (trial.trial_dir / "agent").mkdir()
    (trial.trial_dir / "agent/stdout.txt").write_text("thinking\n\nfinal words\n\n")
    assert await answer_of(trial, AnswerSource(last_line=True)) == "final words"
    (trial.trial_dir / "logs/agent").mkdir(parents=True, exist_ok=True)
    (trial.trial_dir / "logs/agent/answer.txt").write_text("written")
    assert await answer_of(trial, AnswerSource()) == "written"


def test_what_is_expected_comes_from_the_option_or_the_metadata(tmp_path: Path) -> None:
    assert expected_of(view(tmp_path), "a") == ["a"]
    assert expected_of(view(tmp_path, answer_="x", target=3.0), None) == ["3"]
    assert expected_of(view(tmp_path, ground_truth=["a", 2], answer="b"), None) == ["a", "2"]
    assert expected_of(view(tmp_path, metadata={"expected": "inner"}), None) == ["inner"]
    assert expected_of(view(tmp_path, gold="g"), None, "gold") == ["g"]
    with pytest.raises(VerifierError, match=r"give the option `expected`, or one of .*`ground_truth`"):
        expected_of(view(tmp_path, other=1), None)
    assert EXPECTED_FIELDS[0] == "ground_truth"


def rewards_verifier(*items: Any) -> RewardsVerifier:
    return RewardsVerifier(msgspec.convert({"rewards": list(items)}, RewardsVerifierOptions))


async def test_reward_functions_are_named_in_options(tmp_path: Path) -> None:
    verifier = rewards_verifier(
        {"type": "string_match", "weight": 3, "options": {"expected": "42"}},
        {"type": "string_match", "name": "loose", "weight": 1, "options": {"expected": "4", "fuzzy": True}},
    )
    result = await verifier.verify(view(tmp_path, answer="41"))
    assert result.rewards == {"reward": 0.25, "string_match": 0.0, "loose": 1.0}
    only = await rewards_verifier("string_match").verify(view(tmp_path, answer=" 42 ", ground_truth=42))
    assert only.rewards == {"reward": 1.0}


async def test_plain_functions_can_be_registered(tmp_path: Path) -> None:
    with override("rewards", "half", half):
        assert (await rewards_verifier("half").verify(view(tmp_path))).reward == 0.5


@pytest.mark.parametrize(
    ("items", "error", "why"),
    [
        (["no_such"], PluginError, "no reward 'no_such'"),
        ([{"type": "string_match", "options": {"expectd": "x"}}], ConfigError, "did you mean 'expected'"),
        ([{"type": "string_match", "weight": 1}, "test"], ConfigError, "test has no `weight`"),
    ],
)
def test_faults_are_found_when_it_is_made(items: list[Any], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        rewards_verifier(*items)


def test_a_verdict_is_json() -> None:
    verdict = VerifyResult(rewards={"reward": 1.0}, details={"a": [1]})
    assert json.loads(msgspec.json.encode(verdict))["details"] == {"a": [1]}


def test_a_reward_class_that_breaks_its_contract_is_refused() -> None:
    class NoScore:
        api_version = (1, 0)
        options_type = StringMatchOptions

    with pytest.raises(PluginError, match="lacks `score`"), override("rewards", "broken", NoScore):
        pass
