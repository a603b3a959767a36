"""The variables by which an instruction reaches agents and scripts."""

from __future__ import annotations

from rollout.core.trial.paths import INSTRUCTION_FILE

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
