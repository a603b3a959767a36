"""`--env-file`: variables from a file, in the plain part of the dotenv format."""

from __future__ import annotations

import re
from pathlib import Path

from rollout.core.errors import ConfigError

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = re.compile(rf"(?:export[ \t]+)?({_NAME})[ \t]*=[ \t]*(.*)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "$": "$", "'": "'"}
_MAX_BYTES = 1024 * 1024


def read_env_file(path: Path) -> dict[str, str]:
    """The variables of a file of `NAME=value` lines.

    `export` before a name, blank lines and `# comments` are allowed. A value in single quotes is literal; in double quotes
    `\\n \\r \\t \\\\ \\" \\$` are escapes, and either kind may span lines. An unquoted value ends at ` #`. Nothing is expanded:
    a `$` is a dollar sign.

    Raises:
        ConfigError: the file and line, and what is wrong there; never a value.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{path}: {len(data)} bytes; a file of variables has at most {_MAX_BYTES}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from error
    if "\0" in text:
        raise ConfigError(f"{path}: line {text[: text.index(chr(0))].count(chr(10)) + 1}: a NUL cannot be part of a variable")
    return _parse(text.replace("\r\n", "\n"), str(path))


def _parse(text: str, where: str) -> dict[str, str]:
    variables: dict[str, str] = {}
    lines = text.split("\n")
    index = 0
    while index < len(lines):
        number, line = index + 1, lines[index].strip()
        index += 1
        if not line or line.startswith("#"):
            continue
        match = _ASSIGNMENT.fullmatch(line)
        if match is None:
            raise ConfigError(f"{where}: line {number}: write NAME=value (a name has letters, digits and _)")
        name, value = match.groups()
        if value[:1] in ("'", '"'):
            # A quoted value goes on over lines until its quote: the text from its opening quote on, unstripped.
            rest = "\n".join([lines[number - 1][lines[number - 1].index("=") + 1 :].lstrip(), *lines[number:]])
            value, used = _quoted(rest, f"{where}: line {number}")
            index = number + used
        else:
            value = re.split(r"(?:^|[ \t]+)#", value, maxsplit=1)[0].rstrip()
        variables[name] = value
    return variables


def _quoted(text: str, where: str) -> tuple[str, int]:
    """The value that starts with a quote, and how many line breaks it holds."""
    quote, position = text[0], 1
    out: list[str] = []
    while position < len(text):
        char = text[position]
        if char == quote:
            after = text[position + 1 :].split("\n", 1)[0].strip()
            if after and not after.startswith("#"):
                raise ConfigError(f"{where}: there is text after the closing quote")
            return "".join(out), text.count("\n", 0, position)
        if char == "\\" and quote == '"' and position + 1 < len(text):
            position += 1
            out.append(_ESCAPES.get(text[position], "\\" + text[position]))
        else:
            out.append(char)
        position += 1
    raise ConfigError(f"{where}: the quote {quote} is not closed")
