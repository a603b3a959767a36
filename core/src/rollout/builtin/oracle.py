"""The `oracle` agent: runs the task's own solution. The positive control of a dataset, which must get the full reward."""

from __future__ import annotations

from pathlib import Path

from rollout.core.errors import AgentInstallError, TaskError
from rollout.core.protocols import API_VERSION, AgentContext, NoOptions
from rollout.core.trial.paths import ORACLE, SOLUTION
from rollout.core.trial.script import interpreter
from rollout.core.types import AgentTurn, Command

# Harbor's data sets expect the solution at /solution.
_LINK = f"[ -e {SOLUTION} ] || ln -s {ORACLE} {SOLUTION}"


class OracleAgent:
    """Copies the task's solution to `/oracle` (also reachable as `/solution`) and runs its solve.sh in the working directory."""

    api_version = API_VERSION
    options_type = NoOptions

    def __init__(self, options: NoOptions, context: AgentContext) -> None:
        self._context = context

    async def install(self) -> None:
        context, solution = self._context, self._solution()
        target = ORACLE if solution.is_dir() else f"{ORACLE}/solve.sh"
        await context.environment.upload(solution, target, owner=context.user)
        command = Command(argv=("sh", "-c", _LINK), cwd="/", user=context.root_user)
        result = await context.environment.exec(command, context.sink)
        if result.exit_code != 0:
            raise AgentInstallError(f"{SOLUTION} cannot be linked to {ORACLE}: exit code {result.exit_code}")

    async def connect(self) -> OracleAgent:
        return self

    async def prompt(self, text: str) -> AgentTurn:
        context, solution = self._context, self._solution()
        script = (solution / "solve.sh" if solution.is_dir() else solution).read_bytes()
        argv = (*interpreter(script), f"{ORACLE}/solve.sh")
        command = Command(argv=argv, env={**context.env, **context.solution_env()}, cwd=context.workdir, user=context.user)
        result = await context.environment.exec(command, context.sink)
        return AgentTurn(exit_code=result.exit_code, out_of_memory=result.out_of_memory)

    async def close(self) -> None:
        pass

    def _solution(self) -> Path:
        task = self._context.task_directory
        if (task / "solution" / "solve.sh").is_file():
            return task / "solution"
        if (task / "solve.sh").is_file():
            return task / "solve.sh"
        raise TaskError(f"{task.name} has no solution/solve.sh: the oracle cannot be used on it")
