"""Python verifiers in processes of their own: what they get, what becomes of what they return, and what cannot hurt."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from rollout.builtin.python_verifier import PythonVerifier, PythonVerifierOptions
from rollout.core.episodes import Episode, Step, Task, Trajectory
from rollout.core.errors import EnvironmentLostError, VerifierError, VerifierTimeoutError
from rollout.core.protocols import PythonCall, TrialView
from rollout.core.trial import python_processes
from rollout.core.trial.python_processes import PythonProcesses
from rollout.core.types import ExecResult, VerifyResult
from rollout.testing.fakes import FakeEnvironment, FakeWorld
from rollout.testing.suite import Output, environment_spec, trial_view


@pytest_asyncio.fixture
async def processes(tmp_path: Path) -> AsyncIterator[PythonProcesses]:
    pool = PythonProcesses(tmp_path / "scratch", 2)
    yield pool
    await pool.aclose()


class Trial:
    """A trial whose task has the verifier `tests/evaluate.py`."""

    def __init__(self, folder: Path, pool: PythonProcesses) -> None:
        self.folder = folder
        self.pool = pool
        self.output = Output()
        self.environment = FakeEnvironment(FakeWorld(), environment_spec())
        self.metadata: dict[str, Any] = {"ground_truth": "42"}
        self.env: dict[str, str] = {}
        self.episode = Episode(trajectories=[Trajectory(output="42", steps=[Step(id="1", input="q", output="42")])])

    def view(self, code: str) -> TrialView:
        task = self.folder / "task"
        (task / "tests").mkdir(parents=True, exist_ok=True)
        (task / "instruction.md").write_text("Say 42.\n")
        file, code = task / "tests/evaluate.py", textwrap.dedent(code)
        if not file.exists() or file.read_text() != code:  # other calls may be reading it
            file.write_text(code)
        view = trial_view(self.environment, self.folder, task, env=self.env, sink=self.output)
        return msgspec.structs.replace(
            view,
            task=Task(id="t1", instruction="Say 42.\n", metadata=self.metadata, dataset_dir=self.folder, sub_dir=Path("task")),
            episode=self.episode,
            run_python=self.pool,
        )

    async def verify(self, code: str, **options: Any) -> VerifyResult:
        decoded = msgspec.convert({"module": "tests.evaluate", **options}, PythonVerifierOptions)
        return await PythonVerifier(decoded).verify(self.view(code))


@pytest.fixture
def trial(tmp_path: Path, processes: PythonProcesses) -> Trial:
    return Trial(tmp_path, processes)


@pytest.mark.parametrize(
    "code",
    [
        "def evaluate(task, episode): return episode.answer == task.metadata['ground_truth']",
        "def evaluate(metadata, trajectory): return trajectory['output'] == metadata['ground_truth']",
        "def evaluate(metadata, *, trajectory, extra=3): return trajectory['steps'][0]['output'] == '42' and extra == 3",
        "def evaluate(a, b): return b.trajectories[-1].output == a.metadata['ground_truth']",
        "def evaluate(**known): return known['episode'].answer == '42'",
        "def evaluate(task, /, episode): return task.id == 't1' and task.text.strip() == 'Say 42.'",
        "async def evaluate(metadata):\n    import asyncio\n    await asyncio.sleep(0)\n    return True",
        "class evaluate:\n    def evaluate(self, task, episode): return True",
        "class E:\n    def evaluate(self, task, episode): return True\nevaluate = E()",
        "def evaluate(task): return task.task_dir.name == 'task' and (task.task_dir / 'instruction.md').is_file()",
    ],
)
async def test_functions_are_called_by_the_names_of_their_parameters(trial: Trial, code: str) -> None:
    result = await trial.verify(code)
    assert result.rewards == {"reward": 1.0}
    assert result.source == "tests.evaluate:evaluate"


async def test_details_and_signals_come_back(trial: Trial) -> None:
    code = """
        from rollout import EvalOutput, Signal
        def evaluate(task, episode):
            return EvalOutput(0.5, False, [Signal("tests", 0.5)], {"total": 8})
    """
    result = await trial.verify(code)
    assert result.rewards == {"reward": 0.5, "is_correct": 0.0, "tests": 0.5}
    assert result.details == {"total": 8}


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            "def evaluate(task): return 1 / 0",
            r"^tests\.evaluate:evaluate: ZeroDivisionError: division by zero \(evaluate.py:1\)$",
        ),
        ("def evaluate(task): return None", "None, which is not a number"),
        ("def evaluate(task): return float('nan')", "finite"),
        ("def evaluate(task, flavour): return 1", "wants `flavour`; there are task, metadata, episode, trajectory"),
        ("def other(task): return 1", "has no `evaluate`"),
        ("evaluate = 3", "cannot be called"),
        ("import no_such_module_anywhere", "No module named 'no_such_module_anywhere'"),
        ("def evaluate(:", r"^tests\.evaluate:evaluate: SyntaxError: [^()]*\(evaluate\.py, line 1\)$"),
        ("import sys\ndef evaluate(task): sys.exit(3)", "SystemExit"),
        ("import os\ndef evaluate(task): os._exit(3)", "the process of tests.evaluate:evaluate died with exit code 3"),
        ("import os\ndef evaluate(task): os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("def evaluate(task): return 'x' * (512 << 20)", "^tests.evaluate:evaluate ran out of memory; it may use 256 MiB"),
    ],
)
async def test_a_verifier_that_fails_is_an_error_and_the_next_one_is_served(trial: Trial, code: str, why: str) -> None:
    with pytest.raises(VerifierError, match=why):
        await trial.verify(code, memory="256Mi")
    assert (await trial.verify("def evaluate(task): return 1")).reward == 1.0


async def test_the_traceback_is_kept_where_output_is(trial: Trial) -> None:
    with pytest.raises(VerifierError):
        await trial.verify("def evaluate(task):\n    print('looking')\n    return task.nothing")
    assert "looking\n" in trial.output.text()
    assert "return task.nothing" in trial.output.text()


async def test_what_a_killed_verifier_printed_is_kept(trial: Trial) -> None:
    with pytest.raises(VerifierError):
        await trial.verify("import os\ndef evaluate(task):\n    print('before', flush=True)\n    os._exit(1)")
    assert trial.output.text() == "before\n"


async def test_output_belongs_to_the_call_that_printed_it(tmp_path: Path) -> None:
    pool = PythonProcesses(tmp_path / "scratch", 1)
    try:
        first, second = Trial(tmp_path / "1", pool), Trial(tmp_path / "2", pool)
        await first.verify("def evaluate(task):\n    print('first')\n    return 1")
        await second.verify("def evaluate(task):\n    print('second')\n    return 1")
        assert (first.output.text(), second.output.text()) == ("first\n", "second\n")
    finally:
        await pool.aclose()


async def test_a_verifier_over_its_time_is_killed_with_what_it_started(trial: Trial, tmp_path: Path) -> None:
    code = f"""
        import subprocess, time
        def evaluate(task):
            child = subprocess.Popen(["sleep", "1000"])
            open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
            while True:
                time.sleep(100)
    """
    with pytest.raises(VerifierTimeoutError, match="still running after 5 s"):
        await trial.verify(code, timeout_sec=5)
    await dead(int((tmp_path / "pid").read_text()))


async def test_the_start_of_a_process_is_not_the_verifiers_time(trial: Trial, tmp_path: Path) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow/sitecustomize.py").write_text("import time\ntime.sleep(5)\n")
    trial.env = {"PYTHONPATH": str(tmp_path / "slow")}
    assert (await trial.verify("def evaluate(task): return 1", timeout_sec=4)).reward == 1.0


async def test_a_process_that_dies_as_it_starts_is_an_error(trial: Trial, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/sitecustomize.py").write_text("import os\nos._exit(7)\n")
    trial.env = {"PYTHONPATH": str(tmp_path / "broken")}
    with pytest.raises(VerifierError, match="died as it started with exit code 7"):
        await trial.verify("def evaluate(task): return 1")


async def test_a_cancelled_call_kills_its_process(trial: Trial, tmp_path: Path) -> None:
    started = tmp_path / "started"
    code = f"""
        import os
        def evaluate(task):
            open({str(started)!r}, "w").write(str(os.getpid()))
            while True: pass
    """
    call = asyncio.ensure_future(trial.verify(code))
    async with asyncio.timeout(60):
        while not started.exists() or not started.read_text():
            await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await dead(int(started.read_text()))


async def test_nothing_of_the_host_is_in_its_variables(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-not-for-verifiers")
    trial.pool = PythonProcesses(trial.folder / "other scratch", 1)
    trial.env = {"JUDGE": "yes"}
    try:
        result = await trial.verify(
            "import os\ndef evaluate(task): return {'reward': 1, 'metadata': {'names': sorted(os.environ)}}"
        )
    finally:
        await trial.pool.aclose()
    assert "JUDGE" in result.details["names"]
    assert "ANTHROPIC_API_KEY" not in result.details["names"]


async def test_trials_with_other_variables_share_no_process(trial: Trial) -> None:
    code = "import os\ndef evaluate(task): return {'reward': 1, 'metadata': {'key': os.environ.get('KEY')}}"
    for value in ("a", "b", "a"):
        trial.env = {"KEY": value}
        assert (await trial.verify(code)).details == {"key": value}
    trial.env = {}
    assert (await trial.verify(code)).details == {"key": None}


async def test_a_process_is_used_again_unless_it_is_to_be_fresh(trial: Trial) -> None:
    code = "import os\ndef evaluate(task): return {'reward': 1, 'metadata': {'pid': os.getpid()}}"
    pids = [(await trial.verify(code)).details["pid"] for _ in range(3)]
    assert len(set(pids)) == 1
    fresh = [(await trial.verify(code, fresh=True)).details["pid"] for _ in range(2)]
    assert len({*pids, *fresh}) == 3


async def test_processes_leave_no_files(trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    folder = tmp_path / "work" / "verifiers"
    pool = trial.pool = PythonProcesses(folder, 1)
    assert not folder.exists()
    for _ in range(2):
        await trial.verify("def evaluate(task):\n    open('left', 'w').close()\n    print('x')\n    return 1", fresh=True)
    assert list(folder.iterdir()) == []
    await pool.aclose()
    assert not folder.exists()
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_a_changed_verifier_is_read_again(trial: Trial) -> None:
    assert (await trial.verify("def evaluate(task): return 0.25")).reward == 0.25
    assert (await trial.verify("def evaluate(task): return 0.125 + 0")).reward == 0.125


async def test_modules_beside_a_verifier_are_its_own(tmp_path: Path) -> None:
    pool = PythonProcesses(tmp_path / "scratch", 1)
    try:
        for name, value in (("one", 0.25), ("two", 0.75)):
            trial = Trial(tmp_path / name, pool)
            (tmp_path / name / "task/tests").mkdir(parents=True)
            (tmp_path / name / "task/tests/scoring.py").write_text(f"VALUE = {value}\n")
            assert (await trial.verify("import scoring\ndef evaluate(task): return scoring.VALUE")).reward == value
    finally:
        await pool.aclose()


async def test_more_calls_than_processes_wait_for_their_turn(trial: Trial) -> None:
    view = trial.view("def evaluate(task): return 1")
    verifier = PythonVerifier(PythonVerifierOptions(module="tests/evaluate.py"))
    results = await asyncio.gather(*(verifier.verify(view) for _ in range(50)))
    assert [result.reward for result in results] == [1.0] * 50


async def test_a_cancelled_waiter_does_not_lose_its_turn_to_nobody(tmp_path: Path) -> None:
    pool = PythonProcesses(tmp_path / "scratch", 1)
    trial = Trial(tmp_path, pool)
    try:
        view = trial.view("import time\ndef evaluate(task):\n    time.sleep(0.05)\n    return 1")
        verifier = PythonVerifier(PythonVerifierOptions(module="tests.evaluate"))
        calls = [asyncio.ensure_future(verifier.verify(view)) for _ in range(6)]
        await asyncio.sleep(0)
        for call in calls[1:4]:
            call.cancel()
        done = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
        assert sum(isinstance(result, VerifyResult) for result in done) == 3
    finally:
        await pool.aclose()


async def test_a_hybrid_verifier_works_in_the_sandbox(trial: Trial) -> None:
    trial.environment.files["/app/answer.txt"] = b"42"
    trial.environment.commands["check"] = lambda environment, command: ExecResult(exit_code=3, stdout=b"out", stderr=b"err")
    code = """
        def evaluate(task, sandbox):
            sandbox.write_file("/app/new.txt", "hello")
            done = sandbox.run(["check", "it"])
            try:
                sandbox.exec(["check"])
            except RuntimeError as error:
                said = str(error)
            return {"reward": sandbox.read_file("/app/answer.txt") == b"42", "code": done["exit_code"],
                    "metadata": {"said": said, "stdout": done["stdout"]}}
    """
    result = await trial.verify(code)
    assert result.rewards == {"reward": 1.0, "code": 3.0}
    assert result.details == {"said": "exit code 3: err", "stdout": "out"}
    assert trial.environment.files["/app/new.txt"] == b"hello"


async def test_without_a_sandbox_a_verifier_that_wants_one_is_told(trial: Trial) -> None:
    with pytest.raises(VerifierError, match="no environment, so no `sandbox`"):
        await trial.verify("def evaluate(task, sandbox): return 1", sandbox=False)


async def test_a_lost_sandbox_is_not_a_verdict(trial: Trial) -> None:
    trial.environment.lost = True
    with pytest.raises(EnvironmentLostError):
        await trial.verify("def evaluate(task, sandbox):\n    sandbox.read_file('/x')\n    return 1")


async def test_an_import_path_is_looked_for_beside_the_data_set(trial: Trial) -> None:
    (trial.folder / "scorers.py").write_text("def best(task): return 0.5\n")
    view = trial.view("")
    verifier = PythonVerifier(PythonVerifierOptions(import_path="scorers:best"))
    assert (await verifier.verify(view)).reward == 0.5
    with pytest.raises(VerifierError, match="there is no Python module `nowhere`"):
        await PythonVerifier(PythonVerifierOptions(import_path="nowhere:best")).verify(view)


async def test_what_is_no_plain_data_is_refused(processes: PythonProcesses) -> None:
    with pytest.raises(VerifierError, match="not plain data"):
        await processes(PythonCall(target="os:getpid", arguments={"x": object()}, sink=Output()))
    with pytest.raises(VerifierError, match="os:scandir"):
        await processes(PythonCall(target="os:scandir", sink=Output()))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "exactly one"),
        ({"module": "a", "import_path": "b:c"}, "exactly one"),
        ({"import_path": "b"}, "package.module:function"),
        ({"module": "a", "memory": "much"}, "much"),
        ({"module": "a", "timeout_sec": 0}, "> 0"),
    ],
)
def test_options_are_checked(options: dict[str, Any], why: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=why):
        msgspec.convert(options, PythonVerifierOptions)


async def test_a_killed_parent_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text("def loop():\n    while True: pass\n")
    program = f"""
