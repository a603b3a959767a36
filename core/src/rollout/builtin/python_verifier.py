"""The `python` verifier: calls a Python function with the task and what the agent did, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from rollout.core.errors import VerifierError
from rollout.core.protocols import API_VERSION, PythonCall, TrialView
from rollout.core.quantity import Quantity, parse_bytes
from rollout.core.tasks.python_source import function_in_file, function_in_module
from rollout.core.tasks.verifier_declaration import module_file
from rollout.core.trial.nowhere import NoEnvironment
from rollout.core.trial.python_verifier import call_arguments
from rollout.core.trial.python_worker import Rejected, parameters_of
from rollout.core.types import Struct, TaskFault, TaskOutline, VerifyResult


class PythonVerifierOptions(Struct, frozen=True, kw_only=True):
    module: str | None = None
    """A Python file of the task, or of its data set: `tests.evaluate` or `tests/evaluate.py`."""
    function: str = "evaluate"
    """The function in `module`, or a class or an object with a method `evaluate`."""
    import_path: str | None = None
    """Instead of `module`: `package.module:function`, in the data set's folder or installed."""
    timeout_sec: Annotated[float, Meta(gt=0)] | None = None
    """Seconds for the function; the verifier's timeout when unset."""
    memory: Quantity | None = "2Gi"
    """How much memory the function may take. Kubernetes quantity."""
    fresh: bool = False
    """Call it in a new process each time. By default a process is used again, and the module is imported once in it."""
    sandbox: bool = True
    """Give the function the live environment as `sandbox`, if it asks for it."""

    def __post_init__(self) -> None:
        if (self.module is None) == (self.import_path is None):
            raise ValueError("give exactly one of `module` and `import_path`")
        if self.import_path is not None and not all(self.import_path.partition(":")[::2]):
            raise ValueError(f"`import_path` is {self.import_path!r}; write `package.module:function`")
        if self.memory is not None:
            parse_bytes(self.memory)


class PythonVerifier:
    """Calls `evaluate(task, episode)`, `evaluate(metadata, trajectory)` or any other function by the names of its parameters.

    The parameters there are: `task`, `metadata`, `episode`, `trajectory`, `sandbox`.
    """

    api_version = API_VERSION
    options_type = PythonVerifierOptions
    needs_environment = False

    def __init__(self, options: PythonVerifierOptions) -> None:
        self._options = options

    def task_faults(self, task: TaskOutline) -> Iterator[TaskFault]:
        """The file is not there or is not Python, or has no such function, or one with parameters that nobody fills."""
        options = self._options
        if options.import_path is not None:
            module, _, function = options.import_path.partition(":")
            found = function_in_module(module, function, task.folders)
        else:
            function = options.function
            file = _file(tuple(map(str, task.folders)), str(options.module))
            if file is None:
                yield TaskFault(message=f"the verifier {options.module} is not in {' nor in '.join(map(str, task.folders))}")
                return
            found = function_in_file(Path(file), function)
        if found.fault is not None:
            yield found.fault
        elif found.signature is not None:
            known = ("task", "metadata", "episode", "trajectory", *(("sandbox",) if options.sandbox else ()))
            try:
                parameters_of(found.signature, known, function)
            except Rejected as error:
                yield TaskFault(message=str(error), file=found.file, line=found.line)

    async def verify(self, trial: TrialView) -> VerifyResult:
        """Raises VerifierError: the function is not there, raised, or returned what is no verdict."""
        options = self._options
        file, module, function, search = self._place(trial)
        called = f"{options.module or module}:{function}"
        has_sandbox = options.sandbox and not isinstance(trial.environment, NoEnvironment)
        said = await trial.run_python(
            PythonCall(
                target="rollout.core.trial.verify_function:evaluate",
                name=called,
                arguments=await call_arguments(trial, file=file, module=module, function=function, sandbox=has_sandbox),
                search=search,
                env=trial.env,
                timeout_sec=options.timeout_sec,
                memory_bytes=_bytes(options.memory),
                fresh=options.fresh,
                environment=trial.environment if has_sandbox else None,
                user=trial.user,
                workdir=trial.workdir,
                sink=trial.sink,
            )
        )
        verdict = msgspec.convert(said, VerifyResult)
        return msgspec.structs.replace(verdict, source=verdict.source or called)

    def _place(self, trial: TrialView) -> tuple[str | None, str | None, str, tuple[str, ...]]:
        """File or module, function, and the folders where its imports are looked for."""
        options = self._options
        folders: tuple[str, ...] = (str(trial.task_directory),)
        dataset = str(trial.task.dataset_dir)
        if dataset not in (".", *folders):
            folders = (*folders, dataset)
        if options.import_path is not None:
            module, _, function = options.import_path.partition(":")
            return None, module, function, folders
        file = _file(folders, str(options.module))
        if file is None:
            raise VerifierError(f"the verifier {options.module} is not in {' nor in '.join(folders)}")
        return file, None, options.function, (file.rpartition("/")[0], *folders)


@lru_cache(maxsize=64)
def _bytes(memory: Quantity | None) -> int | None:
    return None if memory is None else parse_bytes(memory)[0]


@lru_cache(maxsize=4096)
def _file(folders: tuple[str, ...], name: str) -> str | None:
    """The Python file that `tests/evaluate.py` or `tests.evaluate` means in the first folder that has one."""
    return next((str(file) for folder in folders if (file := module_file(Path(folder), name)) is not None), None)
