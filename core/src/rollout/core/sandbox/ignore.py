"""`.dockerignore`: which files of a build context are left out (docs.docker.com, "Build context", ".dockerignore files")."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path


class IgnoreRules:
    """The last rule that matches a path, or a folder it lies in, decides."""

    def __init__(self, text: str = "") -> None:
        self._rules: list[tuple[re.Pattern[str], bool]] = []
        for line in text.removeprefix("\ufeff").splitlines():
            pattern = line.strip()
            if not pattern or pattern.startswith("#"):
                continue
            keep = pattern.startswith("!")
            pattern = posixpath.normpath(pattern.removeprefix("!").strip()).lstrip("/")
            if pattern and pattern != ".":
                self._rules.append((compile_glob(pattern), keep))
        self._exceptions = any(keep for _, keep in self._rules)

    @classmethod
    def of(cls, context: Path) -> IgnoreRules:
        try:
            return cls((context / ".dockerignore").read_text("utf-8", "surrogateescape"))
        except (FileNotFoundError, IsADirectoryError):
            return cls()

    def keeps(self, path: str, *, folder: bool = False) -> bool:
        """Whether a path relative to the context is part of it. A folder is when a `!` rule may bring back what lies in it."""
        parts = path.split("/")
        prefixes = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
        kept = True
        for pattern, keep in self._rules:
            if any(pattern.fullmatch(prefix) for prefix in prefixes):
                kept = keep
        return kept or (folder and self._exceptions)


def compile_glob(pattern: str) -> re.Pattern[str]:
    """Go's path patterns: `*` and `?` stay within a name, `**` crosses folders, `[a-z]` and `[^a-z]`, backslash quotes."""
    out, at = "", 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == "*":
            if pattern[at : at + 1] != "*":
                out += "[^/]*"
                continue
            at += 1
            if pattern[at : at + 1] == "/":
                at += 1
                out += "(?:.*/)?"
            else:
                out += ".*"
        elif character == "?":
            out += "[^/]"
        elif character == "[" and (end := pattern.find("]", at + 1)) > 0:
            body = (
                pattern[at:end]
                .replace("\\", "\\\\")
                .replace("[", "\\[")
                .replace("&", "\\&")
                .replace("~", "\\~")
                .replace("|", "\\|")
            )
            out += f"[{body}]"
            at = end + 1
        else:
            if character == "\\" and at < len(pattern):
                character, at = pattern[at], at + 1
            out += re.escape(character)
    try:
        return re.compile(out, re.DOTALL)
    except re.error:  # a range like [z-a]: only its own text matches
        return re.compile(re.escape(pattern))
