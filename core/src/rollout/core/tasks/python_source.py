"""Python functions that job files and tasks name: whether they are there, told from the source, without running any of it."""

from __future__ import annotations

import ast
import inspect
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import NamedTuple

from rollout.core.types import TaskFault

_AT_RUN_TIME = frozenset({"globals", "exec", "setattr", "vars", "locals", "__getattr__"})
"""A module that uses one of these may have names that its source does not show."""


class FoundFunction(NamedTuple):
    """What a name means in a source file."""

    fault: TaskFault | None
    file: Path | None = None
    line: int | None = None
    signature: inspect.Signature | None = None
    """Of a plain function; None of anything else, or when only running the module would tell."""


def function_in_file(file: Path, function: str) -> FoundFunction:
    """Look for `function` (or `name.attribute`) in a Python file."""
    try:
        status = file.stat()
    except OSError as error:
        return FoundFunction(TaskFault(message=error.strerror or "cannot be read", file=file))
    return _function_in_file(file, function, (status.st_mtime_ns, status.st_size))


def function_in_module(module: str, function: str, search: Sequence[Path] = ()) -> FoundFunction:
    """Look for `function` in a module that could be imported with the folders `search` first in `sys.path`."""
    found = _located(module, search)
    if isinstance(found, str):
        return FoundFunction(TaskFault(message=found))
    return FoundFunction(None) if found is None else function_in_file(found, function)


@lru_cache(maxsize=1024)
def _function_in_file(file: Path, function: str, stamp: tuple[int, int]) -> FoundFunction:
    try:
        source = file.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source, str(file))
            compile(tree, str(file), "exec")
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        return FoundFunction(TaskFault(message=f"is not Python: {getattr(error, 'msg', error)}", file=file, line=line))
    except (OSError, RecursionError) as error:
        return FoundFunction(TaskFault(message=f"cannot be read: {error}", file=file))
    name, _, rest = function.partition(".")
    defined = [node for node in _at_the_top(tree) if name in _names(node)]
    if not defined:
        if any(isinstance(node, ast.Name | ast.FunctionDef) and _called(node) in _AT_RUN_TIME for node in ast.walk(tree)) or any(
            "*" in _names(node) or (isinstance(node, ast.Global) and name in node.names) for node in ast.walk(tree)
        ):
            return FoundFunction(None)
        return FoundFunction(TaskFault(message=f"has no `{name}`", file=file))
    last = defined[-1]
    is_plain = (
        len(defined) == 1 and isinstance(last, ast.FunctionDef | ast.AsyncFunctionDef) and not last.decorator_list and not rest
    )
    return FoundFunction(None, file, last.lineno, _signature(last.args) if is_plain else None)  # type: ignore[attr-defined]


def _located(module: str, search: Sequence[Path]) -> Path | str | None:
    """The source file of a module, what is wrong with its name, or None when that cannot be told."""
    spec: ModuleSpec | None = None
    places: list[str] | None = None
    known = ""
    for part in module.split("."):
        full = f"{known}.{part}" if known else part
        if known and places is None:
            return f"there is no Python module `{module}`: `{known}` is no package"
        try:
            spec = _spec(full, [str(folder) for folder in search] if not known else [], places)
            if spec is None:
                return f"there is no Python module `{full}`"
            places = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
        except (ImportError, KeyError, AttributeError, ValueError):
            return None  # a package without __init__.py in one of its like, or somebody's own way to import
        known = full
    file = Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None
    return file if file is not None and file.suffix == ".py" and file.is_file() else None


def _spec(name: str, first: list[str], places: list[str] | None) -> ModuleSpec | None:
    if first and (found := PathFinder.find_spec(name, first)) is not None and found.origin is not None:
        return found
    for finder in sys.meta_path:
        if (found := finder.find_spec(name, places)) is not None:
            return found
    return PathFinder.find_spec(name, first) if first else None


def _at_the_top(tree: ast.AST) -> Iterator[ast.AST]:
    """The statements that make names of the module: those in functions and classes do not."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _at_the_top(node)


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    return []


def _called(node: ast.Name | ast.FunctionDef) -> str:
    return node.id if isinstance(node, ast.Name) else node.name


def _signature(args: ast.arguments) -> inspect.Signature:
    kinds, made = inspect.Parameter, []
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + args.defaults
    for index, (arg, default) in enumerate(zip(positional, defaults, strict=True)):
        kind = kinds.POSITIONAL_ONLY if index < len(args.posonlyargs) else kinds.POSITIONAL_OR_KEYWORD
        made.append(kinds(arg.arg, kind, default=kinds.empty if default is None else ...))
    if args.vararg is not None:
        made.append(kinds(args.vararg.arg, kinds.VAR_POSITIONAL))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        made.append(kinds(arg.arg, kinds.KEYWORD_ONLY, default=kinds.empty if default is None else ...))
    if args.kwarg is not None:
        made.append(kinds(args.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(made)
