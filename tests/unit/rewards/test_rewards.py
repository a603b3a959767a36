"""The reward functions as job files name them: what they look at, their options, and what is an error instead of 0."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

pytest.importorskip("rollout_rewards")

from hypothesis import given
from hypothesis import strategies as st

from rollout.core.errors import ConfigError, VerifierError
from rollout.core.plugins import decode_options, find, list_plugins
from rollout.core.trial.python_processes import PythonProcesses
from rollout.core.types import Command, ExecResult
from rollout.testing.fakes import FakeEnvironment, FakeWorld
from rollout.testing.suite import environment_spec
from rollout_rewards.choice import chosen_letter
from rollout_rewards.code import code_of
from rollout_rewards.finding import boxed, final_answer, without_thinking
from rollout_rewards.numbers import numbers
from rollout_rewards.pytest_run import counted
from rollout_rewards.text import contains, exact_match, f1, similarity
from unit.rewards.views import score, view

NAMES = [info.name for info in list_plugins("rewards") if info.dist == "rollout-rewards"]


@pytest_asyncio.fixture
async def processes(tmp_path: Path) -> AsyncIterator[PythonProcesses]:
    pool = PythonProcesses(tmp_path / "scratch", 1)
    yield pool
    await pool.aclose()


@pytest.mark.parametrize(
    ("name", "said", "truth", "reward"),
    [
        ("exact_match", "The answer is: **Paris**.", "paris", 1),
        ("exact_match", "I think Paris", "paris", 0),
        ("exact_match", "b", ["a", "b"], 1),
        ("f1", "the big cat", "a cat", 2 / 3),
        ("f1", "nothing", "cat", 0),
        ("contains", "It is Paris, which", "paris", 1),
        ("contains", "comparison", "paris", 0),
        ("numeric", "first 3, then the answer is 1,000.", 1000, 1),
        ("numeric", "10.1", "10", 0),
        ("numeric", "50%", "0.5", 1),
        ("numeric", "none", "5", 0),
        ("similarity", "abc", "abd", 2 / 3),
        ("mcq", "B or C? The answer is (c).", "C", 1),
    ],
)
async def test_answers_are_scored_against_the_task(name: str, said: str, truth: Any, reward: float, tmp_path: Path) -> None:
    result = await score(name, view(tmp_path, said, ground_truth=truth))
    assert result.reward == pytest.approx(reward)


@pytest.mark.parametrize(
    ("name", "said", "truth", "reward"),
    [
        ("exact_match", "Paris", "The answer is Paris", 1),
        ("contains", "-5", "5", 1),
        ("numeric", "10.1", "10", 1),
        ("f1", "", "", 0),
    ],
)
async def test_compat_is_the_other_programs_value(name: str, said: str, truth: str, reward: float, tmp_path: Path) -> None:
    trial = view(tmp_path, said, ground_truth=truth)
    assert (await score(name, trial, compat="agentflow")).reward == reward


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("pytest", "llm_judge") and not name.endswith("_fn")])
async def test_nothing_to_compare_with_is_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(VerifierError, match=r"expected|nothing to test"):
        await score(name, view(tmp_path, "x"))


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("_fn")])
def test_options_are_structs_and_unknown_ones_are_refused(name: str) -> None:
    plugin = find("rewards", name)
    with pytest.raises(ConfigError, match="no option 'nonsense'"):
        decode_options(plugin, {"nonsense": 1}, "rewards[0]")


async def test_a_number_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(VerifierError, match="not one number"):
        await score("numeric", view(tmp_path, "5", ground_truth="five"))


async def test_a_choice_may_be_given_by_number_or_text(tmp_path: Path) -> None:
    metadata = {"choices": ["red", "green"]}
    assert (await score("mcq", view(tmp_path, "B", answer=1, **metadata))).reward == 1.0
    assert (await score("mcq", view(tmp_path, "green", answer="green", **metadata))).reward == 1.0
    with pytest.raises(VerifierError, match="none of the choices A to B"):
        await score("mcq", view(tmp_path, "B", answer="blue", **metadata))


async def test_mathematics_is_compared_in_another_process(tmp_path: Path, processes: PythonProcesses) -> None:
    trial = msgspec.structs.replace(view(tmp_path, r"so \boxed{2/4}", answer="1/2"), run_python=processes)
    result = await score("math", trial)
    assert (result.reward, result.details["answer"]) == (1.0, "2/4")
    assert (await score("math", trial, compat="rllm")).reward == 0.0
    assert (await score("math", trial, strict=True, expected="3")).reward == 0.0


async def test_mathematics_without_end_is_wrong_and_said(tmp_path: Path, processes: PythonProcesses) -> None:
    trial = msgspec.structs.replace(view(tmp_path, r"\boxed{9^{9^{9^{9^{9}}}}}", answer="7"), run_python=processes)
    result = await score("math", trial, timeout_sec=4, memory="4Gi")
    assert result.reward == 0.0
    after = msgspec.structs.replace(view(tmp_path, "3", answer="3"), run_python=processes)
    assert (await score("math", after)).reward == 1.0


async def test_a_truth_that_is_no_mathematics_is_an_error(tmp_path: Path, processes: PythonProcesses) -> None:
    trial = msgspec.structs.replace(view(tmp_path, "3", answer="$$"), run_python=processes)
    with pytest.raises(VerifierError, match="cannot be read as mathematics"):
        await score("math", trial)


class Interpreter:
    """A sandbox whose python3 is a function of the program's text and its input."""

    def __init__(self, run: Any) -> None:
        self.environment = FakeEnvironment(FakeWorld(), environment_spec())
        self.environment.commands["sh"] = self._run
        self.run = run
        self.programs: list[str] = []

    def _run(self, environment: FakeEnvironment, command: Command) -> ExecResult:
        program = environment.files[command.argv[-1]].decode()
        self.programs.append(program)
        result = self.run(program, (command.stdin or b"").decode())
        return result if isinstance(result, ExecResult) else ExecResult(exit_code=0, stdout=str(result).encode())


