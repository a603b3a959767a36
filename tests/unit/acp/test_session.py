"""Sessions with the scripted agent, as a real process: what each side says, and how each of them ends."""

from __future__ import annotations

import asyncio
import json
import resource
import shlex
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollout import AgentContext, AgentError, AgentTimeoutError, EnvironmentLostError, McpServer, Usage
from rollout.testing import FakeEnvironment, FakeWorld, acp_agent
from rollout.testing.host_process import HostProcess
from rollout.testing.suite import Output, agent_context, environment_spec
from rollout_acp.agent import AcpAgent
from rollout_acp.options import AcpOptions
from rollout_acp.session import AcpSession

COMMAND = shlex.join([sys.executable, acp_agent.__file__])


class Bench:
    """An agent with its context, and what it printed."""

    def __init__(self, folder: Path, flags: str, servers: tuple[McpServer, ...] = (), **options: Any) -> None:
        self.output = Output()
        self.spent: list[Usage] = []
        self.environment = FakeEnvironment(FakeWorld(processes=True), environment_spec())
        context: AgentContext = agent_context(
            self.environment, folder, instruction="do it", env={"DEMO": "of the agent"}, sink=self.output
        )
        self.folder = folder / "trial"
        context = msgspec.structs.replace(context, spent=self.spent.append, workdir=str(folder), mcp_servers=servers)
        self.agent = AcpAgent(msgspec.convert({"command": f"exec {COMMAND} {flags}", **options}, AcpOptions), context)

    def wire(self) -> list[tuple[str, Any]]:
        lines = (self.folder / "agent" / "acp.jsonl").read_text().splitlines()
        return [(record["direction"], record["message"]) for record in map(json.loads, lines)]

    def sent(self, method: str) -> Any:
        return next(message["params"] for direction, message in self.wire() if message.get("method") == method)

    def trajectory(self) -> Any:
        report = self.agent.trajectory(self.folder)
        assert report is not None
        assert (report.trust, report.native) == ("observed", "agent/acp.jsonl")
        return report.trajectory


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    @asynccontextmanager
    async def open_one(flags: str = "", **options: Any) -> AsyncIterator[tuple[Bench, AcpSession]]:
        bench = Bench(tmp_path, flags, **options)
        session = await bench.agent.connect()
        try:
            yield bench, session
        finally:
            await session.close()

    yield open_one
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, left


async def fails(tmp_path: Path, flags: str, **options: Any) -> str:
    """What connecting to such an agent says."""
    with pytest.raises(AgentError) as raised:
        await Bench(tmp_path, flags, **options).agent.connect()
    return str(raised.value)


async def test_a_session_keeps_what_was_said_in_earlier_prompts(opened: Any) -> None:
    async with opened() as (bench, session):
        assert (await session.prompt("!remember one")).output is None
        assert (await session.prompt("!remember two\n!recall")).output == "one, two"
    assert [step.source for step in bench.trajectory().steps] == ["user", "user", "agent"]


