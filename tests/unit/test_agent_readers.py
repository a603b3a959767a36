"""What agents' logs tell, and that no log can do harm."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout import TrajectoryBuilder, Usage
from rollout.core.atif import decode_atif
from rollout_agents.readers import (
    read_aider,
    read_claude,
    read_cline,
    read_codex,
    read_copilot,
    read_gemini,
    read_kimi,
    read_mini_swe_agent,
    read_opencode,
    read_pi,
)

ALL = [
    *(read_claude, read_codex, read_gemini, read_opencode, read_mini_swe_agent, read_pi, read_cline),
    pytest.param(lambda log: read_aider(log, log), id="read_aider"),
    pytest.param(lambda log: read_kimi(log, [log, log]), id="read_kimi"),
    pytest.param(lambda log: read_copilot(log, log), id="read_copilot"),
]
KEYS = ["type", "message", "content", "item", "usage", "part", "state", "tokens", "cache", "read", "input", "output", "stats"]
KEYS += ["role", "messages", "tool_calls", "function", "arguments", "id", "text", "info", "model_stats", "extra", "response"]
KEYS += ["data", "event", "properties", "modelMetrics", "toolRequests", "inputTokens", "prompt_tokens", "inputOther"]
KINDS = [
    "message_end",
    "usage.record",
    "message_send",
    "assistant.message",
    "tool.execution_complete",
    "toolCall",
    "assistant",
    "user",
    "result",
    "item.completed",
    "turn.completed",
    "tool_use",
    "tool_result",
    "step_finish",
    "text",
]
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(KINDS))
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5), max_leaves=12
)


def lines(*events: Any) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


@pytest.mark.parametrize("read", ALL)
@given(noise=st.binary(max_size=300))
def test_no_bytes_make_a_reader_raise(read: Any, noise: bytes) -> None:
    read(noise)
    read(b"{" + noise)


@pytest.mark.parametrize("read", ALL)
@given(events=st.lists(VALUES, max_size=4))
def test_no_document_makes_a_reader_raise_and_usage_is_plausible(read: Any, events: list[Any]) -> None:
    for log in (lines(*events), json.dumps({"messages": events, "info": events[:1]}).encode()):
        reading = read(log)
        made = TrajectoryBuilder(name="x")
        made.user("Go.")
        reading.tell(made)
        assert decode_atif(msgspec.json.encode(made.build()))
        if reading.usage is not None:
            figures = [reading.usage.input_tokens, reading.usage.output_tokens, reading.usage.cached_tokens]
            assert all(figure is None or figure >= 0 for figure in figures)


def test_claude() -> None:
    log = lines(
        {"type": "system", "subtype": "init"},
        {"type": "assistant", "message": {"content": [{"type": "text", "text": "Look."}]}},
        {"type": "assistant", "message": {"content": [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"c": 1}}]}},
        {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "t1", "content": "hi"}]}},
        {
            "type": "result",
            "result": "Done.",
            "total_cost_usd": 0.25,
            "usage": {"input_tokens": 5, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2, "output_tokens": 7},
        },
    )
    reading = read_claude(b"noise\n" + log)
    assert [step.model_response for step in reading.steps] == ["Look.", "", "Done."]
    assert reading.steps[1].action == {"id": "t1", "name": "Bash", "arguments": {"c": 1}}
    assert reading.steps[1].observation == "hi"
    assert reading.usage == Usage(input_tokens=10, output_tokens=7, cached_tokens=3, cost_usd=0.25)


def test_a_log_that_was_cut_tells_what_is_left() -> None:
    log = lines({"type": "assistant", "message": {"content": [{"type": "text", "text": "Look."}]}})
    assert [step.model_response for step in read_claude(b'ssage": {}}\n' + log + b'{"type": "resu').steps] == ["Look."]


def test_codex() -> None:
    command = {"id": "i1", "type": "command_execution", "command": "ls", "aggregated_output": "a\n", "exit_code": 0}
    reading = read_codex(
        lines(
            {"type": "item.started", "item": command},
            {"type": "item.completed", "item": command},
            {"type": "item.completed", "item": {"id": "i2", "type": "agent_message", "text": "Done."}},
            {"type": "turn.completed", "usage": {"input_tokens": 10, "cached_input_tokens": 4, "output_tokens": 3}},
        )
    )
    assert reading.steps[0].action == {"id": "i1", "name": "shell", "arguments": {"command": "ls"}}
    assert reading.steps[0].observation == {"output": "a\n", "exit_code": 0}
    assert (reading.steps[-1].model_response, len(reading.steps)) == ("Done.", 2)
    assert reading.usage == Usage(input_tokens=10, output_tokens=3, cached_tokens=4)


def test_gemini_joins_what_comes_in_pieces() -> None:
    reading = read_gemini(
        lines(
            {"type": "message", "role": "assistant", "content": "I ", "delta": True},
            {"type": "message", "role": "assistant", "content": "look.", "delta": True},
            {"type": "tool_use", "tool_id": "t", "tool_name": "run_shell_command", "parameters": {"command": "ls"}},
            {"type": "tool_result", "tool_id": "t", "status": "success", "output": "a"},
            {"type": "result", "stats": {"input_tokens": 9, "output_tokens": 2, "cached": 1}},
        )
    )
    assert reading.steps[0].model_response == "I look."
    assert reading.steps[1].observation == "a"
    assert reading.usage == Usage(input_tokens=9, output_tokens=2, cached_tokens=1)


def test_opencode() -> None:
    state = {"input": {"command": "ls"}, "output": "a"}
    finish = {"cost": 0.5, "tokens": {"input": 4, "output": 2, "cache": {"read": 6}}}
    reading = read_opencode(
        lines(
            {"type": "tool_use", "part": {"callID": "c", "tool": "bash", "state": state}},
            {"type": "step_finish", "part": finish},
            {"type": "text", "part": {"text": "Done."}},
            {"type": "step_finish", "part": finish},
        )
    )
    assert reading.steps[0].action == {"id": "c", "name": "bash", "arguments": {"command": "ls"}}
    assert reading.usage == Usage(input_tokens=20, output_tokens=4, cached_tokens=12, cost_usd=1.0)
    assert reading.steps[-1].model_response == "Done."


def test_mini_swe_agent() -> None:
    call = {"id": "c", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    usage = {"prompt_tokens": 8, "completion_tokens": 3}
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "Look.", "tool_calls": [call], "extra": {"response": {"usage": usage}}},
        {"role": "tool", "tool_call_id": "c", "content": "a"},
    ]
    reading = read_mini_swe_agent(json.dumps({"messages": messages, "info": {"model_stats": {"instance_cost": 0.1}}}).encode())
    assert reading.steps[1].action == {"id": "c", "name": "bash", "arguments": {"command": "ls"}}
    assert reading.steps[1].observation == "a"
    assert reading.usage == Usage(input_tokens=8, output_tokens=3, cost_usd=0.1)


def test_aider() -> None:
    chat = (
        "\n# aider chat started at 2026-01-01 10:00:00\n\n> Aider v1  \n\n#### Go on.  \n####   \n\n"
        "I will.\n\na.py\n```python\nx = 1\n```\n\n"
        "> Tokens: 1.2k sent, 20 received.  \n> Applied edit to a.py  \n\nDone.\n"
    )
    sent = {"prompt_tokens": 1210, "completion_tokens": 20, "cost": 0.5}
    reading = read_aider(chat.encode(), lines({"event": "launched"}, {"event": "message_send", "properties": sent}))
    assert [step.model_response for step in reading.steps] == ["I will.\n\na.py\n```python\nx = 1\n```", "", "Done."]
    assert reading.steps[1].action == {"id": "edit-1", "name": "edit", "arguments": {"path": "a.py"}}
    assert reading.usage == Usage(input_tokens=1210, output_tokens=20, cost_usd=0.5)


def test_pi() -> None:
    usage = {"input": 5, "output": 2, "cacheRead": 3, "cacheWrite": 1, "cost": {"total": 0.25}}
    call = {"type": "toolCall", "id": "c", "name": "bash", "arguments": {"command": "ls"}}
    said = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Look."}, call]
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": said, "usage": usage},
        {"role": "toolResult", "toolCallId": "c", "content": [{"type": "text", "text": "a"}]},
    ]
    reading = read_pi(lines(*({"type": kind, "message": one} for one in messages for kind in ("message_end", "turn_end"))))
    assert [(step.thought, step.model_response) for step in reading.steps] == [("Hm.", ""), ("", "Look."), ("", "")]
    assert reading.steps[2].action == {"id": "c", "name": "bash", "arguments": {"command": "ls"}}
    assert reading.steps[2].observation == [{"type": "text", "text": "a"}]
    assert reading.usage == Usage(input_tokens=9, output_tokens=2, cached_tokens=3, cost_usd=0.25)


def test_kimi() -> None:
    call = {"type": "function", "id": "c", "function": {"name": "Bash", "arguments": '{"command": "ls"}'}}
    wire = lines(
        {"type": "usage.record", "usage": {"inputOther": 90, "output": 20, "inputCacheRead": 10, "inputCacheCreation": 1}}
    )
    log = lines(
        {"role": "assistant", "content": "Look.", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "a"}
    )
    reading = read_kimi(log, [wire, wire])
    assert reading.steps[0].model_response == "Look."
    assert reading.steps[1].action == {"id": "c", "name": "Bash", "arguments": {"command": "ls"}}
    assert reading.steps[1].observation == "a"
    assert reading.usage == Usage(input_tokens=202, output_tokens=40, cached_tokens=20)


def test_copilot() -> None:
    call = {"toolCallId": "c", "name": "bash", "arguments": {"command": "ls"}}
    log = lines(
        {"type": "assistant.message", "data": {"content": "Look.", "toolRequests": [call]}},
        {"type": "tool.execution_complete", "data": {"toolCallId": "c", "result": {"content": "a"}}},
    )
    used = {"modelMetrics": {"some": {"usage": {"inputTokens": 200, "outputTokens": 40, "cacheReadTokens": 20}}}}
    reading = read_copilot(log, json.dumps(used, indent=2).encode())
    assert reading.steps[1].action == {"id": "c", "name": "bash", "arguments": {"command": "ls"}}
    assert reading.steps[1].observation == "a"
    assert reading.usage == Usage(input_tokens=200, output_tokens=40, cached_tokens=20)


def test_cline() -> None:
    tool = {"contentType": "tool", "toolName": "run_commands", "toolCallId": "c"}
    events = [
        {"type": "content_start", "contentType": "text", "text": "Lo", "accumulated": "Lo"},
        {"type": "content_end", "contentType": "text", "text": "Look."},
        {"type": "content_start", **tool, "input": {"commands": ["ls"]}},
        {"type": "content_end", **tool, "output": "a"},
    ]
    usage = {"inputTokens": 200, "outputTokens": 40, "cacheReadTokens": 20, "totalCost": 0.5}
    log = lines(*({"type": "agent_event", "event": event} for event in events), {"type": "run_result", "usage": usage})
    reading = read_cline(log)
    assert [step.model_response for step in reading.steps] == ["Look.", ""]
    assert reading.steps[1].action == {"id": "c", "name": "run_commands", "arguments": {"commands": ["ls"]}}
    assert reading.steps[1].observation == "a"
    assert reading.usage == Usage(input_tokens=200, output_tokens=40, cached_tokens=20, cost_usd=0.5)


def test_what_was_cached_is_counted_once() -> None:
    """Claude Code tells it apart, Qwen Code within what was sent, with a total."""
    usage = {"input_tokens": 200, "output_tokens": 40, "cache_read_input_tokens": 20}
    apart, within = (
        read_claude(lines({"type": "result", "usage": told})).usage for told in (usage, {**usage, "total_tokens": 240})
    )
    assert (apart, within) == (
        Usage(input_tokens=220, output_tokens=40, cached_tokens=20),
        Usage(input_tokens=200, output_tokens=40, cached_tokens=20),
    )
