"""A reward for numbers: the one that the answer gives against the one that is expected."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta

from rollout.core.errors import VerifierError
from rollout.core.protocols import API_VERSION, TrialView
from rollout.core.trial.answer import AnswerSource, answer_of, expected_faults, expected_of
from rollout.core.types import Struct, TaskFault, TaskOutline
from rollout_rewards import agentflow
from rollout_rewards.finding import final_answer

_NUMBER = re.compile(
    r"(?<![\w.])(?P<number>[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|[+-]?\.\d+)(?P<exponent>[eE][+-]?\d{1,3})?"
    r"(?:\s*/\s*(?P<divisor>\d+(?:\.\d+)?))?(?P<percent>\s?%)?(?!\d)"
)


class NumericOptions(Struct, frozen=True, kw_only=True):
    expected: float | str | None = None
    """The right number; what the task's metadata says when unset."""
    field: str | None = None
    """The field of the task's metadata that holds it."""
    answer: AnswerSource = AnswerSource()
    """Where the agent's answer is."""
    relative: Annotated[float, Meta(ge=0)] = 1e-6
    """How far the number may be off, as a share of the right one."""
    absolute: Annotated[float, Meta(ge=0)] = 1e-9
    """How far it may be off in any case."""
    compat: Literal["agentflow"] | None = None
    """`agentflow`: to the letter what AgentFlow's numeric_match gives."""


class Numeric:
    """1 when the last number of the answer is the expected one, else 0. Commas, fractions, exponents and `%` are understood."""

    api_version = API_VERSION
    options_type = NumericOptions

    def __init__(self, options: NumericOptions) -> None:
        self._options = options

    def task_faults(self, task: TaskOutline) -> Iterable[TaskFault]:
        return expected_faults(task, self._options.expected, self._options.field)

    async def score(self, trial: TrialView) -> float:
        """Raises VerifierError: what is expected is no number."""
        options = self._options
        said = await answer_of(trial, options.answer)
        given = None if options.expected is None else str(options.expected)
        texts = expected_of(trial, given, options.field)
        if options.compat == "agentflow":
            return max(agentflow.numeric(said, text) for text in texts)
        found = numbers(final_answer(said))
        for text in texts:
            wanted = numbers(text)
            if len(wanted) != 1:
                raise VerifierError(f"expected is {text[:60]!r}, which is not one number")
            if found and math.isclose(found[-1], wanted[0], rel_tol=options.relative, abs_tol=options.absolute):
                return 1.0
        return 0.0


def numbers(text: str) -> list[float]:
    """The numbers in a text: `1,000.5`, `1e3`, `3/4`, `50%` (which is 0.5)."""
    found = []
    for match in _NUMBER.finditer(text):
        value = float(match["number"].replace(",", "") + (match["exponent"] or ""))
        if match["divisor"] and float(match["divisor"]):
            value /= float(match["divisor"])
        if match["percent"]:
            value /= 100
        if math.isfinite(value):
            found.append(value)
    return found
