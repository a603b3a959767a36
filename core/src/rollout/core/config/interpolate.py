"""`${NAME}`, `${NAME:-default}` and `$$` in the values of `env:`, expanded only where a command is run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from rollout.core.errors import ConfigError

# The alternatives are tried in order: what is left of the third is a `${` that says something else.
_PIECE = re.compile(
    r"(?P<dollar>\$\$)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}|(?P<fault>\$\{)", re.ASCII
)
# A word of its own or the end of one: `OPENAI_API_KEY` and `apiKey`, neither `keyboard` nor `tokenizer` nor `max_tokens`.
_SECRET_NAME = re.compile(r"(keys?|token|secrets?|passw(or)?d|passphrase|credentials?|auth(orization)?)(?![a-z])", re.IGNORECASE)


class _Reference(NamedTuple):
    name: str
    default: str | None


def looks_secret(name: str) -> bool:
    """Whether a variable or option of this name is likely to hold a secret, and not the place of one (`password_file`)."""
    return _SECRET_NAME.search(name) is not None and not name.lower().endswith(("_file", "_path"))


def expand(text: str, environ: Mapping[str, str]) -> str:
    """The text with every reference replaced. A default is used when the variable is unset or empty, as in a shell.

    A `$` that is not followed by `{` or `$` stays. Neither the text nor any value is quoted in an error: both may be secret.

    Raises:
        ConfigError: a variable without default is unset, or a `${` that is no reference.
    """
    return "".join(piece if isinstance(piece, str) else _value(piece, environ) for piece in _pieces(text))


def referenced_names(text: str) -> list[str]:
    """The variables that the text refers to, in order, each once.

    Raises:
        ConfigError: a `${` that is no reference.
    """
    return list(dict.fromkeys(piece.name for piece in _pieces(text) if isinstance(piece, _Reference)))


def unset_names(values: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """The variables without default that `environ` does not have, in order, each once. An empty variable is set.

    Raises:
        ConfigError: a `${` that is no reference.
    """
    pieces = (piece for text in values for piece in _pieces(text))
    missing = (
        piece.name for piece in pieces if isinstance(piece, _Reference) and piece.default is None and piece.name not in environ
    )
    return list(dict.fromkeys(missing))


def _pieces(text: str) -> Iterator[str | _Reference]:
    end = 0
    for match in _PIECE.finditer(text):
        yield text[end : match.start()]
        end = match.end()
        if match["fault"]:
            raise ConfigError(_fault(text, match.start()))
        if match["dollar"]:
            yield "$"
        else:
            default = match["default"]
            yield _Reference(match["name"], None if default is None else default.replace("$$", "$"))
    yield text[end:]


def _value(reference: _Reference, environ: Mapping[str, str]) -> str:
    value = environ.get(reference.name)
    if reference.default is not None:
        return value or reference.default
    if value is None:
        raise ConfigError(f"the variable {reference.name} is not set; set it, or write ${{{reference.name}:-default}}")
    return value


def _fault(text: str, start: int) -> str:
    where = f"`${{` at character {start + 1}"
    inside = text[start + 2 :]
    closed = inside.find("}")
    if closed < 0:
        return f"{where} has no closing `}}`; a dollar sign itself is written `$$`"
    if "{" in inside[:closed]:
        return f"{where} has another brace inside, which a default may not; set the variable outside instead"
    return f"{where} is not `${{NAME}}` or `${{NAME:-default}}`; a dollar sign itself is written `$$`"
