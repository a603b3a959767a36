"""A reward for programs: the agent's code against test cases, always inside the trial's environment, never on this machine."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
from msgspec import Meta

from rollout.core.errors import VerifierError
from rollout.core.protocols import API_VERSION, TrialView
from rollout.core.trial.answer import AnswerSource, answer_of
from rollout.core.types import Struct, VerifyResult
from rollout_rewards.code_runs import Runs, Verdict
from rollout_rewards.finding import without_thinking

_BLOCK = re.compile(r"```[ \t]*([\w+-]*)[^\n]*\n(.*?)```", re.DOTALL)
_PYTHON = ("python", "py", "python3")


class Case(Struct, frozen=True, kw_only=True):
    """One run of the program."""

    input: str = ""
    """For standard input."""
    output: str
    """What it must print; white space at the ends of lines does not matter."""


class CodeOptions(Struct, frozen=True, kw_only=True):
    cases: list[Case] = []
    """Runs of the program; the task's metadata's `cases` (or `tests`, `input_output`) when there are none."""
    test: str | None = None
    """Python that uses the program's names and must end without an exception; the metadata's `test` when unset. It runs in a
    process of its own, out of the program's reach: of the program it gets plain values, and objects that it can call."""
    shared: bool = False
    """Append `test` to the program and run both in one process, for tests that want its objects themselves (arrays, frames,
    patched modules). A program bent on it deceives such a test."""
    entry_point: str | None = None
    """A function of the program that `test` gives to its `check`, as in HumanEval; the metadata's `entry_point` when unset."""
    command: Annotated[tuple[str, ...], Meta(min_length=1)] = ("python3", "{file}")
    """How the program is run in the environment."""
    suffix: str = ".py"
    """The ending of the program's file."""
    extract: Literal["block", "all"] = "block"
    """`block`: the last fenced block of the answer. `all`: the answer as it is."""
    timeout_sec: Annotated[float, Meta(gt=0)] = 10.0
    """Seconds for each run; a program that takes longer fails it."""
    partial: bool = False
    """The share of passed runs instead of 1 for all and 0 for any less."""
    answer: AnswerSource = AnswerSource()
    """Where the agent's answer is."""


class Code:
    """1 when the agent's program passes every test case inside the environment, else 0; `passed` is the share that it passes."""

    api_version = API_VERSION
    options_type = CodeOptions
    needs_environment = True

    def __init__(self, options: CodeOptions) -> None:
        self._options = options

    async def score(self, trial: TrialView) -> VerifyResult:
        """Raises VerifierError: there is nothing to test with, or the environment cannot run the command."""
        options, metadata = self._options, trial.task.metadata
        cases = options.cases or _cases(metadata)
        test = options.test if options.test is not None else metadata.get("test")
        if not cases and not isinstance(test, str):
            raise VerifierError("nothing to test the program with: give `cases` or `test`, or put them into the task's metadata")
        said = await answer_of(trial, options.answer)
        program = code_of(said) if options.extract == "block" else said
        if not program.strip():
            return VerifyResult(rewards={"reward": 0.0, "passed": 0.0}, details={"why": "the answer holds no program"})
        runs = Runs(trial=trial, command=options.command, suffix=options.suffix, timeout_sec=options.timeout_sec)
        verdicts = [await _run_case(runs, program, case) for case in cases]
        if isinstance(test, str):
            entry = options.entry_point or metadata.get("entry_point")
            name = str(entry) if entry else None
            shared = options.shared
            verdicts.append(await (_run_shared(runs, program, test, name) if shared else runs.test(program, test, name)))
        share = sum(verdict.passed for verdict in verdicts) / len(verdicts)
        failed = [f"{number}: {verdict.why}" for number, verdict in enumerate(verdicts, 1) if not verdict.passed]
        return VerifyResult(
            rewards={"reward": share if options.partial else float(share == 1.0), "passed": share},
            details={"failed": failed[:20]} if failed else {},
            warnings=tuple(verdict.warning for verdict in verdicts if verdict.warning),
        )


async def _run_case(runs: Runs, program: str, case: Case) -> Verdict:
    verdict, printed = await runs.run(program, case.input)
    if not verdict.passed or _lines(printed) == _lines(case.output):
        return verdict
    return Verdict(passed=False, why=f"printed {printed.strip()[:80]!r} instead of {case.output.strip()[:80]!r}")


async def _run_shared(runs: Runs, program: str, test: str, entry: str | None) -> Verdict:
    # The last line proves that the test came to its end: a program may call exit(0).
    proof = uuid4().hex
    call = f"\ncheck({entry})\n" if entry and re.search(r"^def check\(", test, re.MULTILINE) else "\n"
    verdict, printed = await runs.run(f"{program}\n\n{test}\n{call}\nprint({proof!r})\n", "")
    if verdict.passed and not printed.rstrip().endswith(proof):
        return Verdict(passed=False, why="the program ended before its test did")
    return verdict


def code_of(text: str) -> str:
    """The last fenced block, of Python when there is one; the whole text when it has no fence and looks like a program."""
    text = without_thinking(text)
    blocks = [(language.lower(), body) for language, body in _BLOCK.findall(text)]
    python = [body for language, body in blocks if language in _PYTHON]
    if python or blocks:
        return str(python[-1] if python else blocks[-1][1])
    return text if re.search(r"^(def|class|import|from|print)\b|^\w+ = ", text, re.MULTILINE) else ""


def _cases(metadata: dict[str, Any]) -> list[Case]:
    """The cases of a row: a list of `{input, output}`, or `{inputs: [...], outputs: [...]}`, as JSON text too.

    Raises:
        VerifierError: there are some, of another form.
    """
    value = next((metadata[name] for name in ("cases", "tests", "input_output", "test_cases") if metadata.get(name)), None)
    try:
        if isinstance(value, str):
            value = msgspec.json.decode(value)
        if isinstance(value, dict):
            pairs = zip(value["inputs"], value["outputs"], strict=True)
            value = [{"input": given, "output": wanted} for given, wanted in pairs]
        return [] if value is None else [_case(item) for item in value]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise VerifierError(f"the task's test cases are of no known form: {error}") from error


def _case(item: dict[str, Any]) -> Case:
    return Case(input=_text(item.get("input", "")), output=_text(item["output"]))


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
