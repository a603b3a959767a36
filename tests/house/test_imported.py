"""What a command loads: nothing that it does not need, and never a plugin that nobody named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distributions import install

PROBE = """
import json, sys
sys.argv = ["rollout", *sys.argv[1:]]
from rollout.__main__ import main
try:
    main()
except SystemExit:
    pass
print("\\n" + json.dumps(sorted(sys.modules)))
"""

SDKS = ("docker", "paramiko", "spython", "ray", "inspect_ai", "openai", "anthropic", "litellm", "aiohttp", "httpx", "requests")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plugin of every kind that must not be imported."""
    folder = tmp_path_factory.mktemp("site")
    kinds = (
        "environments",
        "agents",
        "verifiers",
        "rewards",
        "metrics",
        "registries",
        "executors",
        "exporters",
        "commands",
        "hooks",
    )
    groups = {f"rollout.{kind}": {"trap": "trap:Trap"} for kind in kinds}
    install(folder, "rollout-trap", groups, modules={"trap": "raise SystemExit('a plugin was imported')"})
    return folder


def modules_after(site: Path, *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "arguments", [("--version",), ("--help",), ("plugins",), ("plugins", "agents", "--json"), ("completion", "bash")]
)
def test_no_plugin_and_no_sdk_is_imported(arguments: tuple[str, ...], site: Path) -> None:
    loaded = modules_after(site, *arguments)
    assert "trap" not in loaded
    assert not {name for name in loaded if name.startswith("rollout.builtin.")}
    assert not {name for name in loaded if name.partition(".")[0] in SDKS}


def test_the_version_needs_neither_click_nor_metadata(site: Path) -> None:
    loaded = modules_after(site, "--version")
    assert not loaded & {"click", "importlib.metadata", "msgspec", "typing"}


@pytest.mark.parametrize("arguments", [("--help",), ("plugins",)])
def test_help_and_the_list_of_plugins_leave_the_engine_alone(arguments: tuple[str, ...], site: Path) -> None:
    loaded = modules_after(site, *arguments)
    assert not loaded & {"asyncio", "rich", "yaml", "tomli", "stevedore", "pluggy", "platformdirs", "rollout.core.job.planner"}


def test_a_command_imports_no_other(site: Path) -> None:
    loaded = modules_after(site, "plugins")
    commands = {name for name in loaded if name.startswith("rollout.cli.") and name.count(".") == 2}
    assert not commands & {"rollout.cli.run", "rollout.cli.show", "rollout.cli.tasks", "rollout.cli.config"}
