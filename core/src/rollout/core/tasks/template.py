"""instruction.md.tpl: text with `{{field}}` in it, rendered with a row.

`v1` is rLLM's engine to the letter: one pass, names of word characters only, a field that the row lacks is empty, a list is a
lettered block, anything else is what Python's `str` makes of it, and there is no way to write `{{word}}` itself. `strict`
refuses a field that the row lacks or that is null, writes mappings as JSON, letters on with AA after Z, and takes `{{{{` and
`}}}}` for literal braces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

TEMPLATE = "instruction.md.tpl"

Mode = Literal["v1", "strict"]

_FIELD = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_STRICT = re.compile(r"(\{\{\{\{)|(\}\}\}\})|\{\{\s*([^{}]*?)\s*\}\}")
_WORD = re.compile(r"\w+")


def render(template: str, row: Mapping[str, Any], mode: Mode = "v1") -> str:
    """The template with the row's fields in it.

    Raises:
        ValueError: in strict mode, a field that the row does not have, is null, or is no name; the text names it.
    """
    if mode == "v1":
        return _FIELD.sub(lambda match: _v1(row.get(match[1], "")), template)
    return _STRICT.sub(lambda match: _strict_match(match, row), template)


def fields(template: str, mode: Mode = "v1") -> list[str]:
    """The fields that a template names, in order, each once."""
    found = [match[1] if mode == "v1" else match[3] for match in (_FIELD if mode == "v1" else _STRICT).finditer(template)]
    return list(dict.fromkeys(name for name in found if name))


def _v1(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(f"({chr(65 + index)}) {item}" for index, item in enumerate(value))
    return str(value)


def _strict_match(match: re.Match[str], row: Mapping[str, Any]) -> str:
    if match[1] or match[2]:
        return "{{" if match[1] else "}}"
    name = match[3]
    if not _WORD.fullmatch(name):
        raise ValueError(f"`{match[0]}` names no field; write {{{{{{{{ for literal braces")
    if name not in row:
        raise ValueError(f"the row has no field {name!r}")
    if row[name] is None:
        raise ValueError(f"the field {name!r} is null")
    return _strict(row[name])


def _strict(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(f"({_letters(index)}) {_strict(item)}" for index, item in enumerate(value))
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def _letters(index: int) -> str:
    """A to Z, AA to AZ, BA ..."""
    letters = ""
    while index >= 0:
        letters = chr(65 + index % 26) + letters
        index = index // 26 - 1
    return letters
