"""What is distributed: a wheel that is complete, and works where nothing else of this checkout is."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tomli

from house.sources import ROOT, SOURCE
from rollout.core.plugins import CORE, KINDS, list_plugins, load

PROJECT = tomli.loads((ROOT / "core" / "pyproject.toml").read_text())["project"]
BUILTINS = [info for info in list_plugins() if info.dist == CORE]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT / "core")]
    subprocess.run(build, check=True, timeout=300)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_source_file_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    assert names == sources
    assert {"rollout/py.typed", "rollout/__init__.pyi", "rollout/testing/__init__.pyi"} <= names


def test_the_wheel_names_the_plugins_that_are_listed(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    written = configparser.ConfigParser(delimiters=("=",))
    written.optionxform = str  # type: ignore[assignment,method-assign]
    written.read_string(archive.read(name).decode())
    for kind, group in KINDS.items():
        listed = {info.name: info.target for info in list_plugins(kind) if info.dist == CORE}
        assert listed == (dict(written[group]) if group in written else {}), f"install again: {group} changed"


def test_the_wheel_works_on_its_own(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([*PIP, "install", "--no-deps", "--no-index", "--target", str(tmp_path), str(wheel)], check=True, timeout=300)
    where = "import rollout; print(rollout.__file__)"
    for arguments, says in [
        (["-c", where], str(tmp_path)),
        (["-m", "rollout", "--version"], f"rollout {PROJECT['version']}"),
        (["-m", "rollout", "plugins"], "oracle"),
        (["-m", "rollout", "--help"], "Commands:"),
    ]:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert says in done.stdout
        assert done.stderr == ""


@pytest.mark.parametrize(
    "info", [info for info in list_plugins() if info.dist == CORE], ids=lambda info: f"{info.kind}-{info.name}"
)
def test_every_builtin_loads_and_fulfils_its_contract(info: object) -> None:
    assert load(info).info == info  # type: ignore[arg-type]


def test_the_check_of_the_builtins_passes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rollout", "plugins", "--check"],
        env={**os.environ, "ROLLOUT_PLUGINS": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_dependencies_are_the_ones_that_were_chosen() -> None:
    names = {requirement.partition(">=")[0] for requirement in PROJECT["dependencies"]}
    assert names == {"click", "msgspec", "platformdirs", "pluggy", "pyyaml", "rich", "stevedore", "tomli"}
    assert all(">=" in requirement for requirement in PROJECT["dependencies"])


def test_every_member_of_the_workspace_is_installed_for_development() -> None:
    members = tomli.loads((ROOT / "pyproject.toml").read_text())["tool"]["rollout"]["workspace"]["members"]
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    assert [f"-e ./{member}" for member in members] == [line for line in lines if line.startswith("-e ")]
    for member in members:
        assert (ROOT / member / "pyproject.toml").is_file()
