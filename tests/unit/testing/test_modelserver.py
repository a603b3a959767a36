"""The scripted model server, asked by the vendors' own SDKs."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")

from rollout.testing.modelserver import Fail, ModelServer, Say, ToolUse, script_from_json  # noqa: E402

SCRIPT = [ToolUse("shell", {"command": "echo 'hi'  \u00fc"}, text="Let me look."), Say("It is done.")]
TOOL = {"name": "shell", "description": "Run a command", "parameters": {"type": "object", "properties": {}}}


def _openai(server: ModelServer, **more: Any) -> Any:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="key", **{"max_retries": 0, **more})


def _anthropic(server: ModelServer, **more: Any) -> Any:
    return anthropic.AsyncAnthropic(base_url=server.url, api_key="key", **{"max_retries": 0, **more})


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_chat_completions(stream: bool) -> None:
    tools = [{"type": "function", "function": TOOL}]
    messages: list[Any] = [{"role": "user", "content": "Go."}]
    async with ModelServer(SCRIPT) as server, _openai(server) as client:

        async def ask() -> Any:
            if not stream:
                return await client.chat.completions.create(model="m", messages=messages, tools=tools)
            async with client.chat.completions.stream(model="m", messages=messages, tools=tools) as events:
                return await events.get_final_completion()

        first = await ask()
        [call] = first.choices[0].message.tool_calls
        assert first.choices[0].message.content == "Let me look."
        assert first.choices[0].finish_reason == "tool_calls"
        assert call.function.name == "shell"
        assert json.loads(call.function.arguments) == SCRIPT[0].arguments
        called = {"id": call.id, "type": "function", "function": {"name": "shell", "arguments": call.function.arguments}}
        messages += [
            {"role": "assistant", "tool_calls": [called]},
            {"role": "tool", "tool_call_id": call.id, "content": "hi"},
        ]
        second = await ask()
        assert second.choices[0].message.content == "It is done."
        assert second.choices[0].finish_reason == "stop"
        assert second.usage.prompt_tokens == 100
        assert [request.turn for request in server.requests] == [0, 1]


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_responses(stream: bool) -> None:
    tools = [{"type": "function", "strict": False, **TOOL}]
    given: list[Any] = [{"role": "user", "content": "Go."}]
    async with ModelServer(SCRIPT) as server, _openai(server) as client:

        async def ask() -> Any:
            if not stream:
                return await client.responses.create(model="m", input=given, tools=tools)
            async with client.responses.stream(model="m", input=given, tools=tools) as events:
                return await events.get_final_response()

        first = await ask()
        said, call = first.output
        assert said.content[0].text == "Let me look."
        assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "shell", SCRIPT[0].arguments)
        called = {"type": "function_call", "call_id": call.call_id, "name": "shell", "arguments": call.arguments}
        given += [called, {"type": "function_call_output", "call_id": call.call_id, "output": "hi"}]
        second = await ask()
        assert second.output_text == "It is done."
        assert (second.usage.input_tokens, second.usage.output_tokens) == (100, 20)


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_messages(stream: bool) -> None:
    tools = [{"name": "shell", "input_schema": TOOL["parameters"]}]
    messages: list[Any] = [{"role": "user", "content": "Go."}]
    async with ModelServer(SCRIPT) as server, _anthropic(server) as client:

        async def ask() -> Any:
            asked: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": messages, "tools": tools}
            if not stream:
                return await client.messages.create(**asked)
            async with client.messages.stream(**asked) as events:
                return await events.get_final_message()

        first = await ask()
        said, call = first.content
        assert (said.text, first.stop_reason) == ("Let me look.", "tool_use")
        assert (call.name, call.input) == ("shell", SCRIPT[0].arguments)
        messages += [
            {"role": "assistant", "content": [{"type": "tool_use", "id": call.id, "name": "shell", "input": call.input}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "hi"}]},
        ]
        second = await ask()
        assert (second.content[0].text, second.stop_reason) == ("It is done.", "end_turn")
        assert (second.usage.input_tokens, second.usage.cache_read_input_tokens, second.usage.output_tokens) == (90, 10, 20)
        assert (await client.messages.count_tokens(model="m", messages=messages)).input_tokens == 100


@pytest.mark.parametrize("method", ["generateContent", "streamGenerateContent?alt=sse"])
async def test_gemini(method: str) -> None:
    import httpx

    tools = [{"functionDeclarations": [TOOL]}]
    contents: list[Any] = [{"role": "user", "parts": [{"text": "Go."}]}]
    async with ModelServer(SCRIPT) as server, httpx.AsyncClient() as client:

        async def ask() -> list[Any]:
            answer = await client.post(f"{server.url}/v1beta/models/flash:{method}", json={"contents": contents, "tools": tools})
            if method == "generateContent":
                return [answer.json()]
            return [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data: ")]

        def parts(chunks: list[Any]) -> list[Any]:
            return [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]

        first = parts(await ask())
        assert "".join(part.get("text", "") for part in first) == "Let me look."
        [call] = [part["functionCall"] for part in first if "functionCall" in part]
        assert (call["name"], call["args"]) == ("shell", SCRIPT[0].arguments)
        contents += [
            {"role": "model", "parts": [{"functionCall": call}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "shell", "response": {"output": "hi"}}}]},
        ]
        chunks = await ask()
        assert "".join(part.get("text", "") for part in parts(chunks)) == "It is done."
        assert chunks[-1]["usageMetadata"]["totalTokenCount"] == 120
        assert {request.model for request in server.requests} == {"flash"}


async def test_a_rate_limit_says_when_to_try_again_and_the_sdks_do() -> None:
    script = [Fail(429, "slow down", retry_after_sec=0.01), Say("now")]
    messages: Any = [{"role": "user", "content": "Go."}]
    async with ModelServer(script) as server, _openai(server) as client:
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model="m", messages=messages)
        assert caught.value.response.headers["retry-after"] == "0.01"
        assert "slow down" in str(caught.value)
    async with ModelServer(script) as server, _anthropic(server, max_retries=1) as client:
        answer = await client.messages.create(model="m", max_tokens=10, messages=messages)
        assert answer.content[0].text == "now"
        assert len(server.requests) == 2


async def test_an_error_is_what_each_sdk_takes_for_one() -> None:
    messages: Any = [{"role": "user", "content": "Go."}]
    async with ModelServer([Fail(500, times=2)]) as server, _openai(server) as one, _anthropic(server) as other:
        with pytest.raises(openai.InternalServerError):
            await one.responses.create(model="m", input="Go.")
        with pytest.raises(anthropic.InternalServerError):
            await other.messages.create(model="m", max_tokens=10, messages=messages)


async def test_requests_are_remembered_with_their_headers() -> None:
    async with ModelServer([Say("x")]) as server, _anthropic(server) as client:
        await client.messages.create(model="some", max_tokens=10, messages=[{"role": "user", "content": "Find me."}])
        [request] = server.requests
    assert (request.method, request.path, request.model) == ("POST", "/v1/messages", "some")
    assert "key" in (request.headers.get("x-api-key"), request.headers.get("authorization", "").removeprefix("Bearer "))
    assert request.body["messages"][0]["content"] == "Find me."


async def test_of_several_tools_the_one_on_offer_is_called() -> None:
    use = ToolUse("shell", {"command": "a"}, others=(("bash", {"cmd": "b"}),))
    tools: Any = [{"name": "bash", "input_schema": {"type": "object"}}]
    async with ModelServer([use]) as server, _anthropic(server) as client:
        ask: dict[str, Any] = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "Go."}]}
        assert (await client.messages.create(**ask, tools=tools)).content[0].input == {"cmd": "b"}
        assert (await client.messages.create(**ask)).content[0].text == "ok", "a side question without tools gets words"


async def test_a_function_can_be_the_script() -> None:
    async with ModelServer(lambda question: Say(f"{question.model}, turn {question.turn}")) as server, _openai(server) as client:
        answer = await client.responses.create(model="m", input="Go.")
        assert answer.output_text == "m, turn 0"


def test_it_can_be_a_process_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"tool": "shell", "arguments": {"command": "ls"}}, {"say": "bye"}]')
    argv = [sys.executable, "-m", "rollout.testing.modelserver", str(script)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=30) as answer:
                assert json.load(answer)["data"][0]["id"] == "scripted"
        finally:
            process.terminate()


def test_a_script_in_json_says_what_is_wrong_with_it() -> None:
    assert script_from_json('[{"fail": 503}, {"say": "x"}]') == [Fail(503), Say("x")]
    with pytest.raises(ValueError, match="this has shout"):
        script_from_json('[{"shout": "x"}]')