async def test_the_agent_gets_its_folder_its_variables_and_no_files_or_terminals_of_ours(opened: Any, tmp_path: Path) -> None:
    async with opened() as (bench, session):
        assert (await session.prompt("!env DEMO")).output == "of the agent"
        assert (await session.prompt("!cwd")).output == f"{tmp_path}  []"
    told = bench.sent("initialize")
    assert told["clientCapabilities"] == {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
    assert told["protocolVersion"] == 1


async def test_what_it_says_thinks_and_does_becomes_steps(opened: Any, tmp_path: Path) -> None:
    async with opened() as (bench, session):
        turn = await session.prompt(
            "go\n!think hm\n!say first\n!write a.txt 42\n!run cat a.txt; exit 3\n!plan tidy\n!usage 10 2 0.5\n!say second"
        )
    assert turn.output == "second"
    assert turn.usage == Usage(input_tokens=10, output_tokens=2, cached_tokens=0, cost_usd=0.5)
    trajectory = bench.trajectory()
    _, first, second = trajectory.steps
    assert (first.message, first.reasoning_content, second.message) == ("first", "hm", "second")
    calls = [(call.function_name, call.arguments, call.extra["status"]) for call in first.tool_calls]
    assert calls == [
        ("edit", {"path": "a.txt", "text": "42"}, "completed"),
        ("execute", {"command": "cat a.txt; exit 3"}, "failed"),
    ]
    assert [result.content for result in first.observation.results] == ["a.txt is written", "42\n"]
    assert trajectory.extra["plan"] == [{"content": "tidy", "priority": "high", "status": "pending"}]
    assert (trajectory.agent.version, trajectory.session_id) == ("1.2.3", "scripted-session")
    assert bench.spent[-1] == turn.usage


async def test_noise_goes_to_the_log_and_breaks_nothing(opened: Any) -> None:
    noise = ["123", '"x"', "null", "true", "[1,2]", "plain text", '{"level":"info"}', '{"jsonrpc":"2.0","id":[],"result":1}']
    prompt = "\n".join(f"!raw {line}" for line in noise)
    async with opened() as (bench, session):
        assert (await session.prompt(f"{prompt}\n!say still here")).output == "still here"
    for line in noise:
        assert line in bench.output.text()
        assert line not in [json.dumps(message) for _, message in bench.wire()]


async def test_updates_that_nobody_knows_are_counted_and_harmless(opened: Any) -> None:
    update = {"sessionUpdate": "text_update", "content": {"type": "text", "text": "?"}}
    odd = [update, {"sessionUpdate": 7}, {"sessionUpdate": "tool_call"}, {"sessionUpdate": "agent_message_chunk", "content": 1}]
    odd += [{"sessionUpdate": "usage_update", "used": -1, "cost": {"amount": "x"}}, {"sessionUpdate": "plan", "entries": 3}]
    lines = [json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": {"update": update}}) for update in odd]
    lines += [json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": value}) for value in ([], {}, {"update": []})]
    async with opened() as (bench, session):
        assert (await session.prompt("\n".join(f"!raw {line}" for line in lines) + "\n!say fine")).output == "fine"
    assert bench.trajectory().extra["other_updates"] == {"text_update": 1}


# --- permissions ---


async def test_everything_is_permitted_unless_a_rule_says_otherwise(opened: Any, tmp_path: Path) -> None:
    async with opened() as (bench, session):
        await session.prompt("!ask execute touch here")
    assert (tmp_path / "here").exists()
    answers = [message["result"] for direction, message in bench.wire() if direction == "out" and message.get("id") == "ask-1"]
    assert answers == [{"outcome": {"outcome": "selected", "optionId": "o-allow_once"}}]


async def test_rules_are_looked_at_in_their_order(opened: Any, tmp_path: Path) -> None:
    rules = [
        {"action": "allow", "tool": "touch a*"},
        {"action": "deny", "tool": "touch *"},
        {"action": "deny", "kind": "fetch"},
    ]
    async with opened(permissions=rules) as (bench, session):
        await session.prompt("!ask execute touch a1\n!ask execute touch b1\n!ask fetch true\n!ask edit touch2 || touch c1")
    assert [(tmp_path / name).exists() for name in ("a1", "b1", "c1")] == [True, False, True]
    calls = [call for step in bench.trajectory().steps for call in step.tool_calls or ()]
    assert [call.extra["permission"] for call in calls] == ["allowed", "denied", "denied", "allowed"]


def only_reads(request: Any) -> bool:
    return bool(request["toolCall"]["kind"] == "read")


async def only_reads_later(request: Any) -> bool:
    await asyncio.sleep(0)
    return only_reads(request)


def broken(request: Any) -> bool:
    raise RuntimeError("nobody is there")


@pytest.mark.parametrize("function", [only_reads, only_reads_later])
async def test_a_function_is_asked_where_a_rule_says_so(
    opened: Any, tmp_path: Path, function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "asked_by_a_test", sys.modules[__name__])
    async with opened(permissions=[{"action": "ask"}], ask=f"asked_by_a_test:{function.__name__}") as (_, session):
        await session.prompt("!ask read touch r\n!ask execute touch x")
    assert [(tmp_path / name).exists() for name in ("r", "x")] == [True, False]


async def test_a_function_that_breaks_denies_and_is_the_agents_error(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asked_by_a_test", sys.modules[__name__])
    async with opened(permissions=[{"action": "ask"}], ask="asked_by_a_test:broken") as (_, session):
        with pytest.raises(AgentError, match="nobody is there"):
            await session.prompt("!ask read true")


def test_a_rule_that_asks_nobody_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="names no function"):
        msgspec.convert({"command": "x", "permissions": [{"action": "ask"}]}, AcpOptions)


# --- the model, servers, authentication ---


@pytest.mark.parametrize(("flags", "method"), [("", "session/set_config_option"), ("--old-models", "session/set_model")])
async def test_a_model_is_chosen_in_the_way_that_the_agent_offers(opened: Any, tmp_path: Path, flags: str, method: str) -> None:
    async with opened(f"--models small,large {flags}", model="large") as (bench, session):
        assert (await session.prompt("!cwd")).output == f"{tmp_path} large []"
    assert "large" in bench.sent(method).values()
    assert bench.trajectory().agent.model_name == "large"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--models a,b", "no model 'large'; it has a, b"),
        ("", "offers no choice"),
        ("--models a --old-models", "no such model"),
    ],
)
async def test_a_model_that_cannot_be_had_ends_it(tmp_path: Path, flags: str, said: str) -> None:
    assert said in await fails(tmp_path, flags, model="large")


WEB = McpServer(name="web", url="http://localhost:1/mcp", transport="streamable-http", headers={"Authorization": "of mine"})


async def test_servers_are_told_as_the_protocol_writes_them(opened: Any) -> None:
    files = McpServer(name="files", command="/bin/files", args=["-v"], env={"MODE": "ro"})
    async with opened("--mcp", servers=(files, WEB)) as (_, session):
        told = json.loads((await session.prompt("!cwd")).output.split("  ", 1)[1])
    assert told[0] == {
        "name": "files",
        "command": "/bin/files",
        "args": ["-v"],
        "env": [{"name": "MODE", "value": "ro"}],
    }
    assert told[1]["headers"] == [{"name": "Authorization", "value": "of mine"}]
    assert (told[1]["type"], told[1]["url"]) == ("http", "http://localhost:1/mcp")


async def test_a_server_that_the_agent_cannot_use_ends_it(tmp_path: Path) -> None:
    assert "cannot use the MCP server web: it does not speak http" in await fails(tmp_path, "", servers=(WEB,))


async def test_an_agent_that_wants_to_be_authenticated_says_how(opened: Any, tmp_path: Path) -> None:
    said = await fails(tmp_path, "--auth api-key")
    assert "not authenticated" in said and "`auth_method`: api-key" in said
    async with opened("--auth api-key", auth_method="api-key") as (_, session):
        assert (await session.prompt("!say in")).output == "in"


# --- ends ---


@pytest.mark.parametrize(
    ("flags", "options", "said"),
    [
        ("--version 2", {}, "speaks version 2 of the protocol"),
        ("--mute", {"start_timeout_sec": 0.3}, "did not open a session within 0.3 s"),
        ("--no-answer session/new", {"start_timeout_sec": 0.5}, "did not open a session within 0.5 s"),
        ("--no-such-flag", {}, r"unrecognized arguments: --no-such-flag"),
        ("", {"command": "echo hello"}, "ended before it opened a session (exit code 0)"),
        ("", {"command": "echo cannot start >&2; exit 3"}, "(exit code 3): cannot start"),
        ("", {"command": "no-such-agent-here"}, "(exit code 127)"),
    ],
)
async def test_an_agent_that_does_not_open_a_session_ends_with_the_reason(
    tmp_path: Path, flags: str, options: dict[str, Any], said: str
) -> None:
    assert said in await fails(tmp_path, flags, **options)


async def test_an_agent_that_dies_is_an_error_with_its_code_and_last_words(opened: Any) -> None:
    async with opened() as (bench, session):
        with pytest.raises(AgentError, match=r"ended before it answered \(exit code 9\): .*the last words"):
            await session.prompt("!say so far\n!stderr the last words\n!die 9")
        with pytest.raises(AgentError, match="exit code 9"):
            await session.prompt("!say more")
    assert bench.trajectory().steps[1].message == "so far", "what was seen before is kept"


async def test_an_agent_that_closes_its_output_and_goes_on_is_an_error(opened: Any) -> None:
    async with opened() as (_, session):
        with pytest.raises(AgentError, match="closed its output before it answered"):
            await session.prompt("!close")


async def test_a_refused_prompt_is_an_error_and_the_session_goes_on(opened: Any) -> None:
    async with opened() as (_, session):
        with pytest.raises(AgentError, match=r"refused the prompt: error -32603, Internal error.*no money"):
            await session.prompt("!refuse no money")
        assert (await session.prompt("!say again")).output == "again"


async def cancelled(session: AcpSession, bench: Bench, prompt: str) -> None:
    asked = asyncio.ensure_future(session.prompt(prompt))
    async with asyncio.timeout(30):
        while "started" not in bench.output.text():
            await asyncio.sleep(0.01)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


async def test_a_cancelled_prompt_is_cancelled_in_the_agent_too(opened: Any) -> None:
    async with opened() as (bench, session):
        await cancelled(session, bench, "!say so far\n!noise started\n!hang")
        with pytest.raises(AgentError, match="stopped in an earlier prompt"):
            await session.prompt("!say more")
    assert bench.sent("session/cancel") == {"sessionId": "scripted-session"}
    assert bench.trajectory().final_metrics.extra == {"stop_reasons": ["cancelled"]}


async def test_an_agent_that_does_not_hear_is_killed(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollout_acp.session._CANCEL_SEC", 0.2)
    async with opened() as (bench, session):
        process = session._process
        await cancelled(session, bench, "!noise started\n!deaf")
        assert process is not None and await process.wait() == 137


async def test_a_question_that_is_open_when_it_is_cancelled_is_answered(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    async def wait_for_ever(request: Any) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(sys.modules[__name__], "only_reads", wait_for_ever)
    monkeypatch.setitem(sys.modules, "asked_by_a_test", sys.modules[__name__])
    monkeypatch.setattr("rollout_acp.session._CANCEL_SEC", 0.5)
    async with opened(permissions=[{"action": "ask"}], ask="asked_by_a_test:only_reads") as (_, session):
        prompt = asyncio.ensure_future(session.prompt("!ask read true"))
        await asyncio.wait_for(asked.wait(), 30)
        prompt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await prompt


async def test_an_agent_that_says_nothing_is_ended(opened: Any) -> None:
    async with opened(idle_timeout_sec=0.3) as (bench, session):
        with pytest.raises(AgentTimeoutError, match=r"said nothing for 0\.3 s"):
            await session.prompt("!say so far\n!hang")
    assert bench.trajectory().steps[1].message == "so far"


async def test_an_agent_that_keeps_talking_is_not_idle(opened: Any) -> None:
    async with opened(idle_timeout_sec=2) as (_, session):
        assert (await session.prompt("!spend 0.1 150\n!say done")).output == "done", "150 x 0.02 s are more than 2 s"


async def test_a_lost_sandbox_is_not_the_agents_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = HostProcess.output

    async def lost(process: HostProcess) -> AsyncIterator[bytes]:
        async for chunk in whole(process):
            yield chunk
        raise EnvironmentLostError("the sandbox is gone")

    monkeypatch.setattr(HostProcess, "output", lost)
    session = await Bench(tmp_path, "").agent.connect()
    with pytest.raises(EnvironmentLostError, match="the sandbox is gone"):
        await session.prompt("!die 1")
    await session.close()


async def test_a_daemon_that_was_left_does_not_hold_up_the_end(opened: Any) -> None:
    async with opened() as (_, session):
        await session.prompt("!daemon 5")
        async with asyncio.timeout(4.5):
            await session.close()


async def test_a_flood_is_held_neither_in_memory_nor_in_the_protocols_log(opened: Any) -> None:
    async with opened() as (bench, session):
        assert (await session.prompt("!flood 32\n!say dry")).output == "dry"
    assert (bench.folder / "agent" / "acp.jsonl").stat().st_size < 10_000


async def test_memory_does_not_follow_what_an_agent_prints(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "")
    printed = 0

    def count(stream: str, chunk: bytes) -> None:
        nonlocal printed
        printed += len(chunk)

    bench.agent._context = msgspec.structs.replace(bench.agent._context, sink=count)
    session = await bench.agent.connect()
    await session.prompt("!flood 1")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await session.prompt("!flood 192")
    await session.close()
    assert printed > 193 * 2**20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024, "KiB"


async def test_a_question_that_takes_its_time_is_not_the_agents_silence(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slowly(request: Any) -> bool:
        await asyncio.sleep(0.6)
        return True

    monkeypatch.setattr(sys.modules[__name__], "only_reads", slowly)
    monkeypatch.setitem(sys.modules, "asked_by_a_test", sys.modules[__name__])
    options = {"permissions": [{"action": "ask"}], "ask": "asked_by_a_test:only_reads", "idle_timeout_sec": 0.4}
    async with opened(**options) as (_, session):
        assert (await session.prompt("!ask read true\n!say done")).output == "done"


@pytest.mark.parametrize("flags", ["--models small,large", "--models small,large --old-models"])
async def test_the_model_that_the_agent_uses_by_itself_is_recorded(opened: Any, flags: str) -> None:
    async with opened(flags) as (bench, session):
        await session.prompt("!say x")
    assert bench.trajectory().agent.model_name == "small"


async def test_secrets_are_not_in_the_protocols_log(tmp_path: Path) -> None:
    from rollout.core.trial.redact import Redactor

    secret = 'a "quoted" key \u00e9'
    bench = Bench(tmp_path, "")
    bench.agent._context = msgspec.structs.replace(
        bench.agent._context, redact=Redactor({secret: "DEMO"}).redact, env={"DEMO": secret}
    )
    session = await bench.agent.connect()
    await session.prompt("!env DEMO")
    await session.close()
    assert "quoted" not in (bench.folder / "agent" / "acp.jsonl").read_text()


async def test_a_secret_that_is_said_in_pieces_is_in_the_log_in_none(tmp_path: Path) -> None:
    from rollout.core.trial.redact import Redactor

    bench = Bench(tmp_path, "")
    bench.agent._context = msgspec.structs.replace(bench.agent._context, redact=Redactor({"of the agent": "DEMO"}).redact)
    session = await bench.agent.connect()
    await session.prompt("!think hm\n!say I know: \n!env DEMO\n!run true\n!say x")
    await session.close()
    said = [message["params"]["update"]["content"]["text"] for _, message in bench.wire() if _is_chunk(message)]
    assert said == ["hm", "I know:[redacted:DEMO]", "x"]
    assert [step.message for step in bench.trajectory().steps][1:] == ["I know:of the agent", "x"], "core redacts that file"


def _is_chunk(message: Any) -> bool:
    return str(message.get("params", {}).get("update", {}).get("sessionUpdate")).endswith("_chunk")
