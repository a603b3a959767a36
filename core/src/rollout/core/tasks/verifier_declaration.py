"""What verifies a task: declared in `[verifier]` of its task.toml or its data set's dataset.toml, or found in its folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from rollout.core.config.dataset import DatasetFile
from rollout.core.config.rewards import rewards_options
from rollout.core.config.task import TaskVerifierConfig
from rollout.core.errors import TaskError

TEST_SCRIPT = "tests/test.sh"
TEST_MODULE = "tests/evaluate.py"


class DeclaredVerifier(NamedTuple):
    """A verifier plugin and its options, and what of the host it needs."""

    plugin: str
    options: dict[str, Any] = {}
    """The plugin's own; job files say the same under `verifier.options`."""
    tests: Path | None = None
    """The folder that becomes /tests in the environment."""
    files: Path | None = None
    """The folder that the verifier itself is in, when that is known: a change in it is another verifier."""
    sandbox: bool = False
    """It was declared for a task with an environment, and may want to look into that."""


def declared_verifier(
    config: TaskVerifierConfig, task_dir: Path, dataset_dir: Path, dataset: DatasetFile | None = None
) -> DeclaredVerifier | None:
    """The verifier of a task, or None when there is none. `config` is its `[verifier]` over its data set's.

    `script` wins over `module`, that over `name`, that over `import_path`, that over `rewards` and `rubric`. Without any of
    them: the task's tests/test.sh, its tests/evaluate.py, the data set's tests/evaluate.py, the data set's tests/test.sh.

    Raises:
        TaskError: what is declared is not there.
    """
    folders = tuple(dict.fromkeys((task_dir, dataset_dir)))
    has_environment = any((folder / "environment").is_dir() for folder in folders)
    if config.script is not None:
        return _script(config.script, config.reward_file, folders)
    if config.module is not None:
        return _module(config.module, config.function, folders, has_environment)
    if config.name is not None:
        return DeclaredVerifier("rewards", {"rewards": [config.name]})
    if config.import_path is not None:
        return DeclaredVerifier("python", {"import_path": config.import_path}, sandbox=has_environment)
    if (options := rewards_options(config.rewards, config.rubric)) is not None:
        return DeclaredVerifier("rewards", options)
    if dataset is not None and dataset.evaluation is not None:
        return _module(dataset.evaluation.module, dataset.evaluation.function, folders, has_environment)
    for folder, name in (
        (task_dir, TEST_SCRIPT),
        (task_dir, TEST_MODULE),
        (dataset_dir, TEST_MODULE),
        (dataset_dir, TEST_SCRIPT),
    ):
        if (folder / name).is_file() and name == TEST_SCRIPT:
            return _script(name, config.reward_file, (folder,))
        if (folder / name).is_file():
            return _module(name, config.function, (folder,), has_environment)
    return None


def module_file(folder: Path, module: str) -> Path | None:
    """The file that `tests/evaluate.py` or `tests.evaluate` is in a folder, if it is there."""
    dotted = folder.joinpath(*module.split("."))
    for file in (folder / module, dotted.with_name(f"{dotted.name}.py"), dotted / "__init__.py"):
        if file.is_file():
            return file
    return None


def _script(script: str, reward_file: str | None, folders: tuple[Path, ...]) -> DeclaredVerifier:
    for folder in folders:
        file = folder / script
        if not file.is_file():
            continue
        if not file.resolve().is_relative_to(folder.resolve()) or file.parent == folder:
            raise TaskError(f"verifier.script: {script!r} must be in a folder of the task or its data set: it becomes /tests")
        options = {} if file.name == "test.sh" else {"script": file.name}
        if reward_file is not None:
            options["reward_file"] = reward_file
        return DeclaredVerifier("script", options, file.parent, file.parent)
    raise TaskError(f"verifier.script: {folders[0] / script}: no such file")


def _module(module: str, function: str, folders: tuple[Path, ...], has_environment: bool) -> DeclaredVerifier:
    for folder in folders:
        file = module_file(folder, module)
        if file is not None:
            options = {"module": module, "function": function}
            return DeclaredVerifier("python", options, None, file.parent, has_environment)
    missing = module if module.endswith(".py") else f"{module.replace('.', '/')}.py"
    raise TaskError(f"verifier.module: {folders[0] / missing}: no such file")
