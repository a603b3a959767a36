"""A reward for multiple choice: the letter that the answer settles on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from msgspec import Meta

from rollout.core.errors import VerifierError
from rollout.core.protocols import API_VERSION, TrialView
from rollout.core.trial.answer import AnswerSource, answer_of, expected_faults, expected_of
from rollout.core.types import Struct, TaskFault, TaskOutline, VerifyResult
from rollout_rewards import rllm
from rollout_rewards.finding import boxed, without_thinking
from rollout_rewards.text import normalised


class MultipleChoiceOptions(Struct, frozen=True, kw_only=True):
    expected: str | int | None = None
    """The right letter, or its number from 0; what the task's metadata says when unset."""
    field: str | None = None
    """The field of the task's metadata that holds it."""
    choices: list[str] = []
    """The texts of the choices, A first; the task's metadata's `choices` or `options` when empty."""
    letters: Annotated[int, Meta(ge=2, le=26)] = 10
    """How many letters there may be, when the choices are not known."""
    answer: AnswerSource = AnswerSource()
    """Where the agent's answer is."""
    compat: Literal["rllm"] | None = None
    """`rllm`: to the letter what rLLM's mcq_reward_fn gives."""


class MultipleChoice:
    r"""1 when the answer settles on the right letter: `\boxed{C}`, "the answer is (c)", a last line `**C**`, or its text."""

    api_version = API_VERSION
    options_type = MultipleChoiceOptions

    def __init__(self, options: MultipleChoiceOptions) -> None:
        self._options = options

    def task_faults(self, task: TaskOutline) -> Iterable[TaskFault]:
        return expected_faults(task, self._options.expected, self._options.field)

    async def score(self, trial: TrialView) -> VerifyResult:
        """Raises VerifierError: what is expected is no letter of the choices."""
        options = self._options
        said = await answer_of(trial, options.answer)
        given = options.expected
        wanted = expected_of(trial, None if given is None else str(given), options.field)[0].strip()
        if options.compat == "rllm":
            letter = rllm.mcq_letter(said)
            right = wanted[:1].upper()
        else:
            choices = options.choices or _choices(trial.task.metadata)
            letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(choices) or options.letters]
            right = _expected_letter(wanted, letters, choices)
            letter = chosen_letter(said, letters, choices)
        return VerifyResult(rewards={"reward": float(letter == right)}, details={"chosen": letter, "expected": right})


def chosen_letter(text: str, letters: str = "ABCDEFGHIJ", choices: list[str] | None = None) -> str:
    """The letter that a text settles on, "" when it settles on none."""
    text = without_thinking(text).strip()
    one = rf"[{letters}{letters.lower()}]"
    # A bare article or pronoun is a word of the sentence: letters count alone, in brackets, in bold, or after "answer".
    for candidate in (boxed(text), text, text.splitlines()[-1] if text else ""):
        if candidate is None:
            continue
        candidate = re.sub(r"\\(?:text|mathrm|mathbf)\{(.*?)\}", r"\1", candidate).strip()
        if match := re.fullmatch(rf"[*_`(\[\s]*({one})[*_`)\].:\s]*", candidate):
            return match[1].upper()
    patterns = (
        rf"answer\s*(?:\*\*)?\s*(?:is|:|=)?\s*:?\s*(?:option|choice)?\s*[*_`(\[]*({one})(?:[*_`)\]]|\b(?![\w'’-]))(?!\s+\w+ing\b)",
        rf"(?:option|choice)\s*[*_`(\[]*({one})\b",
        rf"(?:\*\*|\()({one})(?:\*\*|\))",
        rf"(?m)^\s*({one})[.):]\s",
    )
    for pattern in patterns:
        found = [match for match in re.finditer(pattern, text, re.IGNORECASE) if match[1].upper() in letters]
        found = [match for match in found if not _is_word(text, match)]
        if found:
            return str(found[-1][1]).upper()
    whole = normalised(text)
    equal = [letter for letter, choice in zip(letters, choices or [], strict=False) if normalised(choice) == whole]
    if len(equal) == 1:
        return equal[0]
    alone = re.findall(rf"(?<![\w'’])([{letters.replace('A', '').replace('I', '')}])(?![\w'’])", text)
    return str(alone[-1]) if len(set(alone)) == 1 else ""


def _is_word(text: str, match: re.Match[str]) -> bool:
    """Whether the letter is the word "a" or "I" of a sentence: a word follows, without a bracket or full stop."""
    letter, after = match[1], text[match.end(1) :]
    return letter in ("a", "A", "I", "i") and re.match(r"\s+\w", after) is not None


def _choices(metadata: dict[str, Any]) -> list[str]:
    for name in ("choices", "options"):
        value = metadata.get(name)
        if isinstance(value, list):
            return [str(item) for item in value]
        if isinstance(value, dict):
            return [str(item) for item in value.values()]
    return []


def _expected_letter(wanted: str, letters: str, choices: list[str]) -> str:
    if match := re.fullmatch(r"\(?([A-Za-z])[).:]?", wanted):
        letter = match[1].upper()
        if letter in letters:
            return letter
    equal = [letter for letter, choice in zip(letters, choices, strict=False) if normalised(choice) == normalised(wanted)]
    if len(equal) == 1:
        return equal[0]
    if wanted.isdigit() and int(wanted) < len(letters):
        return letters[int(wanted)]
    raise VerifierError(f"expected is {wanted[:60]!r}, which is none of the choices {letters[0]} to {letters[-1]}")
