"""Every manifest keeps the contract of agents."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import real_agents
from integration.jobs import rollout, write_job, write_task
from pages import blocks
from rollout import ConfigError, PluginError
from rollout.testing import AgentSuite
from rollout_agents import ManifestAgent, ManifestOptions, agent_from, manifests
from rollout_agents.agent import FileAgent, FileOptions, execute_script, install_script
from rollout_agents.manifest import decode_manifest

SHELLS = [shell for shell in (["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(shell[0])]
PACKAGE_MANAGERS = {
    "apk": "apk add --no-cache curl ca-certificates",
    "apt-get": "apt-get install -q -y --no-install-recommends curl ca-certificates",
    "dnf": "dnf install -y -q curl ca-certificates",
    "microdnf": "microdnf install -y curl ca-certificates",
    "yum": "yum install -y -q curl ca-certificates",
}
"""To the last of its commands that brings curl."""
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
        for shell in SHELLS:
            done = subprocess.run([*shell, "-n", str(path)], capture_output=True, text=True, check=False)
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


def functions(folder: Path, shell: list[str], script: str, **commands: str) -> subprocess.CompletedProcess[str]:
    """The installer's functions at work, as root, in an image that has these commands and the usual ones beside them."""
    programs = folder / "bin"
    programs.mkdir()
    usual = ("mkdir", "cat", "chmod", "mv", "rm", "dirname", "uname", "ln", "tar", "gzip", "rmdir")
    for name in usual:
        (programs / name).symlink_to(shutil.which(name) or "")
    for name, text in {"id": "echo 0", **commands}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    text = (files("rollout_agents") / "install.sh").read_text("utf-8").replace("prefix=/opt/rollout", f"prefix={folder}/opt")
    argv = [shutil.which(shell[0]) or "", *shell[1:], "-c", f"{text}\nversion=1.0\n{script}"]
    return subprocess.run(argv, env={"PATH": str(programs), "HOME": str(folder)}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("manager", PACKAGE_MANAGERS)
@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_an_image_without_curl_gets_it_from_its_package_manager(tmp_path: Path, shell: list[str], manager: str) -> None:
    log = tmp_path / "log"
    fake = f'echo {manager} "$@" >> {log}\nif [ "$1" != update ]; then printf \'#!/bin/sh\\n\' > {tmp_path}/bin/curl; '
    fake += f"chmod 755 {tmp_path}/bin/curl; fi"
    done = functions(tmp_path, shell, "packages curl ca-certificates && has curl && say there", **{manager: fake})
    assert done.returncode == 0, done.stderr
    assert log.read_text().splitlines()[-1] == PACKAGE_MANAGERS[manager]
    assert "install: there" in done.stdout


def test_a_user_without_rights_and_an_unknown_system_are_told_what_is_missing(tmp_path: Path) -> None:
    for name, commands, said in (
        ("user", {"id": "echo 1000"}, "needs git, and only root can install it"),
        ("other", {}, "needs git, and the image has no package manager that is known"),
    ):
        (tmp_path / name).mkdir()
        done = functions(tmp_path / name, SHELLS[0], "packages git", **commands)
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize(("wanted", "is_taken"), [("20", True), ("22", True), ("22.14", True), ("22.15", False), ("24", False)])
def test_the_node_of_an_image_is_taken_when_it_is_new_enough(tmp_path: Path, wanted: str, is_taken: bool) -> None:
    if shutil.which("node") is None:
        pytest.skip("there is no node to compare versions with")
    node = f"exec {shutil.which('node')} -e \"Object.defineProperty(process.versions, 'node', {{value: '22.14.1'}}); $2\""
    script = f'find_node {wanted} && echo "taken: $node_bin"'
    fetched = {"curl": "exit 22", "apt-get": "exit 1"}
    done = functions(tmp_path, ["dash"], script, node=node, npm="true", **fetched)
    assert (f"taken: {tmp_path}/bin" in done.stdout) == is_taken, done.stdout + done.stderr
    assert is_taken or "cannot fetch Node" in done.stderr


def test_the_manifest_of_the_documentation_is_one_of_ten_lines() -> None:
    [block] = [block for block in blocks() if block.title == "my-agent.toml"]
    manifest = decode_manifest(tomllib.loads(block.text), "docs")
    assert manifest.name == "my-agent"
    assert len(block.text.splitlines()) <= 10
    FileAgent.agent_env(FileOptions(manifest=tomllib.loads(block.text)), {"MY_AGENT_API_KEY": SECRET}, {})


@pytest.mark.parametrize("name", manifests.names())
def test_what_is_said_of_an_agent_is_backed_by_a_test(name: str) -> None:
    """Solved a task: one of those that the tests take, or tell to take."""
    manifest = agent_of(name).manifest
    assert (manifest.verified == "task") == (name in real_agents.ALL)
    assert manifest.version != "latest" or manifest.verified == "no"


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
