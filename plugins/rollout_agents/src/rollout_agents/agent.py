"""The agent that a manifest describes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from rollout import (
    API_VERSION,
    AgentContext,
    AgentLogs,
    AgentTurn,
    ConfigError,
    RolloutError,
    ScriptAgent,
    Struct,
    TrajectoryReport,
)
from rollout.core.aio import in_own_thread
from rollout.core.errors import AgentError, boundary
from rollout.core.plugins import find
from rollout.core.trial.equipment import write_private
from rollout_agents.manifest import Manifest, decode_manifest, read_manifest
from rollout_agents.mcp import SPOKEN, WRITERS

PREFIX = "/opt/rollout"
MCP_CONFIG = "/tmp/rollout/mcp-of-agent"
"""The servers in the agent's own format, where that is not the common one."""


class ManifestOptions(Struct, frozen=True, kw_only=True):
    """`options:` of every agent that is a manifest."""

    model: str | None = None
    """The model, as the agent calls it."""
    base_url: str | None = None
    """Where the model is served, instead of at its vendor."""
    version: str | None = None
    """The agent's version, instead of the pinned one."""
    args: list[str] = []
    """Further arguments of its command."""


class FileOptions(ManifestOptions, frozen=True, kw_only=True):
    """The same, with the manifest that the job's `manifest:` names."""

    manifest: dict[str, Any]
    """Its content."""


