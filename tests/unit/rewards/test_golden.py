"""The reward functions that other programs' data sets were scored with: their values, to the bit, and ours beside them."""

from __future__ import annotations

import pytest

pytest.importorskip("rollout_rewards")

from rollout.core.episodes import Episode, Task, Trajectory
from rollout_rewards import agentflow, rllm
from rollout_rewards.choice import chosen_letter
from rollout_rewards.math_grading import grade, grade_like_rllm, same_text, same_value
from rollout_rewards.text import exact_match


@pytest.mark.parametrize(
    ("said", "expected", "em", "f1", "contains", "numeric", "similarity"),
    [
        ("Paris", "paris", 1, 1, 1, 0, 1),
        ("The answer is Paris.", "paris", 1, 1, 1, 0, 1),
        ("Python is a programming language", "Python is a popular programming language", 0, 0.9091, 0, 0, 1),
        ("The capital of France is Paris, which", "Paris", 0, 0, 1, 0, 0.3125),
        ("The answer is 50", "50", 1, 1, 1, 1, 1),
        ("Pi is approximately 3.14159", "3.14", 0, 0, 1, 1, 0.2105),
        ("14000000", "approximately 14 million", 0, 0, 0, 0, 0.125),
        ("299,792,458", "299792458", 0, 0, 0, 0, 0.8571),
        ("-5", "5", 0, 0, 1, 0, 0.5),
        ("2024-01-02", "2024", 0, 0, 1, 1, 0.6),
        ("10.1", "10", 0, 0, 1, 1, 0.6667),
        ("0.000001", "0", 0, 0, 1, 1, 0.3333),
        ("", "", 1, 0, 1, 0, 0),
        ("x", "", 0, 0, 1, 0, 0),
        ("abc", "cab", 0, 0, 0, 0, 1),
        ("a a b", "a b b", 0, 0.6667, 0, 0, 1),
        ("the cat", "cat", 0, 0.6667, 1, 0, 0.5),
        ("1e3", "1000", 0, 0, 0, 0, 0.25),
        ("50%", "0.5", 0, 0, 0, 0, 0.5),
    ],
)
def test_agentflow(said: str, expected: str, em: float, f1: float, contains: float, numeric: float, similarity: float) -> None:
    assert agentflow.exact_match(said, expected) == em
    assert agentflow.f1(said, expected) == pytest.approx(f1, abs=5e-5)
    assert agentflow.contains(said, expected) == contains
    assert agentflow.numeric(said, expected) == numeric
    assert agentflow.similarity(said, expected) == pytest.approx(similarity, abs=5e-5)


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("Answer: The answer is X", "the answer is x"),
        ("Therefore, so, yes", "yes"),
        ("The Answer Is: Paris", ": paris"),
        ("$1,234.50", "$1,234.50"),
        ("A  b\n c...", "a b c"),
        ("", ""),
    ],
)
def test_agentflow_normalises(text: str, normalised: str) -> None:
    assert agentflow.normalised(text) == normalised


MATH = [
    ("0.5", r"\frac12", True, True),
    (r"\frac{1}{2}", "1/2", True, True),
    ("2/4", "1/2", False, False),
    (r"\frac{4}{6}", r"\frac{2}{3}", False, False),
    ("1,000", "1000", False, True),
    (r"10\%", "10", True, True),
    ("5 cm", "5", False, True),
    ("x=5", "5", True, False),
    ("(1,2)", "(1, 2)", True, True),
    ("[1,2]", "(1,2)", False, False),
    ("2,3", "3,2", False, False),
    (r"\sqrt{2}/2", r"\frac{\sqrt{2}}{2}", False, True),
    ("3.0", "3", False, True),
    ("3.14", "3.140", False, True),
    ("2^{10}", "1024", False, False),
    (r"\text{Evelyn}", "evelyn", False, True),
    ("7 3/4", "31/4", False, True),
    ("1e3", "1000", False, True),
    ("1 million", "1000000", False, False),
    ("x+1", "1+x", False, True),
    (r"90^\circ", "90", True, True),
]
"""Answer, truth, equal by the MATH data set's string rules, equal by PRM800K's grader."""


