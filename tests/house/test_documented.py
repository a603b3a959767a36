"""What a user or a plugin author can name is in the documentation."""

from __future__ import annotations

import ast
import re

import pytest

from house.sources import ROOT, modules, tree, within
from rollout.core.hooks import HOOKS
from rollout.core.plugins import CORE, KINDS, list_plugins

DOCS = {path.name: path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
EVERYTHING = "\n".join(DOCS.values())
COMMANDS = [info.name for info in list_plugins("commands") if info.dist == CORE]


def variables() -> set[str]:
    """Names of the variables that Rollout reads or sets, as its sources spell them."""
    pattern = re.compile(r"_?ROLLOUT_[A-Z][A-Z_]*[A-Z]")
    found = set()
    for module in modules():
        if within(module, "rollout.testing"):
            continue
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and pattern.fullmatch(node.value):
                found.add(node.value)
    return {name for name in found if not name.startswith("_")}


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_explained_with_its_arguments(name: str) -> None:
    lines = [line for line in DOCS["plugins.md"].splitlines() if name in line and all(word in line for word in HOOKS[name])]
    assert lines, f"{name}({', '.join(HOOKS[name])}) is not in docs/plugins.md"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_heading(name: str) -> None:
    assert re.search(rf"^#+ .*`?rollout {name}\b", DOCS["cli.md"], re.MULTILINE)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_plugin_is_explained(kind: str) -> None:
    assert KINDS[kind] in DOCS["plugins.md"]


@pytest.mark.parametrize("name", sorted(variables()))
def test_every_variable_is_explained(name: str) -> None:
    assert name in EVERYTHING
