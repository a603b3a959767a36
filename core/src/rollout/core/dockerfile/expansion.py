"""Words and variables of a Dockerfile, by Docker's rules (docs.docker.com/reference/dockerfile, "Environment replacement")."""

from __future__ import annotations

from collections.abc import Mapping


class _Reader:
    def __init__(self, text: str, variables: Mapping[str, str], escape: str) -> None:
        self.text = text
        self.variables = variables
        self.escape = escape
        self.at = 0

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        character = self.peek()
        self.at += 1
        return character

    def until(self, stop: str) -> str:
        """Expanded text up to a character that ends it, which is left; quotes are taken off."""
        out = []
        while (character := self.peek()) and character not in stop:
            if character == "'":
                self.take()
                out.append(self.single_quoted())
            elif character == '"':
                self.take()
                out.append(self.double_quoted())
            elif character == self.escape:
                self.take()
                out.append(self.take() or self.escape)
            elif character == "$":
                self.take()
                out.append(self.variable())
            else:
                out.append(self.take())
        return "".join(out)

    def single_quoted(self) -> str:
        end = self.text.find("'", self.at)
        if end < 0:
            raise ValueError("a single quote is not closed")
        quoted, self.at = self.text[self.at : end], end + 1
        return quoted

    def double_quoted(self) -> str:
        out = []
        while (character := self.take()) != '"':
            if not character:
                raise ValueError("a double quote is not closed")
            if character == "$":
                out.append(self.variable())
            elif character == self.escape and self.peek() in ('"', "$", self.escape):
                out.append(self.take())
            else:
                out.append(character)
        return "".join(out)

    def variable(self) -> str:
        """What stands after `$`."""
        if self.peek() != "{":
            name = self.name()
            return self.variables.get(name, "") if name else "$"
        self.take()
        name = self.name()
        if not name:
            raise ValueError("`${` is not followed by a name")
        operator = self.take()
        value = self.variables.get(name)
        if operator == "}":
            return value or ""
        empty_counts = operator == ":"
        if empty_counts:
            operator = self.take()
        if operator not in ("-", "+", "?"):
            raise ValueError(f"`${{{name}{operator}` is not supported; there are :- :+ :? - + ?")
        word = self.until("}")
        if self.take() != "}":
            raise ValueError(f"`${{{name}` is not closed")
        there = bool(value) if empty_counts else value is not None
        if operator == "+":
            return word if there else ""
        if operator == "?" and not there:
            raise ValueError(f"{name}: {word or 'it is not set'}")
        return (value or "") if there else word

    def name(self) -> str:
        start = self.at
        while self.peek().isascii() and (self.peek().isalnum() or self.peek() == "_") and self.peek():
            if self.at == start and self.peek().isdigit():
                self.at += 1
                break
            self.at += 1
        return self.text[start : self.at]


def expand(text: str, variables: Mapping[str, str], escape: str = "\\") -> str:
    """Replace variables and take quotes off.

    Raises:
        ValueError: an open quote or brace, or an operator that Docker does not have.
    """
    return _Reader(text, variables, escape).until("")


def split_words(text: str, escape: str = "\\") -> list[str]:
    """Split at blanks outside quotes; quotes, escapes and variables stay as they are."""
    words, word, quote, at = [], "", "", 0
    while at < len(text):
        character = text[at]
        if character == escape and quote != "'" and at + 1 < len(text):
            word += text[at : at + 2]
            at += 2
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character.isspace():
            if word:
                words.append(word)
            word = ""
            at += 1
            continue
        word += character
        at += 1
    return [*words, word] if word else words
