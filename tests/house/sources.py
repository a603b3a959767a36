"""The sources of the distribution, read without importing them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "core" / "src"


class Import(NamedTuple):
    """One import statement, wherever it stands."""

    module: str
    """The importing module."""
    target: str
    """The imported module, or for `from package import module` that module when it is one of ours."""
    name: str | None
    """What is taken from it; None for `import x`."""
    line: int
    lazy: bool
    """Inside a function, or for type checkers alone."""

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


@cache
def modules() -> dict[str, Path]:
    """Module name to file, of everything in the distribution."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text("utf-8"))


@cache
def imports(module: str) -> tuple[Import, ...]:
    """Every import of a module, those inside functions and under TYPE_CHECKING too."""
    return tuple(_imports(module, tree(module), lazy=False))


def all_imports(prefix: str = "rollout") -> Iterator[Import]:
    """Every import of the package `prefix`."""
    for module in modules():
        if within(module, prefix):
            yield from imports(module)


def within(module: str, *packages: str) -> bool:
    """Whether the module is one of the packages or inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for module in modules():
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.ClassDef):
                yield module, node


def _imports(module: str, node: ast.AST, *, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(module, alias.name, None, child.lineno, lazy)
        elif isinstance(child, ast.ImportFrom):
            origin = _origin(module, child)
            for alias in child.names:
                ours = f"{origin}.{alias.name}"
                yield Import(module, ours if ours in modules() else origin, alias.name, child.lineno, lazy)
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from _imports(module, child, lazy=lazy or function or checking)


def _origin(module: str, node: ast.ImportFrom) -> str:
    """The absolute name of what is imported from."""
    if not node.level:
        return node.module or ""
    is_package = modules()[module].name == "__init__.py"
    package = module.split(".")[: len(module.split(".")) - node.level + is_package]
    return ".".join([*package, *([node.module] if node.module else [])])
