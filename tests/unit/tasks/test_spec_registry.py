"""The registries of the format description, as written."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout.core.config.document import read_document
from rollout.core.errors import ConfigError
from rollout.core.tasks.registry import Origin, Registry, registry_of

DATA = Path(__file__).parents[2] / "data"
NAME = "example multi version dataset"


@pytest.fixture
def registry() -> Registry:
    return registry_of(read_document(DATA / "spec_registry.json"), Origin("registry.json"))


def test_every_version_of_a_dataset_is_listed(registry: Registry) -> None:
    assert [(info.name, info.version, info.task_count) for info in registry.infos()] == [
        (NAME, "1.0", 1), (NAME, "2.0", 1), (NAME, "alpha", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(("version", "found"), [(None, "1.0"), ("2.0", "2.0"), ("alpha", "alpha")])
def test_a_version_is_found_and_the_first_without_one(registry: Registry, version: str | None, found: str) -> None:
    dataset = registry.find(NAME, version)
    assert dataset.version_text == found
    assert dataset.tasks[0].git_url == "https://github.com/laude-institute/harbor.git"


def test_the_shortened_example_is_refused_where_it_is_shortened() -> None:
    path = DATA / "spec_registry_shortened.json"
    line = path.read_text("utf-8").splitlines().index("            ...") + 1
    with pytest.raises(ConfigError, match=rf"spec_registry_shortened\.json:{line}: is not JSON"):
        read_document(path)
