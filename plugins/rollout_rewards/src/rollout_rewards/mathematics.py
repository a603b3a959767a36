"""A reward for mathematics: whether two expressions are the same thing. The comparison runs in a process that can be killed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta

from rollout.core.errors import VerifierTimeoutError
from rollout.core.protocols import API_VERSION, PythonCall, TrialView
from rollout.core.quantity import Quantity, parse_bytes
from rollout.core.trial.answer import AnswerSource, answer_of, expected_faults, expected_of
from rollout.core.types import Struct, TaskFault, TaskOutline, VerifyResult

_MAX_CHARACTERS = 50_000


class MathematicsOptions(Struct, frozen=True, kw_only=True):
    expected: str | list[str] | None = None
    """The right expression (LaTeX or plain), or several of which one suffices; what the task's metadata says when unset."""
    field: str | None = None
    """The field of the task's metadata that holds it."""
    answer: AnswerSource = AnswerSource()
    """Where the agent's answer is."""
    strict: bool = False
    """Only what is in `\\boxed{}` counts as an answer."""
    timeout_sec: Annotated[float, Meta(gt=0)] = 30.0
    """Seconds for the comparison. Above that the answer counts as wrong, with a warning."""
    memory: Quantity | None = "2Gi"
    """How much memory the comparison may take."""
    compat: Literal["rllm"] | None = None
    """`rllm`: to the letter what rLLM's math_reward_fn gives."""

    def __post_init__(self) -> None:
        if self.memory is not None:
            parse_bytes(self.memory)


class Mathematics:
    """1 when the answer is mathematically the same as the expected expression, by math-verify; else 0."""

    api_version = API_VERSION
    options_type = MathematicsOptions

    def __init__(self, options: MathematicsOptions) -> None:
        self._options = options

    def task_faults(self, task: TaskOutline) -> Iterable[TaskFault]:
        return expected_faults(task, self._options.expected, self._options.field)

    async def score(self, trial: TrialView) -> VerifyResult:
        """Raises VerifierError: what is expected cannot be read as mathematics."""
        options = self._options
        said = await answer_of(trial, options.answer)
        truths = expected_of(trial, options.expected, options.field)
        if len(said) > _MAX_CHARACTERS:
            said = said[-_MAX_CHARACTERS:]
        call = PythonCall(
            target="rollout_rewards.math_grading:grade",
            name="math",
            arguments={"said": said, "truths": truths, "strict": options.strict, "compat": options.compat},
            timeout_sec=options.timeout_sec,
            memory_bytes=None if options.memory is None else parse_bytes(options.memory)[0],
            sink=trial.sink,
        )
        try:
            graded = await trial.run_python(call)
        except VerifierTimeoutError:
            warning = f"comparing took more than {options.timeout_sec:g} s; it counts as wrong"
            return VerifyResult(rewards={"reward": 0.0}, warnings=(warning,), details={"reason": "timeout"})
        details = {name: graded[name] for name in ("answer", "reason") if graded.get(name)}
        return VerifyResult(rewards={"reward": float(graded["correct"])}, details=details)
