"""The contract of a verifier, as tests: subclass `VerifierSuite` and say how right, wrong and unusable work looks.

    class TestMine(VerifierSuite):
        verifier = MyVerifier
        options = {"expected": "42"}

        def arrange(self, work: Work, environment: FakeEnvironment, task: Path) -> None:
            if work != "unusable":
                environment.files["/app/answer.txt"] = b"42" if work == "right" else b"41"

Needs pytest and pytest-asyncio, and no sandbox.
"""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
import pytest

from rollout.core.errors import EnvironmentLostError, VerifierError
from rollout.core.protocols import API_VERSION, TrialView, Verifier
from rollout.core.types import TaskFault, TaskOutline, VerifyResult
from rollout.testing.fakes import FakeEnvironment, FakeWorld, hanging
from rollout.testing.suite import KnownFailures, Output, environment_spec, leaks, trial_view

Work = Literal["right", "wrong", "unusable"]
"""What an agent left: the task done, not done, or something that no verdict can be made of."""

_DEADLINE_SEC = 60.0
_SECRET = "sk-3f1c9e0b7d5a48e2-not-a-real-key"


@pytest.mark.asyncio
class VerifierSuite(KnownFailures):
    """What every verifier must do."""

    verifier: ClassVar[type[Verifier]]
    options: ClassVar[dict[str, Any]] = {}
    """As in a job file."""
    deterministic: ClassVar[bool] = True
    """Whether the same work always gets the same rewards."""

    def arrange(self, work: Work, environment: FakeEnvironment, task: Path) -> None:
        """Leave `work` in the sandbox, and in the folder `task` whatever the verifier needs of the task.

        `environment.commands` says what programs do: `environment.commands["test.sh"] = rollout.testing.fakes.reward(1.0)`.
        """
        raise NotImplementedError

    def make(self) -> Verifier:
        return self.verifier(msgspec.convert(self.options, self.verifier.options_type, strict=False))

    def view(self, work: Work, folder: Path) -> tuple[TrialView, FakeEnvironment]:
        environment = FakeEnvironment(FakeWorld(), environment_spec())
        environment.commands.clear()
        task = folder / "task"
        task.mkdir(parents=True, exist_ok=True)
        (task / "instruction.md").write_text("Do it.\n")
        self.arrange(work, environment, task)
        return trial_view(environment, folder, task, env={"JUDGE_API_KEY": _SECRET}, sink=Output()), environment

    async def verdict(self, work: Work, folder: Path) -> VerifyResult:
        view, _ = self.view(work, folder)
        return await self.make().verify(view)

    async def test_is_written_for_this_api_version(self) -> None:
        assert self.verifier.api_version[0] == API_VERSION[0]
        assert self.verifier.api_version <= API_VERSION

    async def test_unknown_options_are_refused(self) -> None:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**self.options, "no-such-option": 1}, self.verifier.options_type)

    async def test_right_work_gets_more_than_wrong_work(self, tmp_path: Path) -> None:
        right = await self.verdict("right", tmp_path / "right")
        wrong = await self.verdict("wrong", tmp_path / "wrong")
        assert right.reward is not None
        assert wrong.reward is not None
        assert right.reward > wrong.reward

    async def test_what_speaks_against_a_task_is_said_and_not_raised(self, tmp_path: Path) -> None:
        """Before a job starts nothing may be there yet, and the verifier may be asked about a folder that lacks everything."""
        ask = getattr(self.make(), "task_faults", lambda task: ())
        view, _ = self.view("right", tmp_path)
        assert list(ask(TaskOutline(directory=view.task_directory, env={"JUDGE_API_KEY": _SECRET}))) == []
        for fault in ask(TaskOutline(directory=tmp_path / "nothing", env={"JUDGE_API_KEY": _SECRET})):
            assert isinstance(fault, TaskFault)
            assert len(str(fault).splitlines()) == 1
            assert _SECRET not in str(fault)

    @pytest.mark.parametrize("work", ["right", "wrong"])
    async def test_rewards_are_finite_numbers(self, work: Work, tmp_path: Path) -> None:
        result = await self.verdict(work, tmp_path)
        assert result.rewards, "a verdict has at least one reward"
        for key, value in result.rewards.items():
            assert isinstance(key, str)
            assert isinstance(value, int | float)
            assert not isinstance(value, bool)
            assert math.isfinite(value)

    async def test_the_same_work_gets_the_same_rewards(self, tmp_path: Path) -> None:
        if not self.deterministic:
            pytest.skip("it does not say so (deterministic = False)")
        first = await self.verdict("right", tmp_path / "first")
        assert (await self.verdict("right", tmp_path / "second")).rewards == first.rewards

    async def test_unusable_work_is_no_verdict(self, tmp_path: Path) -> None:
        with pytest.raises(VerifierError) as caught:
            await self.verdict("unusable", tmp_path)
        assert str(caught.value).strip(), "the error says what was missing"

    async def test_a_lost_sandbox_is_not_a_verdict(self, tmp_path: Path) -> None:
        view, environment = self.view("right", tmp_path)
        await self.make().verify(view)
        if not environment.world.calls:
            pytest.skip("it does not look into the sandbox")
        view, environment = self.view("right", tmp_path / "lost")
        environment.lost = True
        with pytest.raises(EnvironmentLostError):
            await self.make().verify(view)

    async def test_cancelling_ends_its_commands(self, tmp_path: Path) -> None:
        view, environment = self.view("right", tmp_path)
        environment.world.faults["exec"] = hanging
        verdict = asyncio.ensure_future(self.make().verify(view))
        async with asyncio.timeout(_DEADLINE_SEC):
            while not environment.running and not verdict.done():  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0)
            if verdict.done():
                await verdict
                pytest.skip("it runs no command in the sandbox")
            verdict.cancel()
            with pytest.raises(asyncio.CancelledError):
                await verdict
        assert environment.running == 0

    async def test_its_secrets_are_in_no_file(self, tmp_path: Path) -> None:
        view, environment = self.view("right", tmp_path)
        await self.make().verify(view)
        assert not leaks(_SECRET, tmp_path)
        for command in environment.world.steps("exec"):
            assert not any(_SECRET in word for word in command.argv), f"others can read it in `ps`: {command.argv}"
        for path, data in environment.files.items():
            assert _SECRET.encode() not in data, f"it is in {path}"
