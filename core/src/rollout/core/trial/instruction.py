"""How an instruction reaches agents and scripts: variables, a file, and files for the images that belong to it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rollout.core.protocols import Environment
from rollout.core.tasks.images import ImageFile
from rollout.core.trial.paths import INSTRUCTION_FILE, INSTRUCTION_IMAGES

INSTRUCTION_VARIABLE = "ROLLOUT_TASK_INSTRUCTION"
INSTRUCTION_FILE_VARIABLE = "ROLLOUT_TASK_INSTRUCTION_FILE"

# Linux: MAX_ARG_STRLEN is 32 pages, for `NAME=value` and its NUL.
_MAX_VARIABLE_BYTES = 128 * 1024


def instruction_variables(instruction: str) -> dict[str, str]:
    """The file's path always, and the text where the kernel takes it as one string."""
    variables = {INSTRUCTION_FILE_VARIABLE: INSTRUCTION_FILE}
    size = len(INSTRUCTION_VARIABLE) + 2 + len(instruction.encode())
    if size <= _MAX_VARIABLE_BYTES and "\0" not in instruction:
        variables[INSTRUCTION_VARIABLE] = instruction
    return variables


def naming_images(instruction: str, images: Sequence[ImageFile]) -> str:
    """The instruction with a last paragraph that says where its images are, for agents that are given text."""
    if not images:
        return instruction
    names = "\n".join(f"- {INSTRUCTION_IMAGES}/{image.name}" for image in images)
    return f"{instruction.rstrip()}\n\nThe images that belong to this, in their order, are the files:\n{names}\n"


async def bring_images(environment: Environment, images: Sequence[ImageFile]) -> None:
    """Put an instruction's images where `naming_images` says that they are.

    Raises:
        TransferError, EnvironmentLostError
    """
    if images:
        with tempfile.TemporaryDirectory() as folder:
            for image in images:
                path = Path(folder, image.name)
                path.write_bytes(image.data)
                path.chmod(0o644)
            Path(folder).chmod(0o755)
            await environment.upload(Path(folder), INSTRUCTION_IMAGES)
