"""Functions that are named in job files and tasks: found in the source, which is not run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rollout.core.tasks.python_source import function_in_file, function_in_module

THERE = {
    "function": "def f(): ...",
    "async": "async def f(): ...",
    "class": "class f: ...",
    "value": "f = 1",
    "unpacked": "g, f = 1, 2",
    "import": "from os import path as f",
    "star": "from os import *",
    "conditional": "try:\n    import x\nexcept ImportError:\n    def f(): ...",
    "global": "def g():\n    global f\n    f = 1\ng()",
    "made at run time": "globals()['f'] = 1",
    "module getattr": "def __getattr__(name): ...",
    "with a warning": "f = '\\d'",
    "attribute": "class f: ...",
}
NOT_THERE = {
    "other": "def g(): ...",
    "method": "class g:\n    def f(self): ...",
    "local": "def g():\n    f = 1",
    "used": "print(f)",
    "syntax": "def f(:",
    "return outside": "f = 1\nreturn",
    "NUL": "f = 1\0",
    "deep": f"f = {'(' * 300}1{')' * 300}",
}


@pytest.mark.parametrize("case", [*THERE, *NOT_THERE])
def test_a_name_is_there_when_running_the_module_would_make_it(tmp_path: Path, case: str) -> None:
    file = tmp_path / "m.py"
    file.write_text((THERE | NOT_THERE)[case])
    found = function_in_file(file, "f.g" if case == "attribute" else "f")
    assert (found.fault is None) == (case in THERE), found.fault


def test_a_module_is_looked_for_without_importing_anything(tmp_path: Path) -> None:
    for file in ("pack/__init__.py", "pack/inner/__init__.py", "pack/inner/mod.py", "loose/mod.py", "single.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(
            "def f(a, /, b=1, *c, d, e=2, **g): ...\n" if file.endswith("mod.py") else "raise SystemExit\n"
        )

    def fault(name: str) -> str | None:
        module, _, function = name.partition(":")
        found = function_in_module(module, function, [tmp_path])
        return None if found.fault is None else found.fault.message

    assert str(function_in_module("pack.inner.mod", "f", [tmp_path]).signature) == "(a, /, b=Ellipsis, *c, d, e=Ellipsis, **g)"
    assert (fault("pack.inner.mod:f"), fault("loose.mod:f"), fault("json:loads"), fault("math:sqrt")) == (None,) * 4
    assert fault("pack.inner.mod:h") == "has no `h`"
    assert fault("pack.outer:f") == "there is no Python module `pack.outer`"
    assert fault("nowhere.mod:f") == "there is no Python module `nowhere`"
    assert fault("single.mod:f") == "there is no Python module `single.mod`: `single` is no package"
    assert not {"pack", "loose", "single"} & sys.modules.keys()
