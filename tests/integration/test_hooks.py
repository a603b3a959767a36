"""Hooks of an installed distribution in a real run of the command: told in order, and unable to break it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from distributions import install
from integration.jobs import command, environ, trial_results, write_job, write_task
from rollout.core.hooks import HOOKS

FAKES = {
    "rollout.environments": {"fake": "rollout.testing.fakes:FakeBackend"},
    "rollout.agents": {"fake": "rollout.testing.fakes:FakeAgent"},
}

WATCH = """
import asyncio, os
from rollout import hookimpl

def note(*words):
    with open(os.environ["NOTES"], "a") as file:
        print(*words, file=file)

@hookimpl
def rollout_job_planned(job, trials):
    note("planned", job.name, trials)

@hookimpl
async def rollout_job_started(job):
    await asyncio.sleep(0)
    note("started", job.name)

@hookimpl
def rollout_trial_started(trial):
    note("trial", trial.attempt)

@hookimpl
async def rollout_phase(phase, state, trial):
    note(phase, state)

@hookimpl
def rollout_add_result_metadata(trial, result):
    return {"seen": result.reward, "task": trial.task.name}

@hookimpl
async def rollout_trial_finished(result):
    note("finished", result.reward, result.extra["task"])

@hookimpl
def rollout_job_finished(job, result):
    note("over", result.completed_trials)
"""

RAISES = "from rollout import hookimpl\n" + "".join(
    f"@hookimpl\nasync def {name}({', '.join(arguments)}): raise RuntimeError('a hook that fails')\n"
    for name, arguments in HOOKS.items()
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    install(tmp_path / "site", "rollout-fakes", FAKES)
    return tmp_path / "site"


def run(folder: Path, site: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    write_task(folder / "tasks" / "answer")
    job = write_job(folder, {"name": "hooked", "environment": {"type": "fake"}, "agents": [{"name": "fake"}]})
    notes = {"NOTES": str(folder / "notes.txt"), "PYTHONPATH": str(site)}
    return subprocess.run(
        command(job, "--display", "plain"),
        cwd=folder,
        env=environ(folder, **notes, **variables),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_every_hook_is_called_in_order_with_what_it_asks_for(site: Path, tmp_path: Path) -> None:
    install(site, "rollout-watch", {"rollout.hooks": {"watch": "watch"}}, modules={"watch": WATCH})
    done = run(tmp_path, site, ROLLOUT_REQUIRED_HOOKS="watch")
    assert done.returncode == 0, done.stderr
    phases = ["environment_setup", "agent_setup", "agent_execution", "verifier"]
    assert (tmp_path / "notes.txt").read_text().splitlines() == [
        "planned hooked 1",
        "started hooked",
        "trial 1",
        *(f"{phase} {state}" for phase in phases for state in ("started", "ended")),
        "finished 1.0 answer",
        "over 1",
    ]
    (result,) = trial_results(tmp_path / "jobs" / "hooked").values()
    assert result["extra"] == {"seen": 1.0, "task": "answer"}


def test_hooks_that_fail_change_no_result(site: Path, tmp_path: Path) -> None:
    install(site, "rollout-bad", {"rollout.hooks": {"bad": "bad_hooks"}}, modules={"bad_hooks": RAISES})
    done = run(tmp_path, site)
    assert done.returncode == 0, done.stderr
    (result,) = trial_results(tmp_path / "jobs" / "hooked").values()
    assert (result["status"], result["reward"]) == ("scored", 1.0)


def test_a_hook_plugin_that_cannot_be_used_is_a_warning_of_the_job(site: Path, tmp_path: Path) -> None:
    install(site, "rollout-bad", {"rollout.hooks": {"bad": "no_such_module"}})
    done = run(tmp_path, site)
    assert done.returncode == 0, done.stderr
    warnings = json.loads((tmp_path / "jobs" / "hooked" / "result.json").read_text())["warnings"]
    assert any("hook 'bad'" in warning and "cannot be imported" in warning for warning in warnings)
    assert "hook 'bad'" in done.stdout + done.stderr


@pytest.mark.parametrize("module", [None, "raise SystemExit(0)"])
def test_a_required_hook_plugin_that_is_not_there_stops_the_job_before_it_starts(
    module: str | None, site: Path, tmp_path: Path
) -> None:
    if module is not None:
        install(site, "rollout-bad", {"rollout.hooks": {"audit": "audit"}}, modules={"audit": module})
    done = run(tmp_path, site, ROLLOUT_REQUIRED_HOOKS="audit")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "ROLLOUT_REQUIRED_HOOKS" in done.stderr
    assert not (tmp_path / "jobs").exists()