FENCED = "Here:\n```python\nprint(int(input()) * 2)\n```\nDone."


async def test_programs_are_run_in_the_sandbox_case_by_case(tmp_path: Path) -> None:
    sandbox = Interpreter(lambda program, given: f"{int(given) * 2}\n")
    cases = {"inputs": ["1", "2"], "outputs": ["2\n", "5"]}
    result = await score("code", view(tmp_path, FENCED, sandbox.environment, input_output=cases))
    assert result.rewards == {"reward": 0.0, "passed": 0.5}
    assert result.details["failed"] == ["2: printed '4' instead of '5'"]
    assert sandbox.programs[0] == "print(int(input()) * 2)\n"
    partial = await score(
        "code", view(tmp_path, FENCED, sandbox.environment, cases=[{"input": "3", "output": "6"}]), partial=True
    )
    assert partial.reward == 1.0


async def test_a_sandbox_without_the_interpreter_is_an_error(tmp_path: Path) -> None:
    sandbox = Interpreter(lambda program, given: ExecResult(exit_code=127, stderr=b"not found"))
    with pytest.raises(VerifierError, match="cannot run python3: not found"):
        await score("code", view(tmp_path, FENCED, sandbox.environment, cases=[{"output": "1"}]))


async def test_an_answer_without_a_program_is_zero_and_nothing_is_run(tmp_path: Path) -> None:
    sandbox = Interpreter(lambda program, given: "1")
    result = await score("code", view(tmp_path, "I cannot.", sandbox.environment, cases=[{"output": "1"}]))
    assert (result.reward, sandbox.programs) == (0.0, [])


REPORT = b"""<testsuites><testsuite><testcase classname="t" name="a"/><testcase classname="t" name="b"><failure/></testcase>
<testcase classname="t" name="c"><skipped/></testcase></testsuite></testsuites>"""


def test_a_report_of_pytest_is_counted_without_what_was_skipped() -> None:
    assert counted(REPORT) == (1, 2, ["t.b"])
    for bad in (b"", b"<a", b'<!DOCTYPE a [<!ENTITY b "c">]><a/>'):
        with pytest.raises(VerifierError):
            counted(bad)


@pytest.mark.parametrize(
    ("code", "report", "options", "outcome"),
    [
        (0, b'<testsuites><testcase name="a"/></testsuites>', {}, {"reward": 1.0, "passed": 1.0}),
        (1, REPORT, {}, {"reward": 0.0, "passed": 0.5}),
        (1, REPORT, {"partial": True}, {"reward": 0.5, "passed": 0.5}),
        (5, b"", {}, "no test was found: said"),
        (4, b"", {}, "called wrongly"),
        (127, b"", {}, "exit code 127"),
        (0, b'<testsuites><testcase name="a"><skipped/></testcase></testsuites>', {}, "every test was skipped"),
    ],
)
async def test_pytest_in_the_sandbox(code: int, report: bytes, options: dict[str, Any], outcome: Any, tmp_path: Path) -> None:
    environment = FakeEnvironment(FakeWorld(), environment_spec())

    def run(environment: FakeEnvironment, command: Command) -> ExecResult:
        if report:
            environment.files["/logs/verifier/pytest.xml"] = report
        return ExecResult(exit_code=code, stdout=b"said")

    environment.commands["python3"] = run
    trial = view(tmp_path, "", environment)
    if isinstance(outcome, str):
        with pytest.raises(VerifierError, match=outcome):
            await score("pytest", trial, **options)
    else:
        assert (await score("pytest", trial, **options)).rewards == outcome


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>\\boxed{1}</think>\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("<answer>7</answer> or so", "7"),
        ("The answer is 3.\nNo: the final answer is: 4.", "4."),
        ("plain", "plain"),
        ("reasoning</think>\nrest", "rest"),
    ],
)
def test_the_final_answer_is_found(text: str, answer: str) -> None:
    assert final_answer(text) == answer


def test_programs_are_found() -> None:
    assert code_of("```\nx\n```\n```python\ny\n```\n```text\nz\n```") == "y\n"
    assert code_of("```js\na\n```\n```js\nb\n```") == "b\n"
    assert code_of("def f():\n    pass") == "def f():\n    pass"
    assert code_of("no program") == ""


texts = st.text(alphabet=st.sampled_from(list("aA1.,-+ %\\{}()*/<>thinkboxedanswer:\n`é√")) | st.characters(), max_size=60)


@given(texts, texts)
def test_whatever_is_said_scores_from_0_to_1(said: str, expected: str) -> None:
    for function in (exact_match, f1, contains, similarity):
        assert 0.0 <= function(said, expected) <= 1.0
    assert exact_match(said, said) == 1.0
    assert f1(said, expected) == pytest.approx(f1(expected, said))


@given(texts)
def test_whatever_is_said_can_be_searched(text: str) -> None:
    assert isinstance(final_answer(text), str)
    assert isinstance(without_thinking(text), str)
    assert boxed(text) is None or isinstance(boxed(text), str)
    assert all(number == number for number in numbers(text))
    assert chosen_letter(text) in {"", *"ABCDEFGHIJ"}
    assert isinstance(code_of(text), str)


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_numbers_are_read_as_python_writes_them(number: float) -> None:
    assert numbers(repr(number)) == [number]