class ManifestAgent(ScriptAgent):
    """A manifest at work. `agent_class` makes the class of one manifest."""

    api_version: ClassVar[tuple[int, int]] = API_VERSION
    options_type: ClassVar[type[Struct]] = ManifestOptions
    manifest: Manifest
    _speaks_acp = False

    def __init__(self, options: ManifestOptions, context: AgentContext) -> None:
        super().__init__(options, context)

    @classmethod
    def of(cls, options: Any) -> Manifest:
        """The manifest that is meant."""
        return cls.manifest

    @classmethod
    def agent_env(cls, options: Any, given: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
        """What the agent needs of the host's variables, besides what the job gives.

        Raises:
            ConfigError: a variable is missing; the text names it.
            PluginError: there is no reader of the manifest's `trajectory`.
        """
        manifest = cls.of(options)
        find("readers", manifest.trajectory)
        if options.base_url is not None and not manifest.takes_base_url:
            raise ConfigError(f"agent {manifest.name} cannot be told where a model is served; leave `base_url` out")
        missing, taken = [], list(manifest.optional_env)
        for entry in manifest.requires_env:
            names = entry.split("|")
            taken += names
            if not any(given.get(name) or environ.get(name) for name in names):
                missing.append(" or ".join(names))
        if missing:
            raise ConfigError(f"agent {manifest.name} needs {', and '.join(missing)}: set it, or give it in the agent's `env:`")
        from_host = {name: f"${{{name}}}" for name in taken if name not in given and environ.get(name)}
        return {**manifest.env, **from_host}

    @classmethod
    def equipment(cls, options: Any) -> frozenset[str]:
        """The transports of its format, and skills when it has a folder for them; or what its script mentions."""
        manifest = cls.of(options)
        skills = {"skills"} if manifest.skills else set()
        return SPOKEN[manifest.mcp] | skills | cls.equipment_in(manifest.prepare + manifest.execute)

    @classmethod
    def acp_command(cls, options: Any) -> str | None:
        """What runs it so that it speaks ACP; None when it does not.

        Raises:
            ConfigError: a version is asked for, and what speaks ACP is another program.
        """
        manifest = cls.of(options)
        if not manifest.acp:
            return None
        if options.version is not None and manifest.acp_install is not None:
            raise ConfigError(
                f"agent {manifest.name} speaks ACP by an adapter, which has versions of its own; leave `version` out"
            )
        return f'{_settings(manifest, options, acp=True)}{manifest.prepare}exec {manifest.acp} "$@"\n'

    @classmethod
    def acp_equipment(cls, options: Any) -> frozenset[str]:
        """What it can be given where it is spoken to over ACP."""
        manifest = cls.of(options)
        told = SPOKEN["claude"] if manifest.acp_mcp else frozenset()
        return told | {"skills"} if manifest.skills else told

    @classmethod
    def over_acp(cls, options: Any, context: AgentContext) -> ManifestAgent:
        """The agent that installs what `acp` runs."""
        agent = cls(options, context)
        agent._speaks_acp = True
        return agent

    def install_script(self) -> str | None:
        manifest = self.of(self.options)
        if self._speaks_acp and manifest.acp_install is not None:
            return install_script(replace(manifest, install=manifest.acp_install))
        if manifest.install is None:
            return None
        return install_script(manifest, self.options.version)

    def execute_script(self) -> str:
        return execute_script(self.of(self.options), self.options)

    def reader(self) -> str:
        return self.of(self.options).trajectory

    async def connect(self) -> ScriptAgent:
        context, write = self.context, WRITERS.get(self.of(self.options).mcp)
        if context.mcp_servers and write is not None:
            text = write(context.mcp_servers)
            await write_private(context.environment, MCP_CONFIG, text, user=context.user, root=context.root_user)
        return self

    async def prompt(self, text: str) -> AgentTurn:
        result = await self._run(self.execute_script(), "agent/execute.sh")
        words = await in_own_thread(lambda: self._last_words(result.stdout))
        return AgentTurn(exit_code=result.exit_code, out_of_memory=result.out_of_memory, output=words)

    def trajectory(self, logs: Path) -> TrajectoryReport | None:
        report = super().trajectory(logs)
        if report is None or report.trajectory.agent.version != "unknown":
            return report
        manifest = self.of(self.options)
        version, model = self.options.version or manifest.version, self.options.model or manifest.model
        told = report.trajectory.agent
        known = replace(told, name=manifest.name, version=version or "unknown", model_name=told.model_name or model or None)
        return replace(report, trajectory=replace(report.trajectory, agent=known))

    def _last_words(self, printed: bytes) -> str | None:
        """What it said last, as far as its output tells. A reader's failure is reported with the trajectory."""
        try:
            with boundary(AgentError, "reading the agent's output"):
                told = find("readers", self.reader()).cls(AgentLogs(None, printed))
        except RolloutError:
            return None
        messages = (step.message for step in reversed(told.steps if told is not None else []) if step.source == "agent")
        return next((message for message in messages if isinstance(message, str) and message), None)


def agent_class(manifest: Manifest) -> type[ManifestAgent]:
    """The agent class of a manifest, to be registered under `rollout.agents`."""
    title = "".join(part.title() for part in manifest.name.replace("_", "-").split("-"))
    return type(f"{title}Agent", (ManifestAgent,), {"manifest": manifest, "__doc__": manifest.description})


def agent_from(package: str, file: str) -> type[ManifestAgent]:
    """The agent class of a manifest that lies in a package: all that a distribution with an agent as data has to say.

    Raises:
        ConfigError
    """
    return agent_class(read_manifest(Path(str(files(package) / file))))


class FileAgent(ManifestAgent):
    """The agent of a manifest that a job file names with `manifest:`."""

    options_type: ClassVar[type[Struct]] = FileOptions

    @classmethod
    def of(cls, options: FileOptions) -> Manifest:
        return decode_manifest(options.manifest, "the manifest")


def install_script(manifest: Manifest, version: str | None = None) -> str:
    """What installs the agent: install.sh, and the manifest's own lines."""
    functions = (files("rollout_agents") / "install.sh").read_text("utf-8")
    chosen = f"version={shlex.quote(version or manifest.version)}\n"
    return f"{functions}\n{chosen}{manifest.install or ''}"


def execute_script(manifest: Manifest, options: ManifestOptions) -> str:
    """What runs the agent once."""
    return f"#!/bin/sh\n{_settings(manifest, options)}{manifest.prepare}{manifest.execute}"


def _settings(manifest: Manifest, options: ManifestOptions, *, acp: bool = False) -> str:
    """The lines before an agent's command: where it is, its model, its base URL, the job's further arguments."""
    model, base_url = options.model or manifest.model, options.base_url or ""
    lines = [
        "set -eu",
        f'PATH="{PREFIX}/bin:${{HOME:-/root}}/.rollout/bin:$PATH"; export PATH',
        f"model={shlex.quote(model)} base_url={shlex.quote(base_url)}",
        f"set -- {shlex.join(options.args)}".rstrip(),
    ]
    if acp or not manifest.mcp:
        lines.append("mcp_config=")  # over ACP its session tells of the servers
    else:
        file = MCP_CONFIG if manifest.mcp in WRITERS else "$ROLLOUT_MCP_CONFIG"
        lines.append(f'mcp_config=; [ -z "${{ROLLOUT_MCP_CONFIG:-}}" ] || mcp_config={file}')
    if manifest.skills:
        copy = f'mkdir -p "{manifest.skills}"; cp -R "$ROLLOUT_SKILLS_DIR/." "{manifest.skills}/"'
        lines.append(f'if [ -n "${{ROLLOUT_SKILLS_DIR:-}}" ]; then {copy}; fi')
    for value, names in ((model, manifest.model_env), (base_url, manifest.base_url_env)):
        lines += [f"export {name}={shlex.quote(value)}" for name in names if value]
    return "\n".join(lines) + "\n"
