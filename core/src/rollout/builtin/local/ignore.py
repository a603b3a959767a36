"""`.dockerignore`: which files of a build context are left out (docs.docker.com, "Build context", ".dockerignore files")."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path


def read_ignore(context: Path) -> Callable[[str], bool]:
    """A predicate on paths relative to `context`: whether the file is part of it."""
    try:
        text = (context / ".dockerignore").read_text("utf-8", "surrogateescape")
    except (FileNotFoundError, IsADirectoryError):
        return lambda path: True
    return ignore_rules(text)


def ignore_rules(text: str) -> Callable[[str], bool]:
    """As `read_ignore`, from the file's text. The last rule that matches a path, or a folder it lies in, decides."""
    rules = []
    for line in text.removeprefix("\ufeff").splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        keep = pattern.startswith("!")
        pattern = posixpath.normpath(pattern.removeprefix("!").strip()).lstrip("/")
        if pattern and pattern != ".":
            rules.append((compile_glob(pattern), keep))
    exceptions = any(keep for _, keep in rules)

    def kept(path: str) -> bool:
        parts = path.split("/")
        prefixes = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
        result = True
        for pattern, keep in rules:
            if any(pattern.fullmatch(prefix) for prefix in prefixes):
                result = keep
        return result

    kept.has_exceptions = exceptions  # type: ignore[attr-defined]
    return kept


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
