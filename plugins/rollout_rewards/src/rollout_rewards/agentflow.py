"""AgentFlow's metrics, to the letter: what `compat: agentflow` computes. Their oddities are part of them."""

from __future__ import annotations

import re
from collections import Counter

_PREFIXES = ("the answer is", "answer:", "final answer:", "therefore,", "thus,", "so,")
_NUMBERS = re.compile(r"-?\d+\.?\d*")


def normalised(text: str | None) -> str:
    """Lower case; each of a few opening phrases cut once, in their order; without punctuation at the end; single spaces."""
    if not text:
        return ""
    text = text.lower().strip()
    for prefix in _PREFIXES:
        if text.startswith(prefix):
            text = text[len(prefix) :].strip()
    return " ".join(re.sub(r"[.,;:!?]+$", "", text).split())


def exact_match(said: str, expected: str) -> float:
    return float(normalised(said) == normalised(expected))


def f1(said: str, expected: str) -> float:
    first, second = normalised(said).split(), normalised(expected).split()
    if not first or not second:
        return 0.0
    shared = sum((Counter(first) & Counter(second)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(first), shared / len(second)
    return 2 * precision * recall / (precision + recall)


def contains(said: str, expected: str) -> float:
    return float(normalised(expected) in normalised(said))


def numeric(said: str, expected: str) -> float:
    """1 when any number of the one is within 1e-6, or 1 %, of any number of the other."""
    numbers = [float(number) for number in _NUMBERS.findall(said)]
    wanted = [float(number) for number in _NUMBERS.findall(expected)]
    close = any(abs(a - b) <= 1e-6 or (b != 0 and abs((a - b) / b) <= 0.01) for a in numbers for b in wanted)
    return float(close)


def similarity(said: str, expected: str) -> float:
    """The sets of characters: how many are in both, of those in either."""
    first, second = set(normalised(said)), set(normalised(expected))
    if not first or not second:
        return 0.0
    return len(first & second) / len(first | second)
