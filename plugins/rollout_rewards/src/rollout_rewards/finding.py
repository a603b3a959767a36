"""Where the answer is in what a model said."""

from __future__ import annotations

import re

_THINKING = re.compile(r"<(think|thinking|reasoning)>.*?(</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BARE_BOX = re.compile(r"\\boxed\s+([^\s{}$\\]+)")
_SAID = re.compile(
    r"(?:final\s+answer|\banswer)\s*(?:\*\*)?\s*(?:is\b\s*:?|:|=)\s*(?:\*\*)?\s*(?P<said>[^\n]+)",
    re.IGNORECASE,
)
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)


def without_thinking(text: str) -> str:
    """The text without `<think>` blocks; one that was never closed goes on to the end. A text that is nothing else stays."""
    rest = _THINKING.sub("", text)
    tail = rest.rpartition("</think>")[2]  # the opening tag was part of the prompt
    return tail if tail.strip() else text


def boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{}` (or `\fbox{}`) whose braces match."""
    for match in reversed(list(_BOX.finditer(text))):
        content = braced(text, match.end() - 1)
        if content is not None:
            return content
    bare = _BARE_BOX.findall(text)
    return str(bare[-1]) if bare else None


def braced(text: str, start: int) -> str | None:
    """What is between the brace at `start` and the one that closes it."""
    depth = 0
    for index in range(start, len(text)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : index]
    return None


def final_answer(text: str) -> str:
    r"""What a text gives as its answer: the last `<answer>`, the last `\boxed{}`, what follows the last "answer is", else all."""
    text = without_thinking(text)
    if tagged := _TAGGED.findall(text):
        return str(tagged[-1]).strip()
    if (box := boxed(text)) is not None:
        return box.strip()
    said = [match["said"] for match in _SAID.finditer(text)]
    return (said[-1] if said else text).strip().strip("*").strip()
