"""Comparing expressions, in a process of its own: sympy can run for ever on a short text.

`grade` is math-verify's comparison. `grade_like_rllm` is rLLM's rule, kept to the letter for data sets that were scored by it:
two answers are equal when the string rules of the MATH data set make them the same text (`same_text`), or the stricter rules of
PRM800K's grader and sympy make their difference 0 (`same_value`).
"""

from __future__ import annotations

import re
from typing import Any

from rollout.core.trial.python_worker import Rejected
from rollout_rewards.finding import boxed, final_answer
from rollout_rewards.rllm import Graded, boxed_answer


def grade(said: str, truths: list[str], strict: bool, compat: str | None) -> dict[str, Any]:
    """`{"correct": bool, "answer": text, "reason": text}`.

    Raises:
        Rejected: a truth cannot be read as mathematics.
    """
    if compat == "rllm":
        graded = grade_like_rllm(said, truths)
        return {"correct": graded.correct, "reason": graded.reason}
    answer = boxed(said) if strict else final_answer(said)
    if not answer or not answer.strip():
        return {"correct": False, "answer": "", "reason": "no answer found"}
    return {"correct": any(_equal(answer, truth) for truth in truths), "answer": answer[:500]}


def _equal(answer: str, truth: str) -> bool:
    from math_verify import parse, verify

    if " ".join(answer.split()) == " ".join(truth.split()):
        return True
    # The process has a hard deadline; the library's own are signals, which leave sympy in any state.
    gold = parse(_as_latex(truth), parsing_timeout=None, raise_on_error=False)
    if not gold:
        raise Rejected(f"expected is {truth[:80]!r}, which cannot be read as mathematics")
    given = parse(_as_latex(answer), parsing_timeout=None, raise_on_error=False)
    return bool(given) and bool(verify(gold, given, timeout_seconds=None, raise_on_error=False))


def _as_latex(text: str) -> str:
    """The text as one formula, unless it says itself where its formulas are."""
    text = re.sub(r"^([+-]?\d+(?:\.\d+)?)[eE]([+-]?\d{1,3})$", r"\1 \\times 10^{\2}", text.strip())
    text = re.sub(r"^([+-]?)(\d+)\s+(\d+)\s*/\s*(\d+)$", r"\1(\2 + \\frac{\3}{\4})", text)
    return text if "$" in text or "\\boxed" in text or "\\[" in text or "\\(" in text else f"\\boxed{{{text}}}"


def grade_like_rllm(said: str, truths: list[str]) -> Graded:
    """rLLM's rule."""
    answer = boxed_answer(said)
    if answer is None:
        return Graded(correct=False, reason="no_answer_extracted")
    for truth in truths:
        wanted = boxed_answer(truth) if "\\boxed" in truth else truth
        if wanted is not None and (same_text(answer, wanted) or same_value(answer, wanted)):
            return Graded(correct=True)
    return Graded(correct=False)


def same_text(first: str, second: str) -> bool:
    """Equal by the string rules of the MATH data set."""
    return _math_text(first) == _math_text(second)


def _math_text(text: str) -> str:
    text = text.strip()
    if match := re.search(r"^\\text\{(.+?)\}$", text):
        text = match[1].strip()
    for old, new in (
        ("\n", ""),
        ("\\!", ""),
        ("\\\\", "\\"),
        ("tfrac", "frac"),
        ("dfrac", "frac"),
        ("\\left", ""),
        ("\\right", ""),
        ("^{\\circ}", ""),
        ("^\\circ", ""),
        ("\\$", ""),
    ):
        text = text.replace(old, new)
    text = text.split("\\text{ ")[0] if text.count("\\text{ ") == 1 else text
    for old, new in (("\\%", ""), ("%", ""), (" .", " 0."), ("{.", "{0.")):
        text = text.replace(old, new)
    if not text:
        return text
    if text[0] == ".":
        text = "0" + text
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:
        text = sides[1]
    text = re.sub(r"\\sqrt([^{\s])", r"\\sqrt{\1}", text)
    text = _whole_fractions(text.replace(" ", ""))
    if text == "0.5":
        text = "\\frac{1}{2}"
    if match := re.fullmatch(r"(-?\d+)/(-?\d+)", text):
        text = f"\\frac{{{int(match[1])}}}{{{int(match[2])}}}"
    return text


def _whole_fractions(text: str) -> str:
    r"""`\frac12` and `\frac1{72}` with braces; anything shorter stays."""
    head, *parts = text.split("\\frac")
    whole = head
    for part in parts:
        if part.startswith("{"):
            whole += "\\frac" + part
        elif len(part) < 2:
            return text
        elif part[1] == "{":
            whole += f"\\frac{{{part[0]}}}{part[1:]}"
        else:
            whole += f"\\frac{{{part[0]}}}{{{part[1]}}}{part[2:]}"
    return whole


