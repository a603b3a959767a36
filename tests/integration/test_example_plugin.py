"""Somebody else's plugin, installed as anybody would: listed, checked, explained, used in a job, and its mistakes reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distributions import install_metric
from integration.jobs import command, environ, trial_results, write_job, write_task

PLUGIN = Path(__file__).parents[1] / "example_plugin"
CHECK_GREETING = """#!/bin/bash
if [ "$(cat /app/greeting.txt)" = "good morning, it's \\$HOME" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example plugin installed in it; needs neither network nor a change to this interpreter's packages."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--target", str(folder), str(PLUGIN)], check=True, timeout=300)
    return folder


def rollout(folder: Path, *arguments: str | Path, site: Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        env=environ(folder, PYTHONPATH=str(site)),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_it_is_listed_with_its_distribution_and_version(site: Path, tmp_path: Path) -> None:
    listed = json.loads(rollout(tmp_path, "plugins", "--json", site=site).stdout)
    ours = [(info["kind"], info["name"], info["version"]) for info in listed if info["dist"] == "rollout-example"]
    assert ours == [("agents", "greeter", "1.2.3"), ("metrics", "median", "1.2.3")]


def test_it_passes_the_check(site: Path, tmp_path: Path) -> None:
    done = rollout(tmp_path, "plugins", "metrics", "--check", "--json", site=site)
    assert done.returncode == 0, done.stderr
    assert {info["name"]: info["status"] for info in json.loads(done.stdout)}["median"] == "ok"


def test_its_options_are_explained(site: Path, tmp_path: Path) -> None:
    done = rollout(tmp_path, "plugins", "show", "agents", "greeter", site=site)
    assert "Writes a greeting to a file, whatever the task says." in done.stdout
    assert 'greeting: text (default "hello")\n      What to say.' in done.stdout
    assert "path: text (required)" in done.stdout
    schema = json.loads(rollout(tmp_path, "plugins", "show", "agents", "greeter", "--schema", site=site).stdout)
    options = schema["$defs"]["GreeterOptions"]
    assert options["required"] == ["path"]
    assert options["properties"]["greeting"] == {"type": "string", "default": "hello", "description": "What to say."}


def test_its_name_is_completed(site: Path, tmp_path: Path) -> None:
    variables = {"COMP_WORDS": "rollout plugins show agents gr", "COMP_CWORD": "4", "_ROLLOUT_COMPLETE": "bash_complete"}
    done = subprocess.run(
        command(), env=environ(tmp_path, PYTHONPATH=str(site), **variables), capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["plain,greeter"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "agents[0] (greeter 1.2.3): option 'path' is missing"),
        ({"path": 3}, "agents[0] (greeter 1.2.3): path: expected `str`, got `int`"),
        ({"path": "x", "greting": "hi"}, "no option 'greting' (did you mean 'greeting'?); there are greeting, path"),
    ],
)
def test_wrong_options_stop_the_job_before_anything_starts(
    options: dict[str, object], says: str, site: Path, tmp_path: Path
) -> None:
    write_task(tmp_path / "tasks" / "greet")
    job = write_job(tmp_path, {"agents": [{"name": "greeter", "options": options}]})
    done = rollout(tmp_path, job, site=site)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "jobs").exists()


def test_a_job_that_names_what_is_not_installed_says_what_is(site: Path, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "greet")
    job = write_job(tmp_path, {"agents": [{"name": "greetr"}]})
    done = rollout(tmp_path, job, site=site)
    assert done.returncode == 2
    assert "no agent 'greetr' is installed (did you mean 'greeter'?)" in done.stderr


@pytest.mark.needs("local")
def test_a_job_runs_with_it_and_records_its_version(site: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_task(tmp_path / "tasks" / name, tests=CHECK_GREETING)
    options = {"path": "greeting.txt", "greeting": "good morning, it's $HOME"}
    job = write_job(
        tmp_path,
        {
            "name": "greetings",
            "agents": [{"name": "polite", "type": "greeter", "options": options}],
            "metrics": [{"type": "median"}],
        },
    )
    done = rollout(tmp_path, job, site=site)
    assert done.returncode == 0, done.stderr
    results = trial_results(tmp_path / "jobs" / "greetings")
    assert [result["reward"] for result in results.values()] == [1.0, 1.0]
    assert all(result["plugins"]["rollout-example"] == "1.2.3" for result in results.values())
    result = json.loads((tmp_path / "jobs" / "greetings" / "result.json").read_text())
    medians = [value for report in result["metrics"] for value in report["values"] if value["name"] == "median"]
    assert [(value["value"], value["n"]) for value in medians] == [(1.0, 2)]


def test_its_own_tests_pass_as_its_author_runs_them(site: Path) -> None:
    arguments = ["-q", "-p", "no:cacheprovider", "--rootdir", str(PLUGIN), "-c", str(PLUGIN / "pyproject.toml"), str(PLUGIN)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


class TestBrokenNeighbours:
    """Plugins that are broken, ambiguous or outdated are reported by the check and leave every other command alone."""

    @pytest.fixture
    def broken(self, tmp_path: Path) -> Path:
        folder = tmp_path / "broken"
        install_metric(folder, "rollout-good", "good")
        install_metric(folder, "rollout-new", "new", api_version=(99, 0))
        install_metric(folder, "rollout-old", "old", api_version=(0, 9))
        install_metric(folder, "rollout-exit", "exit")
        (folder / "rollout_exit.py").write_text("raise SystemExit('goodbye')")
        return folder

    def test_the_check_names_each_and_exits_1(self, broken: Path, tmp_path: Path) -> None:
        done = rollout(tmp_path, "plugins", "metrics", "--check", site=broken)
        assert done.returncode == 1
        lines = done.stderr.strip().splitlines()
        assert len(lines) == 3
        assert "metric 'exit' (rollout_exit:Count from rollout-exit 0.1.0) cannot be imported: SystemExit: goodbye" in lines
        assert any("needs plugin API 99.0" in line and "upgrade rollout-core" in line for line in lines)
        assert any("was written for plugin API 0.9" in line and "upgrade the plugin" in line for line in lines)
        assert "good" in done.stdout

    def test_listing_succeeds(self, broken: Path, tmp_path: Path) -> None:
        done = rollout(tmp_path, "plugins", site=broken)
        assert (done.returncode, done.stderr) == (0, "")
        assert "rollout-exit" in done.stdout

    def test_a_job_that_names_none_of_them_is_not_disturbed(self, broken: Path, tmp_path: Path) -> None:
        write_task(tmp_path / "tasks" / "greet")
        done = rollout(tmp_path, write_job(tmp_path, {}), "--dry-run", site=broken)
        assert done.returncode == 0, done.stderr
