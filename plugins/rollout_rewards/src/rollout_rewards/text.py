"""Rewards that compare texts: equal, overlapping, contained, similar."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal

from rollout.core.errors import VerifierError
from rollout.core.protocols import API_VERSION, TrialView
from rollout.core.trial.answer import AnswerSource, answer_of, expected_faults, expected_of
from rollout.core.types import Struct, TaskFault, TaskOutline
from rollout_rewards import agentflow
from rollout_rewards.finding import final_answer, without_thinking

Compat = Literal["agentflow"]

_ARTICLES = frozenset({"a", "an", "the"})
_AROUND = " \t\n\r.,;:!?\"'`*“”‘’"
_NUMBER = re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?")
_TOKEN = re.compile(r"(?<![\w.])[+-]?\d[\d,]*(?:\.\d+)?%?|\w+", re.UNICODE)


class TextOptions(Struct, frozen=True, kw_only=True):
    expected: str | list[str] | None = None
    """The right text, or several of which the best counts; what the task's metadata says when unset."""
    field: str | None = None
    """The field of the task's metadata that holds it; the first of `ground_truth`, `answer` ... when unset."""
    answer: AnswerSource = AnswerSource()
    """Where the agent's answer is."""
    extract: Literal["final", "all"] = "final"
    """`final`: only what is given as the answer (`\\boxed{}`, "the answer is ...") when there is such a thing."""
    compat: Compat | None = None
    """`agentflow`: to the letter what AgentFlow's metric of this name gives."""


class WholeTextOptions(Struct, frozen=True, kw_only=True):
    expected: str | list[str] | None = None
    """The right text, or several of which the best counts; what the task's metadata says when unset."""
    field: str | None = None
    """The field of the task's metadata that holds it; the first of `ground_truth`, `answer` ... when unset."""
    answer: AnswerSource = AnswerSource()
    """Where the agent's answer is."""
    compat: Compat | None = None
    """`agentflow`: to the letter what AgentFlow's metric of this name gives."""


class ExactMatch:
    """1 when the answer is an expected text, else 0. Case, white space and punctuation around it do not matter, nor commas in
    numbers."""

    api_version = API_VERSION
    options_type = TextOptions

    def __init__(self, options: TextOptions) -> None:
        self._options = options

    def task_faults(self, task: TaskOutline) -> Iterable[TaskFault]:
        return expected_faults(task, self._options.expected, self._options.field)

    async def score(self, trial: TrialView) -> float:
        return await _best(trial, self._options, exact_match, agentflow.exact_match, extract=self._options.extract)


class F1:
    """How far the words of the answer and of the expected text overlap (F1 of precision and recall), 0 to 1."""

    api_version = API_VERSION
    options_type = TextOptions

    def __init__(self, options: TextOptions) -> None:
        self._options = options

    def task_faults(self, task: TaskOutline) -> Iterable[TaskFault]:
        return expected_faults(task, self._options.expected, self._options.field)

    async def score(self, trial: TrialView) -> float:
        return await _best(trial, self._options, f1, agentflow.f1, extract=self._options.extract)


class Contains:
    """1 when the answer contains an expected text as whole words, else 0."""

    api_version = API_VERSION
    options_type = WholeTextOptions

    def __init__(self, options: WholeTextOptions) -> None:
        self._options = options

    def task_faults(self, task: TaskOutline) -> Iterable[TaskFault]:
        return expected_faults(task, self._options.expected, self._options.field)

    async def score(self, trial: TrialView) -> float:
        """Raises VerifierError: an expected text is empty."""
        return await _best(trial, self._options, _contains_something, agentflow.contains)


class Similarity:
    """How alike answer and expected text are: 1 less the share of characters that have to change (Levenshtein)."""

    api_version = API_VERSION
    options_type = WholeTextOptions

    def __init__(self, options: WholeTextOptions) -> None:
        self._options = options

    def task_faults(self, task: TaskOutline) -> Iterable[TaskFault]:
        return expected_faults(task, self._options.expected, self._options.field)

    async def score(self, trial: TrialView) -> float:
        return await _best(trial, self._options, similarity, agentflow.similarity)


async def _best(
    trial: TrialView,
    options: TextOptions | WholeTextOptions,
    compare: Callable[[str, str], float],
    compared_by_agentflow: Callable[[str, str], float],
    *,
    extract: Literal["final", "all"] = "all",
) -> float:
    """What the answer gets beside the expected text that it is most like.

    Raises:
        VerifierError: nothing is expected.
    """
    said = await answer_of(trial, options.answer)
    texts = expected_of(trial, options.expected, options.field)
    if options.compat == "agentflow":
        return max(compared_by_agentflow(said, text) for text in texts)
    answer = final_answer(said) if extract == "final" else without_thinking(said)
    return max(compare(answer, text) for text in texts)


def normalised(text: str) -> str:
    """Compatible characters, lower case, single spaces, without quotes and punctuation around it."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(_AROUND)


def exact_match(said: str, expected: str) -> float:
    first, second = normalised(said), normalised(expected)
    return float(first == second or _plain_number(first) == _plain_number(second) is not None)


def f1(said: str, expected: str) -> float:
    first, second = _tokens(said), _tokens(expected)
    if not first or not second:
        return float(first == second)
    shared = sum((Counter(first) & Counter(second)).values())
    return 2 * shared / (len(first) + len(second))


def contains(said: str, expected: str) -> float:
    words = re.escape(normalised(expected))
    return float(
        re.search(rf"(?<!\w){words}(?!\w)", " ".join(unicodedata.normalize("NFKC", said).casefold().split())) is not None
    )


def _contains_something(said: str, expected: str) -> float:
    if not normalised(expected):
        raise VerifierError("the expected text is empty, which every answer contains")
    return contains(said, expected)


def similarity(said: str, expected: str) -> float:
    from rapidfuzz.distance import Levenshtein

    return float(Levenshtein.normalized_similarity(normalised(said), normalised(expected)))


def _plain_number(text: str) -> str | None:
    """A decimal number without commas, leading zeros and zeros at the end of its fraction."""
    if not _NUMBER.fullmatch(text):
        return None
    whole, _, fraction = text.replace(",", "").lstrip("+").partition(".")
    sign = "-" if whole.startswith("-") else ""
    digits = whole.lstrip("-").lstrip("0") or "0"
    fraction = fraction.rstrip("0")
    number = f"{digits}.{fraction}" if fraction else digits
    return number if number == "0" else f"{sign}{number}"


def _tokens(text: str) -> list[str]:
    found = _TOKEN.findall(unicodedata.normalize("NFKC", text).casefold())
    return [_plain_number(token) or token for token in found if token not in _ARTICLES]
