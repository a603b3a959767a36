"""The `oracle` agent: runs the task's own solution. The positive control of a dataset, which must get the full reward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rollout.core.errors import AgentInstallError, TaskError
from rollout.core.protocols import API_VERSION, AgentContext, NoOptions
from rollout.core.tasks.task import SOLUTIONS
from rollout.core.trial.answer import EXPECTED_FIELDS
from rollout.core.trial.nowhere import NoEnvironment
from rollout.core.trial.paths import ORACLE, SOLUTION
from rollout.core.trial.script import interpreter
from rollout.core.types import EVERY_EQUIPMENT, AgentTurn, Command, TaskFault, TaskOutline

# Harbor's data sets expect the solution at /solution.
_LINK = f"[ -e {SOLUTION} ] || ln -s {ORACLE} {SOLUTION}"


class OracleAgent:
    """Copies the task's solution to `/oracle` (also reachable as `/solution`) and runs its solve.sh in the working directory.

    For a row, which has no such file, it gives the expected answer that is in the row's metadata.
    """

    api_version = API_VERSION
    options_type = NoOptions
    answers_rows = True

    @staticmethod
    def task_faults(options: NoOptions, task: TaskOutline) -> Iterator[TaskFault]:
        """The task, or one of its steps, has no solution; of rows, none of the first says an answer."""
        if task.rows and _solution_in(task.directory) is None and all(_answer_in(row) is None for row in task.rows):
            yield TaskFault(
                message=f"the agent oracle gives a row's answer, and no row says one (as {', '.join(EXPECTED_FIELDS)})"
            )
        for folder in () if task.is_row else task.step_directories or (task.directory,):
            if _solution_in(folder) is None:
                yield TaskFault(message="is missing, and the agent oracle runs it", file=folder / SOLUTIONS[0])

    @staticmethod
    def equipment(options: NoOptions) -> frozenset[str]:
        """Everything: a solution needs none of it."""
        return EVERY_EQUIPMENT

    def __init__(self, options: NoOptions, context: AgentContext) -> None:
        self._context = context

    async def install(self) -> None:
        pass  # nothing: each step of a task has a solution of its own, and `connect` brings it

    async def connect(self) -> OracleAgent:
        if self._answers():
            return self
        context, solution = self._context, self._solution()
        target = ORACLE if solution.is_dir() else f"{ORACLE}/solve.sh"
        await context.environment.upload(solution, target, owner=context.user)
        command = Command(argv=("sh", "-c", _LINK), cwd="/", user=context.root_user)
        result = await context.environment.exec(command, context.sink)
        if result.exit_code != 0:
            raise AgentInstallError(f"{SOLUTION} cannot be linked to {ORACLE}: exit code {result.exit_code}")
        return self

    async def prompt(self, text: str) -> AgentTurn:
        if self._answers():
            return AgentTurn(output=self._expected())
        context, solution = self._context, self._solution()
        script = (solution / "solve.sh" if solution.is_dir() else solution).read_bytes()
        argv = (*interpreter(script), f"{ORACLE}/solve.sh")
        command = Command(argv=argv, env={**context.env, **context.solution_env()}, cwd=context.workdir, user=context.user)
        result = await context.environment.exec(command, context.sink)
        return AgentTurn(exit_code=result.exit_code, out_of_memory=result.out_of_memory)

    async def close(self) -> None:
        pass

    def _answers(self) -> bool:
        """Whether the task is a row that is answered, and not solved in a sandbox."""
        nowhere = isinstance(self._context.environment, NoEnvironment)
        return nowhere or (self._solution_or_none() is None and self._context.is_row)

    def _expected(self) -> str:
        if (expected := _answer_in(self._context.task.metadata)) is not None:
            return expected
        raise TaskError(f"the row {self._context.task.id} says no answer (as {', '.join(EXPECTED_FIELDS)})")

    def _solution(self) -> Path:
        solution = self._solution_or_none()
        if solution is None:
            raise TaskError(f"{self._context.task_directory.name} has no solution/solve.sh: the oracle cannot be used on it")
        return solution

    def _solution_or_none(self) -> Path | None:
        return _solution_in(self._context.task_directory)


def _answer_in(metadata: Mapping[str, Any]) -> str | None:
    for name in EXPECTED_FIELDS:
        if (expected := metadata.get(name)) is not None:
            return str(expected[0] if isinstance(expected, list) and expected else expected)
    return None


def _solution_in(task: Path) -> Path | None:
    """The folder of the solution, or its only file."""
    if (task / "solution" / "solve.sh").is_file():
        return task / "solution"
    if (task / "solve.sh").is_file():
        return task / "solve.sh"
    return None
