"""Which part of Rollout may import which: docs/architecture.md says why."""

from __future__ import annotations

import ast
import sys

import pytest

from house.sources import SOURCE, Import, all_imports, imports, modules, tree, within

LAYERS: dict[str, tuple[str, ...]] = {
    "ground": (
        "types",
        "errors",
        "quantity",
        "aio",
        "files",
        "records",
        "archive",
        "capture",
        "fields",
        "dockerfile",
        "live",
        "notes",
        "egress",
        "pool",
        "sandbox",
        "episodes",
        "atif",
        "trajectories",
    ),
    "protocols": ("protocols",),
    "plugins": ("plugins", "plugin_contract", "plugin_hints", "drivers", "hooks", "hook_marker"),
    "configuration": ("config", "tasks"),
    "trial": ("trial",),
    "job": ("job",),
}
"""The parts of rollout.core, the lowest first. A part imports its own layer and those below."""

CORE_LIBRARIES = {"msgspec", "pluggy", "stevedore", "yaml", "tomli", "platformdirs"}
CLI_LIBRARIES = CORE_LIBRARIES | {"click", "rich"}
TESTING_LIBRARIES = CORE_LIBRARIES | {"pytest", "pytest_asyncio"}

HOMES = {
    "tomli": "rollout.core.config.document",
    "stevedore": "rollout.core.drivers",
    "rich": "rollout.cli.display.live",
    "platformdirs": "rollout.core.tasks.cache",
}
"""Libraries that one file imports, so that they can be exchanged there."""


def layer(module: str) -> int:
    """The number of the layer of a module of rollout.core."""
    part = module.split(".")[2]
    return next(number for number, parts in enumerate(LAYERS.values()) if part in parts)


def offences(found: list[Import]) -> str:
    return "\n".join(map(str, found))


def foreign(prefix: str, allowed: set[str]) -> list[Import]:
    """Imports by `prefix` of what is neither ours, nor the standard library's, nor allowed."""
    known = allowed | set(sys.stdlib_module_names) | {"rollout"}
    return [found for found in all_imports(prefix) if found.target.partition(".")[0] not in known]


def reaches(prefix: str, *targets: str) -> list[Import]:
    return [found for found in all_imports(prefix) if within(found.target, *targets)]


def test_every_part_of_core_has_a_layer() -> None:
    parts = {module.split(".")[2] for module in modules() if within(module, "rollout.core") and module != "rollout.core"}
    assert parts == {part for layer in LAYERS.values() for part in layer}


def test_nothing_in_core_imports_upwards() -> None:
    wrong = [
        found
        for found in all_imports("rollout.core")
        if within(found.target, "rollout.core") and found.target != "rollout.core" and layer(found.target) > layer(found.module)
    ]
    assert not wrong, offences(wrong)


def test_core_imports_neither_builtins_nor_interfaces_nor_tests() -> None:
    wrong = reaches("rollout.core", "rollout.builtin", "rollout.cli", "rollout.api", "rollout.testing", "rollout.__main__")
    assert not wrong, offences(wrong)


@pytest.mark.parametrize(
    ("prefix", "allowed"),
    [
        ("rollout.core", CORE_LIBRARIES),
        ("rollout.builtin", CORE_LIBRARIES),
        ("rollout.api", {"msgspec"}),
        ("rollout.cli", CLI_LIBRARIES),
        ("rollout.testing", TESTING_LIBRARIES),
    ],
)
def test_only_the_libraries_that_were_chosen_are_imported(prefix: str, allowed: set[str]) -> None:
    assert not foreign(prefix, allowed), offences(foreign(prefix, allowed))


def test_builtins_import_core_alone() -> None:
    wrong = [
        found for found in reaches("rollout.builtin", "rollout") if not within(found.target, "rollout.core", "rollout.builtin")
    ]
    assert not wrong, offences(wrong)


def test_builtins_do_not_import_each_other() -> None:
    def plugin(module: str) -> str:
        return ".".join(module.split(".")[:3])

    shared = {"rollout.builtin.download"}
    wrong = [
        found
        for found in reaches("rollout.builtin", "rollout.builtin")
        if plugin(found.target) != plugin(found.module) and plugin(found.target) not in shared
    ]
    assert not wrong, offences(wrong)


def test_the_api_imports_core_alone() -> None:
    wrong = [found for found in reaches("rollout.api", "rollout") if not within(found.target, "rollout.core")]
    assert not wrong, offences(wrong)


def test_nobody_imports_the_command_line() -> None:
    wrong = [
        found
        for found in all_imports()
        if within(found.target, "rollout.cli") and not within(found.module, "rollout.cli", "rollout.__main__")
    ]
    assert not wrong, offences(wrong)


def test_nobody_imports_the_test_suites() -> None:
    wrong = [
        found
        for found in all_imports()
        if within(found.target, "rollout.testing") and not within(found.module, "rollout.testing")
    ]
    assert not wrong, offences(wrong)


def test_private_names_stay_where_they_are() -> None:
    wrong = [
        found
        for found in all_imports()
        if within(found.target, "rollout") and found.name is not None and found.name.startswith("_") and found.name[:2] != "__"
    ]
    assert not wrong, offences(wrong)


@pytest.mark.parametrize(("library", "home"), HOMES.items())
def test_a_library_with_a_home_is_imported_there_alone(library: str, home: str) -> None:
    users = {found.module for found in all_imports() if found.target.partition(".")[0] == library}
    assert users == {home}


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph = {module: {found.target for found in imports(module) if not found.lazy} & set(modules()) for module in modules()}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module in done:
            return
        for target in graph[module]:
            visit(target, (*path, module))
        done.add(module)

    for module in modules():
        visit(module, ())


def test_only_the_command_line_prints() -> None:
    wrong = [
        f"{module}:{node.lineno}"
        for module in modules()
        if not within(module, "rollout.cli", "rollout.__main__")
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not wrong, wrong


def test_no_module_takes_the_place_of_a_function() -> None:
    assert not (SOURCE / "rollout" / "rollout.py").exists()
    assert not (SOURCE / "rollout" / "rollout").exists()