import asyncio
from pathlib import Path
from rollout.core.protocols import PythonCall
from rollout.core.trial.python_processes import PythonProcesses

async def main():
    pool = PythonProcesses(Path({str(tmp_path / "scratch")!r}))
    print(await pool(PythonCall(target="os:getpid", sink=print)), flush=True)
    await pool(PythonCall(target="busy:loop", search=({str(tmp_path)!r},), sink=print))

asyncio.run(main())
"""
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE, env=env)
    assert parent.stdout is not None
    worker = int(await parent.stdout.readline())
    assert alive(worker)
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    await dead(worker)


async def dead(pid: int) -> None:
    """Wait until the process runs no more: one that was sent SIGKILL goes when the kernel gets to it."""
    async with asyncio.timeout(60):
        while alive(pid):
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether the process runs; a dead one that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


QUICK = """
import os, time
def evaluate(task):
    said = task.metadata["say"]
    print("said", said)
    if said == "die": os.kill(os.getpid(), 9)
    if said == "exit": raise SystemExit
    if said == "hang": time.sleep(60)
    return int(said)
"""


async def test_quick_calls_wait_in_the_processes_and_none_gets_what_is_anothers(
    tmp_path: Path, processes: PythonProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the call before one ended their process: the answers, what was printed, and whose fault it is."""
    monkeypatch.setattr(python_processes, "_QUICK_SEC", 60.0)

    async def say(said: str) -> tuple[str, str]:
        trial = Trial(tmp_path, processes)
        trial.metadata = {"say": said}
        try:
            result: object = (await trial.verify(QUICK, sandbox=False, timeout_sec=2 if said == "hang" else None)).reward
        except VerifierError as error:
            result = str(error)
        return str(result), b"".join(chunk for stream, chunk in trial.output.chunks if stream == "stdout").decode()

    await asyncio.gather(*(say("1") for _ in range(20)))
    words = [str(number) if number % 9 else ("die", "exit", "hang")[number // 9 % 3] for number in range(1, 60)]
    shared = 0
    calls = [asyncio.ensure_future(say(word)) for word in words]
    while not all(call.done() for call in calls):
        shared = max(shared, 0, *(worker.calls for worker in processes._running))
        await asyncio.sleep(0.001)
    assert shared == 2
    faults = {"die": "died of signal SIGKILL", "exit": "ended its process", "hang": "was still running after 2 s"}
    for word, call in zip(words, calls, strict=True):
        result, printed = call.result()
        assert faults.get(word, f"{word}.0") in result
        assert printed == f"said {word}\n"


async def test_a_quick_call_that_is_given_up_before_its_turn_harms_no_other(
    trial: Trial, processes: PythonProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_processes, "_QUICK_SEC", 60.0)
    code = "import time\ndef evaluate(task): time.sleep(task.metadata.get('wait', 0)); return 1\n"
    await trial.verify(code, sandbox=False)

    def start(wait: float) -> asyncio.Future[VerifyResult]:
        trial.metadata = {"wait": wait}
        return asyncio.ensure_future(trial.verify(code, sandbox=False))

    ahead = [start(0.3), start(0.3)]
    await asyncio.sleep(0)
    behind = [start(0), start(0)]
    while sum(worker.calls for worker in processes._running) < 4:
        await asyncio.sleep(0.005)
    for call in behind:
        call.cancel()
    assert [result.reward for result in await asyncio.gather(*ahead)] == [1.0, 1.0]
    assert (await trial.verify(code, sandbox=False)).reward == 1.0