@pytest.mark.parametrize(("said", "truth", "text", "value"), MATH)
def test_rllm_mathematics(said: str, truth: str, text: bool, value: bool) -> None:
    assert same_text(said, truth) is text
    assert same_value(said, truth) is value
    assert grade_like_rllm(f"so \\boxed{{{said}}}", [truth]).correct is (text or value)


@pytest.mark.parametrize(
    ("said", "correct", "reason"),
    [
        (r"\boxed{1} then \boxed{2}", True, ""),
        (r"<|begin_of_box|>2<|end_of_box|> and \boxed{1}", True, ""),
        (r"\boxed 2", False, "no_answer_extracted"),
        (r"\fbox{2}", False, "no_answer_extracted"),
        ("2", False, "no_answer_extracted"),
        ("####2", False, "no_answer_extracted"),
    ],
)
def test_rllm_finds_answers_in_boxes_alone(said: str, correct: bool, reason: str) -> None:
    graded = grade_like_rllm(said, ["2"])
    assert (graded.correct, graded.reason) == (correct, reason)


@pytest.mark.parametrize(
    ("said", "truth", "equal"),
    [
        *[(said, truth, True) for said, truth, text, value in MATH if (text or value)],
        ("2/4", "1/2", True),
        (r"\frac{4}{6}", r"\frac{2}{3}", True),
        ("2^{10}", "1024", True),
        ("[1,2]", "(1,2)", False),
        ("7", "8", False),
        (r"The answer is $\frac{1}{2}$.", "0.5", True),
        (r"<think>\boxed{9}</think> so \boxed{3}", "3", True),
        (r"\{1,2\}", r"\{2,1\}", True),
    ],
)
def test_mathematics_by_default(said: str, truth: str, equal: bool) -> None:
    assert grade(said, [truth], strict=False, compat=None)["correct"] is equal


CHOICES = [
    ("b", "B", "B"),
    ("(c)", "", "C"),
    ("The answer is (d).", "D", "D"),
    ("Answer: **C**", "C", "C"),
    (r"\boxed{C}", "C", "C"),
    ("I think it is B", "I", "B"),
    ("A dog is nice, answer C", "A", "C"),
    ("The answer is all of the above", "A", ""),
    ("<think>A or B?</think> D", "A", "D"),
]
"""Answer, rLLM's letter, ours."""


@pytest.mark.parametrize(("said", "theirs", "ours"), CHOICES)
def test_multiple_choice(said: str, theirs: str, ours: str) -> None:
    assert rllm.mcq_letter(said) == theirs
    assert chosen_letter(said) == ours


def test_registered_functions_of_rllm_give_its_outputs() -> None:
    def task(truth: object) -> Task:
        return Task(id="1", instruction="Q", metadata={"ground_truth": truth})

    def said(text: str) -> Episode:
        return Episode(trajectories=[Trajectory(output=text)])

    output = rllm.mcq_reward(task("C) seven"), said("the answer is c"))
    assert (output.reward, output.is_correct, output.metadata) == (1.0, True, {"model_answer": "C", "expected": "C"})
    partial = rllm.f1_reward(task("the big cat"), said("a cat!"))
    assert (round(partial.reward, 4), partial.is_correct) == (0.6667, True)
    assert rllm.math_reward(task(["3", r"\boxed{4}"]), said(r"\boxed{4}")).reward == 1.0


@pytest.mark.parametrize(
    ("said", "expected", "equal"),
    [
        ("Paris.", "paris", True),
        ("1,000", "1000", True),
        ("3.0", "3", True),
        ("-5", "5", False),
        ("3.14", "314", False),
        ("“Paris”", "Paris", True),
        ("the cat", "cat", False),
        ("", "", True),
        ("x", "", False),
    ],
)
def test_exact_match_by_default(said: str, expected: str, equal: bool) -> None:
    assert exact_match(said, expected) == equal
