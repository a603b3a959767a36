"""The public names: complete, the same for Python and for type checkers, and each one there."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import rollout
import rollout.testing
from rollout.core import errors, protocols

PACKAGES = [rollout, rollout.testing]


def stub_names(package: object) -> dict[str, str | None]:
    """The names of the package's stub, and the module each comes from."""
    stub = ast.parse(Path(inspect.getfile(package)).with_suffix(".pyi").read_text())  # type: ignore[arg-type]
    names: dict[str, str | None] = {}
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            assert all(alias.asname == alias.name for alias in node.names), "a stub exports only `x as x`"
            names.update(dict.fromkeys((alias.name for alias in node.names), node.module))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = None
    return names


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_name_exists(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name) is not None
        assert name in dir(package)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_type_checkers_see_the_same_names_from_the_same_places(package: object) -> None:
    names = stub_names(package)
    assert set(names) == set(package.__all__)  # type: ignore[attr-defined]
    for name, module in names.items():
        if module is not None:
            assert getattr(importlib.import_module(module), name) is getattr(package, name)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_another_name_is_an_attribute_error(package: object) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        package.no_such_name  # type: ignore[attr-defined]  # noqa: B018


def test_every_error_is_public() -> None:
    defined = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, errors.RolloutError)}
    assert defined <= set(rollout.__all__)


def test_everything_that_a_plugin_implements_is_public() -> None:
    defined = {
        name
        for name, value in vars(protocols).items()
        if not name.startswith("_") and inspect.isclass(value) and value.__module__ == protocols.__name__
    }
    assert defined <= set(rollout.__all__)


def test_every_error_is_in_the_picture_of_the_tree() -> None:
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, errors.RolloutError):
            assert f" {name} " in f" {errors.__doc__} ".replace("\n", " "), f"{name} is missing in the docstring of errors.py"


def test_the_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    from rollout.version import installed_version

    assert rollout.__version__ == version("rollout-core") == installed_version()
