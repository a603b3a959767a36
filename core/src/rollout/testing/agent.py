"""The contract of an agent, as tests: subclass `AgentSuite` and say which agent, with which options.

    class TestMine(AgentSuite):
        agent = MyAgent
        options = {"model": "some-model"}
        env = {"MY_API_KEY": "sk-not-a-real-key"}

Most tests need no sandbox: they look at what the agent asks of a fake one. `test_installing_twice_is_harmless` installs it for
real in an environment of type `environment_type`, and is skipped where that cannot run. Needs pytest and pytest-asyncio.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from rollout.core.errors import AgentInstallError, EnvironmentLostError, PluginError, SandboxError, TaskError
from rollout.core.plugins import find
from rollout.core.protocols import API_VERSION, Agent, AgentSession, BackendContext, Environment, EnvironmentBackend
from rollout.core.trial.script import interpreter
from rollout.core.types import AgentTurn, Command, ExecResult, TaskFault, TaskOutline
from rollout.testing.fakes import FakeEnvironment, FakeWorld
from rollout.testing.suite import KnownFailures, Output, agent_context, environment_spec, leaks

_DEADLINE_SEC = 60.0
_INSTRUCTION = "Say 'hello'; then print $HOME, `id` and \"quotes\".\n\\ ünïcödé\n"
_SHELLS = ("bash", "sh", "dash", "ash")


class _Sandbox(FakeEnvironment):
    """A fake sandbox in which every command ends in the same way."""

    def __init__(self, *, exit_code: int = 0, hangs: bool = False, lost: bool = False) -> None:
        super().__init__(FakeWorld(processes=True), environment_spec())
        self.lost = lost
        self._exit_code = exit_code
        self._hangs = hangs

    async def exec(self, command: Command, sink: Any = None) -> ExecResult:
        await super().exec(command, sink)
        if self._hangs:
            self.running += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.running -= 1
        return ExecResult(exit_code=self._exit_code)

    def commands_run(self) -> list[Command]:
        return self.world.steps("exec")


@pytest.mark.asyncio
class AgentSuite(KnownFailures):
    """What every agent must do."""

    agent: ClassVar[type[Agent]]
    options: ClassVar[dict[str, Any]] = {}
    """As in a job file."""
    env: ClassVar[dict[str, str]] = {}
    """The variables it needs, as `env:` of a job file gives them. Their values must stay secret."""
    install_for_real: ClassVar[bool] = True
    """Whether the tests may run its installer (which may need the network)."""
    environment_type: ClassVar[str] = "local"
    environment_options: ClassVar[dict[str, Any]] = {}

    def make(self, environment: Environment, folder: Path, sink: Any = None) -> Agent:
        """The agent in a trial whose files on the host are in `folder`."""
        options = msgspec.convert(self.options, self.agent.options_type, strict=False)
        context = agent_context(environment, folder, instruction=_INSTRUCTION, env=dict(self.env), sink=sink or Output())
        (folder / "task" / "solution").mkdir(exist_ok=True)
        (folder / "task" / "solution" / "solve.sh").write_text("#!/bin/sh\ntrue\n")
        return self.agent(options, context)

    async def connected(self, environment: Environment, folder: Path) -> AgentSession:
        agent = self.make(environment, folder)
        await agent.install()
        return await agent.connect()

    async def work(self, environment: Environment, folder: Path) -> AgentTurn:
        """Install it, give it one prompt, close it."""
        session = await self.connected(environment, folder)
        turn = await session.prompt(_INSTRUCTION)
        await session.close()
        return turn

    # --- the plugin ---

    async def test_is_written_for_this_api_version(self) -> None:
        assert self.agent.api_version[0] == API_VERSION[0]
        assert self.agent.api_version <= API_VERSION

    async def test_unknown_options_are_refused(self) -> None:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**self.options, "no-such-option": 1}, self.agent.options_type)

    async def test_options_have_a_schema(self) -> None:
        assert msgspec.json.schema(self.agent.options_type)

    async def test_what_speaks_against_a_task_is_said_and_not_raised(self, tmp_path: Path) -> None:
        """Before a job starts nothing may be there yet, and the agent may be asked about a folder that lacks everything."""
        ask = getattr(self.agent, "task_faults", lambda options, task: ())
        options = msgspec.convert(self.options, self.agent.options_type, strict=False)
        self.make(_Sandbox(), tmp_path)
        assert list(ask(options, TaskOutline(directory=tmp_path / "task"))) == []
        for fault in ask(options, TaskOutline(directory=tmp_path / "nothing")):
            assert isinstance(fault, TaskFault)
            assert len(str(fault).splitlines()) == 1

    async def test_making_one_does_nothing(self, tmp_path: Path) -> None:
        sandbox = _Sandbox()
        self.make(sandbox, tmp_path)
        assert sandbox.world.calls == []
        assert not (tmp_path / "trial").exists()

    # --- its scripts ---

    async def test_its_scripts_parse(self, tmp_path: Path) -> None:
        sandbox = _Sandbox()
        await self.work(sandbox, tmp_path)
        for path, data in sandbox.files.items():
            assert (fault := _syntax_fault(path, data)) is None, f"{path}: {fault}"

    async def test_secrets_are_on_no_command_line_and_in_no_file(self, tmp_path: Path) -> None:
        sandbox = _Sandbox()
        await self.work(sandbox, tmp_path)
        for name, secret in self.env.items():
            for command in sandbox.commands_run():
                assert not any(secret in word for word in command.argv), f"others can read {name} in `ps`: {command.argv}"
            for path, data in sandbox.files.items():
                assert secret.encode() not in data, f"{name} is in {path}"
            assert not leaks(secret, tmp_path), f"{name} is in the trial's folder: {leaks(secret, tmp_path)}"

    async def test_every_command_sees_the_variables(self, tmp_path: Path) -> None:
        if not self.env:
            pytest.skip("it needs no variables")
        sandbox = _Sandbox()
        await self.work(sandbox, tmp_path)
        seen = [command.env for command in sandbox.commands_run()]
        assert any(all(name in env for name in self.env) for env in seen), "no command was given the agent's variables"

    # --- what happens to it ---

    async def test_a_failed_install_is_an_install_error(self, tmp_path: Path) -> None:
        sandbox = _Sandbox(exit_code=3)
        agent = self.make(sandbox, tmp_path)
        try:
            await agent.install()
        except AgentInstallError as error:
            assert "3" in str(error), "the exit code is in the text"
        else:
            assert sandbox.commands_run() == [], "a command of the installer failed and nothing was said"

    async def test_a_lost_sandbox_is_not_a_result(self, tmp_path: Path) -> None:
        sandbox = _Sandbox()
        session = await self.connected(sandbox, tmp_path)
        used = len(sandbox.commands_run())
        await session.prompt(_INSTRUCTION)
        if len(sandbox.commands_run()) == used:
            await session.close()
            pytest.skip("it does not use the sandbox")
        sandbox.lost = True
        with pytest.raises(EnvironmentLostError):
            await session.prompt(_INSTRUCTION)

    async def test_a_failing_command_is_a_turn_with_its_exit_code(self, tmp_path: Path) -> None:
        sandbox = _Sandbox()
        session = await self.connected(sandbox, tmp_path)
        used = len(sandbox.commands_run())
        sandbox._exit_code = 7
        turn = await session.prompt(_INSTRUCTION)
        await session.close()
        if len(sandbox.commands_run()) > used and turn.exit_code is not None:
            assert turn.exit_code == 7

    async def test_cancelling_a_prompt_ends_its_command(self, tmp_path: Path) -> None:
        sandbox = _Sandbox()
        session = await self.connected(sandbox, tmp_path)
        sandbox._hangs = True
        prompt = asyncio.ensure_future(session.prompt(_INSTRUCTION))
        async with asyncio.timeout(_DEADLINE_SEC):
            while not sandbox.running and not prompt.done():  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0)
            if prompt.done():
                await prompt
                await session.close()
                pytest.skip("it does not use the sandbox")
            prompt.cancel()
            with pytest.raises(asyncio.CancelledError):
                await prompt
        assert sandbox.running == 0
        sandbox._hangs = False
        await session.close()

    async def test_closing_twice_is_harmless(self, tmp_path: Path) -> None:
        session = await self.connected(_Sandbox(), tmp_path)
        await session.close()
        await session.close()

    async def test_installing_twice_is_harmless(self, tmp_path: Path) -> None:
        if not self.install_for_real:
            pytest.skip("its installer is not to be run (install_for_real = False)")
        async with self._real_environment(tmp_path) as environment:
            await self.make(environment, tmp_path).install()
            await self.make(environment, tmp_path).install()

    @asynccontextmanager
    async def _real_environment(self, folder: Path) -> AsyncIterator[Environment]:
        """A sandbox of type `environment_type`, or a skipped test."""
        context = BackendContext(job_id="contract", work_dir=folder / "work", cache_dir=folder / "cache", concurrency=1)
        spec = environment_spec()
        try:
            plugin = find("environments", self.environment_type)
            options = msgspec.convert(self.environment_options, plugin.cls.options_type)
            backend: EnvironmentBackend = plugin.cls(options, context)
            backend.check(spec)
        except (PluginError, SandboxError, TaskError) as error:
            pytest.skip(f"no sandbox of type {self.environment_type} here: {error}")
        try:
            environment = await backend.start(spec, await backend.prepare(spec))
            try:
                yield environment
            finally:
                await environment.stop()
        finally:
            await backend.aclose()


def _syntax_fault(path: str, data: bytes) -> str | None:
    """What the script's own shell says about it; None when it parses, or is no shell script."""
    if not data.startswith(b"#!") and not path.endswith(".sh"):
        return None
    words = [word.rpartition("/")[2] for word in interpreter(data)]
    shell = next((word for word in words if word in _SHELLS and shutil.which(word)), None)
    if shell is None:
        return None
    done = subprocess.run([shell, "-n"], input=data, capture_output=True, check=False)
    return done.stderr.decode("utf-8", "replace") or f"exit code {done.returncode}" if done.returncode else None
