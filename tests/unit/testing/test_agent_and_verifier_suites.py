"""The agent and verifier suites find what breaks their contracts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rollout.builtin.nop import NopAgent
from rollout.builtin.script_agent import ScriptAgent
from rollout.core.errors import RolloutError
from rollout.core.types import AgentTurn, Command, VerifyResult
from rollout.testing.agent import AgentSuite
from rollout.testing.fakes import FakeEnvironment, FakeVerifier
from rollout.testing.verifier import VerifierSuite, Work


class Leaky(ScriptAgent):
    """Writes its key into the script instead of reading the variable there."""

    def execute_script(self) -> str:
        return f"export KEY={self.context.env['KEY']}"


class OnCommandLine(NopAgent):
    def __init__(self, options: object, context: object) -> None:
        self.context = context

    async def prompt(self, text: str) -> AgentTurn:
        await self.context.environment.exec(Command(argv=("agent", f"--key={self.context.env['KEY']}")))
        return AgentTurn()


class Deaf(OnCommandLine):
    """Ignores cancellation until the command is done with."""

    async def prompt(self, text: str) -> AgentTurn:
        self.left = asyncio.ensure_future(self.context.environment.exec(Command(argv=("agent",))))
        await asyncio.Event().wait()
        return AgentTurn()


class Careless(OnCommandLine):
    async def install(self) -> None:
        await self.context.environment.exec(Command(argv=("installer",)))


class Stubborn(OnCommandLine):
    async def prompt(self, text: str) -> AgentTurn:
        try:
            await self.context.environment.exec(Command(argv=("agent",)))
        except RolloutError:
            return AgentTurn(exit_code=1)
        return AgentTurn()


def agent_suite(broken: type, **fields: object) -> AgentSuite:
    return type("Broken", (AgentSuite,), {"agent": broken, "env": {"KEY": "key-0123456789"}, **fields})()


async def test_a_key_in_a_script_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="KEY is in"):
        await agent_suite(Leaky, options={"execute": "true"}).test_secrets_are_on_no_command_line_and_in_no_file(tmp_path)


async def test_a_key_on_a_command_line_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ps"):
        await agent_suite(OnCommandLine).test_secrets_are_on_no_command_line_and_in_no_file(tmp_path)


async def test_a_script_that_does_not_parse_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"execute\.sh"):
        await agent_suite(ScriptAgent, options={"execute": "if true; then"}).test_its_scripts_parse(tmp_path)


async def test_a_failed_install_that_nobody_hears_of_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="nothing was said"):
        await agent_suite(Careless).test_a_failed_install_is_an_install_error(tmp_path)


async def test_a_command_that_outlives_its_prompt_is_found(tmp_path: Path) -> None:
    suite = agent_suite(Deaf)
    with pytest.raises(AssertionError):
        await suite.test_cancelling_a_prompt_ends_its_command(tmp_path)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def test_a_made_up_exit_code_for_a_lost_sandbox_is_found(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await agent_suite(Stubborn).test_a_lost_sandbox_is_not_a_result(tmp_path)


class Indifferent(VerifierSuite):
    verifier = FakeVerifier

    def arrange(self, work: Work, environment: FakeEnvironment, task: Path) -> None:
        pass


class NotANumber(Indifferent):
    async def verdict(self, work: Work, folder: Path) -> VerifyResult:
        return VerifyResult(rewards={"reward": float("nan")})


async def test_a_verifier_that_cannot_tell_right_from_wrong_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        await Indifferent().test_right_work_gets_more_than_wrong_work(tmp_path)


async def test_a_verdict_on_nothing_is_found(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await Indifferent().test_unusable_work_is_no_verdict(tmp_path)


async def test_a_reward_that_is_no_number_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        await NotANumber().test_rewards_are_finite_numbers("right", tmp_path)
