"""rLLM's reward functions, to the letter: what `compat: rllm` computes, and what their registered names mean in its data sets."""

from __future__ import annotations

import re
import string
from collections import Counter
from typing import Any

from rollout.core.episodes import Episode, EvalOutput, Signal, Task
from rollout.core.types import Struct

_BOX_TOKENS = re.compile(r"<\|begin_of_box\|>(.*?)<\|end_of_box\|>", re.DOTALL)


class Graded(Struct, frozen=True, kw_only=True):
    """An answer in mathematics, judged."""

    correct: bool
    reason: str = ""


def mcq_letter(text: str) -> str:
    """The letter that rLLM reads from an answer; "I" and "A" of sentences are letters to it."""
    text = text.strip()
    if len(text) == 1 and text.upper() in "ABCDEFGHIJ":
        return text.upper()
    for pattern, flags in (
        (r"answer\s*(?:is|:)\s*\(?([A-J])\)?", re.IGNORECASE),
        (r"\*\*([A-J])\*\*|\(([A-J])\)", 0),
        (r"\b([A-J])\b", 0),
    ):
        if match := re.search(pattern, text, flags):
            return next(group for group in match.groups() if group).upper()
    return ""


def boxed_answer(text: str) -> str | None:
    r"""The last `<|begin_of_box|>` block, else the last `\boxed{}`."""
    if blocks := _BOX_TOKENS.findall(text):
        return str(blocks[-1]).strip()
    from rollout_rewards.finding import braced

    start = text.rfind("\\boxed{")
    return None if start < 0 else braced(text, start + len("\\boxed"))


def squad_f1(said: str, expected: str) -> float:
    """F1 of the words, in lower case, without punctuation and articles."""
    first, second = _squad(said), _squad(expected)
    shared = sum((Counter(first) & Counter(second)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(first), shared / len(second)
    return 2 * precision * recall / (precision + recall)


def mcq_reward(task: Task, episode: Episode) -> EvalOutput:
    """rLLM's `mcq_reward_fn`."""
    letter, right = mcq_letter(episode.answer), str(_truth(task.metadata)).strip()[:1].upper()
    correct = letter == right != ""
    return EvalOutput(float(correct), correct, [Signal("accuracy", float(correct))], {"model_answer": letter, "expected": right})


def f1_reward(task: Task, episode: Episode) -> EvalOutput:
    """rLLM's `f1_reward_fn`: any overlap is correct."""
    truth = _truth(task.metadata)
    score = squad_f1(episode.answer, str(truth[0] if isinstance(truth, list) and truth else truth))
    return EvalOutput(score, score > 0, [Signal("f1", score)])


def math_reward(task: Task, episode: Episode) -> EvalOutput:
    """rLLM's `math_reward_fn`."""
    from rollout_rewards.math_grading import grade_like_rllm

    truth = _truth(task.metadata)
    graded = grade_like_rllm(episode.answer, [str(item) for item in truth] if isinstance(truth, list) else [str(truth)])
    signals = [Signal("accuracy", float(graded.correct))]
    return EvalOutput(float(graded.correct), graded.correct, signals, {"reason": graded.reason} if graded.reason else {})


def _truth(metadata: dict[str, Any]) -> Any:
    for name in ("ground_truth", "answer", "target"):
        if metadata.get(name) is not None:
            return metadata[name]
    raise ValueError("the task's metadata has no `ground_truth`")


def _squad(text: str) -> list[str]:
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()
