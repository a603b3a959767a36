"""Every manifest keeps the contract of agents."""

from __future__ import annotations

import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from integration.jobs import rollout, write_job, write_task
from rollout import ConfigError, PluginError
from rollout.testing import AgentSuite
from rollout_agents import ManifestAgent, ManifestOptions, agent_from, manifests
from rollout_agents.agent import FileAgent, FileOptions, execute_script, install_script
from rollout_agents.manifest import decode_manifest

SECRET = "sk-Zq81-not-a-real-key-7Hd2"


def agent_of(name: str) -> type[ManifestAgent]:
    found: type[ManifestAgent] = getattr(import_module("rollout_agents.manifests"), name.replace("-", "_"))
    return found


def suite_of(name: str) -> type[AgentSuite]:
    agent = agent_of(name)
    env = {entry.split("|")[0]: SECRET for entry in agent.manifest.requires_env}
    options = {"model": "some/model", "args": ["--one", "two words"]}
    body: dict[str, Any] = {"agent": agent, "env": env, "options": options, "install_for_real": False}
    return type(f"Test{agent.__name__}", (AgentSuite,), body)


for _name in manifests.names():
    globals()[f"Test{_name.title().replace('-', '')}"] = suite_of(_name)


@pytest.mark.parametrize("name", manifests.names())
def test_scripts_are_posix_and_shellcheck_finds_nothing(name: str, tmp_path: Path) -> None:
    manifest = agent_of(name).manifest
    scripts = {"install.sh": install_script(manifest), "execute.sh": execute_script(manifest, ManifestOptions(args=["x"]))}
    for file, text in scripts.items():
        path = tmp_path / file
        path.write_text(text)
        for shell in ("dash", "bash"):
            if shutil.which(shell):
                done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stderr
        if shutil.which("shellcheck"):
            argv = ["shellcheck", "--shell=sh", "--severity=error", str(path)]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", manifests.names())
def test_a_missing_variable_is_named_before_anything_starts(name: str) -> None:
    agent = agent_of(name)
    options = ManifestOptions()
    for entry in agent.manifest.requires_env:
        first = entry.split("|")[0]
        with pytest.raises(ConfigError, match=first):
            agent.agent_env(options, {}, {})
    given = {entry.split("|")[0]: SECRET for entry in agent.manifest.requires_env}
    from_host = agent.agent_env(options, {}, given)
    assert SECRET not in str(from_host), "a value of the host's is not to be written down"
    for variable in given:
        assert from_host[variable] == f"${{{variable}}}"
    assert not set(agent.agent_env(options, given, {})) & set(given), "what the job gives stays as it is"


def test_the_variables_that_all_agents_of_a_job_lack_are_named_at_once(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "a")
    job = write_job(tmp_path, {"agents": [{"name": "amp"}, {"name": "cursor"}, {"name": "oracle"}]})
    done = rollout(tmp_path, "run", job, AMP_API_KEY="", CURSOR_API_KEY="")
    assert done.returncode == 2
    for name, variable in (("amp", "AMP_API_KEY"), ("cursor", "CURSOR_API_KEY")):
        assert f"agent {name} needs {variable}: set it" in done.stderr
    assert not (tmp_path / "jobs").exists()


def test_a_reader_that_nobody_has_stops_a_manifest_before_it_starts() -> None:
    manifest = {"name": "mine", "execute": "true", "trajectory": "nowhere"}
    with pytest.raises(PluginError, match="no reader 'nowhere' is installed"):
        FileAgent.agent_env(FileOptions(manifest=manifest), {}, {})


@pytest.mark.parametrize("name", manifests.names())
def test_an_installation_is_shared_whatever_is_secret(name: str) -> None:
    agent = agent_of(name)
    script = install_script(agent.manifest)
    variables = {variable for entry in agent.manifest.requires_env for variable in entry.split("|")}
    assert not [variable for variable in variables if variable in script], "an installer has no use for keys"


def test_a_manifest_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown field `instal`"):
        decode_manifest({"name": "x", "execute": "true", "instal": "true"}, "x.toml")


def test_a_base_url_that_an_agent_cannot_be_told_is_refused() -> None:
    with pytest.raises(ConfigError, match="leave `base_url` out"):
        agent_of("amp").agent_env(ManifestOptions(base_url="http://x"), {}, {"AMP_API_KEY": "x"})


def test_a_distribution_with_an_agent_as_data_needs_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "their_agent"
    package.mkdir()
    (package / "theirs.toml").write_text('name = "theirs"\nexecute = "echo hi"\n')
    (package / "__init__.py").write_text(
        "from rollout_agents import agent_from\n\ntheirs = agent_from(__name__, 'theirs.toml')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert import_module("their_agent").theirs.manifest.name == "theirs"
    assert agent_from("their_agent", "theirs.toml").manifest.execute == "echo hi"


class TestFile(AgentSuite):
    agent = FileAgent
    options = {"manifest": {"name": "mine", "install": "true", "execute": "echo hi"}}
    env = {"MINE_API_KEY": SECRET}
