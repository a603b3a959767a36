"""`acpx/AGENT`: the agent's own installation and variables, and the protocol."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from integration.jobs import write_job, write_task
from rollout import ConfigError, ExecResult, TrialResult, UsageError, run_job
from rollout.core.job.events import Event, TrialFinished
from rollout.core.plugins import decode_options, find, override
from rollout.testing import FakeEnvironment, FakeWorld, acp_agent
from rollout.testing.suite import Output, agent_context, environment_spec
from rollout_acp.wrapped import AcpxAgent, AcpxOptions, wrapped
from rollout_agents.agent import agent_class
from rollout_agents.manifest import Manifest

SCRIPTED = shlex.join([sys.executable, acp_agent.__file__])


def manifest(**more: object) -> Manifest:
    fields = {"name": "mine", "install": "true", "execute": "false", "acp": f"{SCRIPTED} --do 'env MINE_KEY'", **more}
    return Manifest(**fields)  # type: ignore[arg-type]


async def run(folder: Path, made: Manifest, **agent: object) -> tuple[TrialResult, Path, FakeWorld]:
    write_task(folder / "tasks" / "one")
    results: list[TrialResult] = []

    def on_event(event: Event) -> None:
        if isinstance(event, TrialFinished):
            results.append(event.result)

    job = {"jobs_dir": str(folder / "jobs"), "environment": {"type": "fake"}, "agents": [{"name": "acpx/mine", **agent}]}
    environ = {"ROLLOUT_CACHE_DIR": str(folder / "cache"), "MINE_KEY": "a-Real-Key-0123456789"}
    world = FakeWorld(commands={"pwd": lambda *_: ExecResult(exit_code=0, stdout=b"/tmp\n")}, processes=True)
    with world.installed(), override("agents", "mine", agent_class(made)):
        await run_job(write_job(folder, job), on_event=on_event, environ=environ)
    return results[0], folder / "jobs" / "job" / results[0].trial_id, world


async def test_the_agent_is_installed_as_always_and_spoken_to(tmp_path: Path) -> None:
    made = manifest(requires_env=["MINE_KEY"])
    result, folder, world = await run(tmp_path, made, options={"options": {"args": ["--do", "say done"]}})
    assert (result.error, result.reward, result.agent_name) == (None, 1.0, "acpx/mine")
    scripts = [command.argv[-1].rpartition("/")[2] for command in world.steps("exec")]
    assert "install.sh" in scripts
    wire = (folder / "agent" / "acp.jsonl").read_text()
    assert "[redacted:MINE_KEY]" in wire and "0123456789" not in wire, "it had its variable"
    assert "done" in wire, "it had the job's arguments"


async def test_a_variable_that_it_lacks_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="agent mine needs OTHER_KEY"):
        await run(tmp_path, manifest(requires_env=["OTHER_KEY"]))


async def test_an_environment_without_live_processes_is_refused_before_anything_starts(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    job = {"jobs_dir": str(tmp_path / "jobs"), "environment": {"type": "fake"}, "agents": [{"name": "acp:true"}, {"name": "nop"}]}
    with (
        FakeWorld().installed(),
        pytest.raises(UsageError, match=r"`environment.type: fake` has no live_stdio, and the agent acp:true needs it"),
    ):
        await run_job(write_job(tmp_path, job), environ={"ROLLOUT_CACHE_DIR": str(tmp_path / "cache")})
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize("name", ["claude", "codex", "gemini", "opencode", "openhands", "oh", "pi"])
def test_the_agents_that_are_known_to_speak_it_can_be_prefixed(name: str) -> None:
    plugin, options = wrapped(AcpxOptions(agent=name))
    assert plugin.cls.acp_command(options)


@pytest.mark.parametrize(("name", "inner"), [("claude-agent-acp", "claude"), ("codex-acp", "codex"), ("pi-acp", "pi")])
def test_adapters_are_known_by_their_own_names_and_may_be_prefixed_too(tmp_path: Path, name: str, inner: str) -> None:
    plugin = find("agents", name)
    options = decode_options(plugin, {}, "agent")
    expected = find("agents", inner)
    assert plugin.cls.acp_command(options) == expected.cls.acp_command(expected.cls.options_type())
    assert plugin.cls.acp_command(options) == AcpxAgent.acp_command(AcpxOptions(agent=name))
    context = agent_context(FakeEnvironment(FakeWorld(), environment_spec()), tmp_path, instruction="", env={}, sink=Output())
    for agent in (plugin.cls(options, context), AcpxAgent(AcpxOptions(agent=name), context)):
        assert f" {name} " in (agent.shared_install(frozenset()) or ""), "its adapter is installed"


def test_what_can_be_given_over_acp_is_another_thing_than_what_its_own_command_can_be_given() -> None:
    assert AcpxAgent.equipment(AcpxOptions(agent="codex")) == {"stdio", "sse", "streamable-http", "skills"}
    assert find("agents", "codex").cls.equipment(None) == {"stdio", "streamable-http", "skills"}
    assert AcpxAgent.equipment(AcpxOptions(agent="pi-acp")) == {"skills"}
    assert AcpxAgent.equipment(AcpxOptions(agent="openhands")) == {"stdio", "sse", "streamable-http"}


def test_a_version_of_an_agent_that_has_an_adapter_is_refused() -> None:
    with pytest.raises(ConfigError, match="agent codex speaks ACP by an adapter, which has versions of its own"):
        AcpxOptions(agent="codex", options={"version": "1"})


async def test_an_agent_without_the_protocol_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="agent mine does not speak ACP"):
        await run(tmp_path, manifest(acp=""))
