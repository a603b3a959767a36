"""Habits that a machine can check and the linters do not."""

from __future__ import annotations

import ast
import re
import subprocess

import pytest

from house.sources import ROOT, classes, modules, tree

TEXT_SUFFIXES = (".py", ".pyi", ".md", ".toml", ".yaml", ".yml", ".json", ".txt", ".sh", ".cfg", "Makefile", "Dockerfile", "/run")

FORBIDDEN = {
    "a path of one machine": "/" + r"work/(main|shared)|\.py" + "env/",
    "a package index": "py" + r"pi\.(org|python)|pythonho" + "sted",
}


def tracked_text() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.splitlines() if name.endswith(TEXT_SUFFIXES) and (ROOT / name).is_file()]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_names(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    wrong = []
    for name in tracked_text():
        for number, line in enumerate((ROOT / name).read_text("utf-8", "replace").splitlines(), 1):
            if pattern.search(line):
                wrong.append(f"{name}:{number}: {line.strip()[:100]}")
    assert not wrong, "\n".join(wrong)


def test_every_module_begins_by_saying_what_lives_in_it() -> None:
    wrong = [module for module in modules() if not (ast.get_docstring(tree(module)) or "").strip()]
    assert not wrong, wrong


def test_structs_say_that_they_are_frozen_and_keyword_only() -> None:
    wrong = []
    for module, node in classes():
        if any(ast.unparse(base) in ("Struct", "Event") for base in node.bases):
            said = {keyword.arg for keyword in node.keywords if ast.unparse(keyword.value) == "True"}
            if not {"frozen", "kw_only"} <= said:
                wrong.append(f"{module}.{node.name}")
    assert not wrong, wrong


def test_no_module_is_called_after_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "base", "common", "manager", "misc"}
    assert not [module for module in modules() if vague & set(module.split("."))]


def test_everything_is_caught_at_boundaries_alone() -> None:
    """`except Exception` and wider, in the places that are there for it."""
    allowed = {
        "rollout.core.errors",  # boundary()
        "rollout.core.aio",  # teardown that has to finish
        "rollout.core.plugins",  # importing foreign code
        "rollout.core.trial.rollout",  # a trial's outermost boundary
        "rollout.core.trial.python_worker",  # somebody else's function, in a process for it
    }
    wide = ("Exception", "BaseException", "None")
    wrong = []
    for module in modules():
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.ExceptHandler) and ast.unparse(node.type or ast.Constant(None)) in wide:
                reraises = any(isinstance(child, ast.Raise) and child.exc is None for child in ast.walk(node))
                if module not in allowed and not reraises:
                    wrong.append(f"{module}:{node.lineno}")
    assert not wrong, wrong


def test_a_home_folder_that_is_not_there_is_no_traceback() -> None:
    """`Path.expanduser` raises RuntimeError for the home of a user who is unknown; that of `os.path` leaves the path."""
    wrong = [
        f"{module}:{node.lineno}"
        for module in modules()
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Attribute) and node.attr == "expanduser" and ast.unparse(node.value) != "os.path"
    ]
    assert not wrong, wrong
