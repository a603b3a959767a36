"""Programs in the hands of tests: what right and wrong ones get, and that a program cannot decide its own verdict."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rollout_rewards")

from hypothesis import given
from hypothesis import strategies as st

from rollout.core.errors import CommandTimeoutError, VerifierError
from rollout.core.types import Command, ExecResult, VerifyResult
from rollout_rewards.inside.wire import Peer
from unit.rewards.programs import ATTACKS, CHECK, RIGHT, WORKS
from unit.rewards.views import score, view


class Here:
    """An environment that is this machine, for programs that this file knows."""

    async def exec(self, command: Command, sink: Any = None) -> ExecResult:
        process = await asyncio.create_subprocess_exec(
            *command.argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(command.timeout_sec):
                out, err = await process.communicate(command.stdin or b"")
        except TimeoutError:
            process.kill()
            await process.communicate()
            raise CommandTimeoutError("too long") from None
        return ExecResult(exit_code=process.returncode or 0, stdout=out, stderr=err)

    async def upload(self, source: Path, target: str, *, owner: str | None = None) -> None:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(source, target)


async def judged(folder: Path, program: str, test: str, entry: str | None = None, **options: Any) -> VerifyResult:
    metadata = {"test": test, **({"entry_point": entry} if entry else {})}
    trial = view(folder, f"```python\n{program}\n```", Here(), **metadata)
    return await score("code", trial, command=[sys.executable, "{file}"], **options)


@pytest.mark.parametrize("case", WORKS)
async def test_a_right_program_passes_and_a_wrong_one_does_not(tmp_path: Path, case: str) -> None:
    program, test, entry = WORKS[case]
    assert (await judged(tmp_path, program, test, entry)).rewards == {"reward": 1.0, "passed": 1.0}
    result = await judged(
        tmp_path, "def f(*args): return 39\ndouble = order = apply = same = count = sum = Stack = Empty = f", test, entry
    )
    assert (result.reward, len(result.details["failed"])) == (0.0, 1)


@pytest.mark.parametrize("attack", ATTACKS)
async def test_no_program_passes_a_test_that_it_does_not_fulfil(tmp_path: Path, attack: str) -> None:
    result = await judged(tmp_path, ATTACKS[attack], CHECK, "double", timeout_sec=3 if attack == "never ends" else 20)
    assert result.reward == 0.0, result


async def test_a_test_that_shares_the_process_is_deceived_by_an_object_that_equals_everything(tmp_path: Path) -> None:
    assert (await judged(tmp_path, ATTACKS["is equal to everything"], CHECK, "double", shared=True)).reward == 1.0
    assert (await judged(tmp_path, ATTACKS["exits"], CHECK, "double", shared=True)).reward == 0.0


async def test_what_only_sharing_allows_is_said(tmp_path: Path) -> None:
    program, test = "class Box:\n    def __len__(self): return 3", "assert len(Box()) == 3"
    result = await judged(tmp_path, program, test)
    assert result.reward == 0.0
    assert result.warnings == ("the test asks for __len__ of an object of the program, a Box, which only `shared: true` allows",)
    assert (await judged(tmp_path, program, test, shared=True)).reward == 1.0


@pytest.mark.parametrize(
    ("test", "fault"), [("assert (", "not Python"), ("assert True", "never uses"), ("def check(f): ...", "never")]
)
async def test_a_test_that_says_nothing_is_an_error(tmp_path: Path, test: str, fault: str) -> None:
    with pytest.raises(VerifierError, match=fault):
        await judged(tmp_path, RIGHT, test)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.decimals(allow_nan=False)
    | st.fractions(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=10,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=10,
)


@given(plain)
def test_plain_values_cross_as_they_are(value: Any) -> None:
    peer = Peer(-1, -1)
    crossed = peer.decode(json.loads(json.dumps(peer.encode(value))))
    assert (crossed, type(crossed)) == (value, type(value))


@given(
    st.sampled_from(["l", "t", "s", "z", "d", "b", "c", "D", "F", "g", "i", "f", "own", "remote", "pulled", "e", "x"]),
    json_values,
)
def test_whatever_a_program_sends_is_a_value_or_an_exception(mark: str, value: Any) -> None:
    """Never one of its own making: what it calls an object is an object that is asked over the wire."""
    for said in (value, [mark, value], [mark, value, value], [mark]):
        try:
            made = Peer(-1, -1).decode(said)
        except Exception:  # noqa: BLE001 - it fails the test that asked
            continue
        assert type(made).__module__ in ("builtins", "decimal", "fractions", "rollout_rewards.inside.wire")
        if isinstance(made, type):
            assert issubclass(made, Exception)


async def test_a_program_of_roots_verifier_runs_as_nobody(tmp_path: Path) -> None:
    python = "/usr/bin/python3"  # nobody may not run one in root's home
    if os.geteuid() != 0 or not os.path.exists(python):
        pytest.skip("nobody can become another user here")
    program = "import os\ndef who(): return os.geteuid()\nprint(os.geteuid())"
    trial = view(tmp_path, f"```python\n{program}\n```", Here(), test="assert who() == 65534", cases=[{"output": "65534"}])
    assert (await score("code", trial, command=[python, "{file}"])).reward == 1.0