_UNITS = (
    *("degree", "cm", "centimeter", "meter", "mile", "second", "minute", "hour", "day", "week", "month", "year"),
    *("foot", "feet", "inch", "yard"),
)
_BRACKETS = "()[]"
_GROUPED = re.compile(r"(\d)(,)(\d\d\d)($|\D)")
_FRACTION = re.compile(r"^-?[0-9]+.?/0*[1-9][0-9]*.?$")


def same_value(first: str, second: str) -> bool:
    """Equal by PRM800K's rules: the second is the truth. Fractions must be reduced alike, integers be written as such."""
    given, truth = _value_text(first), _value_text(second)
    if truth == given:
        return True
    if not given:
        return False
    truths, givens = _elements(truth), _elements(given)
    if len(truths) > 1 and (truth[0] != given[0] or truth[-1] != given[-1]):
        return False
    return len(truths) == len(givens) and all(map(_same_element, truths, givens))


def _same_element(truth: str, given: str) -> bool:
    if _FRACTION.search(truth) and _FRACTION.search(given):
        return truth == given
    if _is_integer(truth) != _is_integer(given):
        return False
    return _difference_is_zero(truth, given)


def _value_text(text: str) -> str:
    if match := re.search(r"^\\text\{(.+?)\}$", text):
        text = match[1]
    for old, new in (
        ("\\%", "%"),
        ("\\$", "$"),
        ("$", ""),
        ("%", ""),
        (" or ", " , "),
        (" and ", " , "),
        ("million", "*10^6"),
        ("billion", "*10^9"),
        ("trillion", "*10^12"),
    ):
        text = text.replace(old, new)
    for unit in _UNITS:
        text = re.sub(rf"{unit}(es)?(s)? *(\^[0-9]+)?", "", text)
    text = re.sub(r"\^ *\\circ", "", text)
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    text = re.sub(r",\\! *", "", text)
    if (number := _number(text)) is not None and abs(number - round(number)) <= 1e-7:
        text = str(round(number))
    if "\\" in text:
        text = _from_latex(text)
    text = re.sub(r"- *", "-", text)
    text = re.sub(r"([0-9]) +([0-9])", r"\1+\2", text)  # mixed numbers
    text = text.replace(" ", "").replace("{", "").replace("}", "").lower()
    return str(int(float(_ungrouped(text)))) if _is_integer(text) else text


def _from_latex(text: str) -> str:
    from pylatexenc.latex2text import LatexNodes2Text
    from pylatexenc.latexwalker import LatexWalkerError

    text = text.replace("\\tfrac", "\\frac").replace("\\dfrac", "\\frac").replace("\\frac", " \\frac")
    try:
        text = LatexNodes2Text().latex_to_text(text)
    except (LatexWalkerError, ValueError, IndexError):
        return text
    for old, new in (("√", "sqrt"), ("π", "pi"), ("∞", "inf"), ("∪", "U"), ("·", "*"), ("×", "*")):
        text = text.replace(old, new)
    return text.strip()


def _elements(text: str) -> list[str]:
    """The members of a tuple or an interval; anything else is its own only member."""
    text = _ungrouped(text)
    if not text:
        return []
    inside = text[1:-1]
    is_tuple = len(text) > 2 and text[0] in _BRACKETS and text[-1] in _BRACKETS and not set(inside) & set(_BRACKETS)
    return [part.strip() for part in inside.split(",")] if is_tuple else [text]


def _ungrouped(text: str) -> str:
    while (changed := _GROUPED.sub(r"\1\3\4", text)) != text:
        text = changed
    return text


def _is_integer(text: str) -> bool:
    number = _number(_ungrouped(text))
    return number is not None and abs(number - round(number)) <= 1e-7


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None


def _difference_is_zero(truth: str, given: str) -> bool:
    """Whether sympy makes 0 of the difference; texts that look dangerous or have many unknowns are not tried."""
    text = f"({truth})-({given})"
    letters = {letter for letter in text.replace("sqrt", "").replace("frac", "") if letter.isalpha()}
    if len(letters) > 2 or "^{" in text or "^(" in text or re.search(r"\^[0-9]+\^|\^[0-9][0-9]+", text):
        return False
    from tokenize import TokenError

    import sympy
    from sympy.parsing import sympy_parser

    rules = (*sympy_parser.standard_transformations, sympy_parser.implicit_multiplication_application)
    try:
        return bool(sympy.simplify(sympy_parser.parse_expr(text.replace("^", "**"), transformations=rules)) == 0)
    except (SyntaxError, TypeError, ValueError, AttributeError, ArithmeticError, NameError, TokenError, RecursionError):
        return False  # what cannot be computed is not equal
