"""A line as a list of tokens: (kind, text), of the kinds number, name, operator and end."""

import re

from sums.errors import SumError

TOKEN = re.compile(r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<operator>[-+*/^(),=]))")


def tokens(line):
    found, at = [], 0
    line = line.rstrip()
    while at < len(line):
        match = TOKEN.match(line, at)
        if match is None:
            raise SumError("syntax")
        if match.lastgroup == "name" and found and found[-1][0] == "number" and match.start("name") == at:
            raise SumError("syntax")
        found.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return [*found, ("end", "")]
