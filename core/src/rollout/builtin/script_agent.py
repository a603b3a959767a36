"""Agents that are two shell scripts: those written into a job file, and the class that plugin authors build on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

from rollout.core.errors import AgentInstallError
from rollout.core.plugins import find
from rollout.core.protocols import API_VERSION, AgentContext
from rollout.core.trajectories import AgentLogs, TrajectoryReport
from rollout.core.trial.equipment import MCP_CONFIG_VARIABLE, SKILLS_VARIABLE
from rollout.core.trial.script import run_script
from rollout.core.trial.trajectory import read_with
from rollout.core.types import EVERY_EQUIPMENT, SKILLS, AgentTurn, ExecResult, Struct


class ScriptOptions(Struct, frozen=True, kw_only=True):
    """What the job file's `install:` and `execute:` become."""

    install: str | None = None
    """Script that installs the agent inside the environment."""
    execute: str
    """Script that runs it once."""
    trajectory: str = "atif"
    """Reader of what it prints and leaves in /logs/agent; `atif` reads the trajectory.json of an agent that writes one."""

    def __post_init__(self) -> None:
        find("readers", self.trajectory)


class ScriptAgent:
    """An agent that an install script makes ready and an execute script runs, both inside the environment.

    A plugin subclasses it, names its own `options_type` and writes the two scripts. `self.options` are the decoded options,
    `self.context` is the trial's AgentContext. The task is in `$ROLLOUT_TASK_INSTRUCTION` and, whatever its length, in the
    file `$ROLLOUT_TASK_INSTRUCTION_FILE`; what is put into `/logs/agent` is kept. MCP servers are in the file
    `$ROLLOUT_MCP_CONFIG` and skills in the folder `$ROLLOUT_SKILLS_DIR`, if there are any.
    """

    api_version: ClassVar[tuple[int, int]] = API_VERSION
    options_type: ClassVar[type[Struct]] = ScriptOptions

    def __init__(self, options: Any, context: AgentContext) -> None:
        self.options = options
        self.context = context

    @classmethod
    def equipment(cls, options: Any) -> frozenset[str]:
        """What the script that runs it mentions. An agent that writes its script otherwise says it otherwise."""
        return cls.equipment_in(getattr(options, "execute", ""))

    @staticmethod
    def equipment_in(script: str) -> frozenset[str]:
        """What a script can be given that mentions `$ROLLOUT_MCP_CONFIG` or `$ROLLOUT_SKILLS_DIR`."""
        found = EVERY_EQUIPMENT - {SKILLS} if MCP_CONFIG_VARIABLE in script else frozenset()
        return found | {SKILLS} if SKILLS_VARIABLE in script else found

    def install_script(self) -> str | None:
        """The script that installs the agent, or None when there is nothing to install."""
        script: str | None = self.options.install
        return script

    def execute_script(self) -> str:
        """The script that runs the agent. Quote what you interpolate with `shlex.quote`."""
        script: str = self.options.execute
        return script

    def shared_install(self, withheld: frozenset[str]) -> str | None:
        """The install script, unless it mentions a variable that is withheld."""
        script = self.install_script()
        if script is None or not script.strip() or any(re.search(rf"\b{re.escape(name)}\b", script) for name in withheld):
            return None
        return script

    async def install(self) -> None:
        script = self.install_script()
        if script is None or not script.strip():
            return
        result = await self._run(script, "setup/install.sh")
        if result.exit_code != 0:
            said = (result.stderr or result.stdout).decode("utf-8", "replace").strip().splitlines()
            detail = f": {said[-1][:300]}" if said else ""
            raise AgentInstallError(f"the install script exited with code {result.exit_code}{detail}")

    async def connect(self) -> ScriptAgent:
        return self

    async def prompt(self, text: str) -> AgentTurn:
        result = await self._run(self.execute_script(), "agent/execute.sh")
        return AgentTurn(exit_code=result.exit_code, out_of_memory=result.out_of_memory)

    async def close(self) -> None:
        pass

    def trajectory(self, logs: Path) -> TrajectoryReport | None:
        """What the agent's own log says."""
        return read_with(self.reader(), AgentLogs(logs, self.context.log_dir / "agent" / "stdout.txt"))

    def reader(self) -> str:
        """The reader of its logs: the one that the options name. Another agent names its own."""
        return getattr(self.options, "trajectory", "atif")

    async def _run(self, script: str, record: str) -> ExecResult:
        context = self.context
        path = context.log_dir / record
        path.parent.mkdir(parents=True, exist_ok=True)
        return await run_script(
            context.environment, script, record=path, env=context.env, cwd=context.workdir, user=context.user, sink=context.sink
        )
