"""Every figure has a denominator that says which trials it is over."""

from typing import Any

from rollout.core.job.results import Tally
from rollout.core.plugins import decode_options, find
from rollout.core.records import ErrorInfo, Status, TrialResult

LOST = ErrorInfo(type="environment_lost", message="gone")


def tally(*metrics: str, datasets: tuple[str, ...] = ("d",)) -> Tally:
    plugins = [(name, find("metrics", name)) for name in metrics]
    return Tally(
        [(name, plugin, decode_options(plugin, {}, name)) for name, plugin in plugins],
        {("a", dataset): 10 for dataset in datasets},
    )


def figures(tally: Tally) -> dict[tuple[str, str], tuple[float | None, int]]:
    return {(report.key, value.basis): (value.value, value.n) for report in tally.reports() for value in report.values}


def trial(task: str, status: Status, rewards: dict[str, float], dataset: str = "d", **more: Any) -> TrialResult:
    return TrialResult(
        trial_id=task, task_name=task, dataset_name=dataset, agent_name="a", attempt=1, status=status, rewards=rewards, **more
    )


def add(tally: Tally, task: str, reward: float | None = None, key: str = "reward", dataset: str = "d") -> None:
    if reward is None:
        tally.add(trial(task, "errored", {}, dataset, error=LOST))
    else:
        tally.add(trial(task, "scored", {key: reward}, dataset, cost=0.25))


def test_a_mean_is_given_over_scored_trials_and_with_errors_as_zero() -> None:
    counts = tally("mean")
    add(counts, "x", 1.0)
    add(counts, "y")
    add(counts, "z", 0.5)
    assert figures(counts) == {("reward", "scored"): (0.75, 2), ("reward", "all"): (0.5, 3)}


def test_an_error_before_the_first_reward_counts_for_it_too() -> None:
    counts = tally("mean")
    add(counts, "x")
    add(counts, "y", 1.0, key="accuracy")
    assert figures(counts)["accuracy", "all"] == (0.5, 2)


def test_a_job_of_errors_only_still_says_so() -> None:
    counts = tally("mean")
    add(counts, "x")
    assert figures(counts) == {("reward", "scored"): (None, 0), ("reward", "all"): (0.0, 1)}


def test_each_reward_key_has_its_own_figures() -> None:
    counts = tally("mean")
    counts.add(trial("x", "scored", {"reward": 1.0, "seconds": 3.0}))
    counts.add(trial("y", "scored", {"reward": 0.0}))
    assert figures(counts)["reward", "scored"] == (0.5, 2)
    assert figures(counts)["seconds", "scored"] == (3.0, 1)


def test_unverified_trials_are_no_zeros() -> None:
    counts = tally("mean")
    counts.add(trial("x", "unscored", {}))
    assert counts.reports() == []
    assert counts.count("unscored") == 1


def test_counts_errors_and_costs_per_agent_and_dataset() -> None:
    counts = tally("mean", datasets=("d", "e"))
    add(counts, "x", 1.0)
    add(counts, "y", 1.0, dataset="e")
    add(counts, "z", dataset="e")
    first, second = counts.groups()
    assert (first.scored, first.errored, first.cost) == (1, 0, 0.25)
    assert (second.scored, second.errored, second.errors) == (1, 1, {"environment_lost": 1})
    assert counts.cost == 0.5
