"""What updates become: whatever an agent sends is a valid trajectory and usage that is none of nonsense."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout import Usage, decode_atif
from rollout_acp.recorder import Recorder

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 10**9), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
KINDS = ("agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan", "usage_update", "other")
KEYS = (
    "toolCallId",
    "title",
    "kind",
    "status",
    "content",
    "rawInput",
    "rawOutput",
    "locations",
    "used",
    "cost",
    "entries",
    "name",
)
blocks = st.one_of(
    values,
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "image", "resource", "diff", "content"])},
        optional=dict.fromkeys(("text", "content", "resource", "path", "oldText", "newText", "uri"), values),
    ),
)
updates = st.fixed_dictionaries(
    {"sessionUpdate": st.one_of(st.sampled_from(KINDS), values)},
    optional={
        **dict.fromkeys(KEYS, values),
        "_meta": st.one_of(values, st.fixed_dictionaries({"terminal_output_delta": st.fixed_dictionaries({"data": values})})),
        "toolCallId": st.sampled_from(["a", "b"]),
        "content": st.one_of(values, blocks, st.lists(blocks, max_size=3)),
        "cost": st.fixed_dictionaries({"amount": values, "currency": st.sampled_from(["USD", "EUR", 3])}),
    },
)
said = st.lists(
    st.one_of(
        st.tuples(st.just("update"), st.one_of(values, st.fixed_dictionaries({"update": st.one_of(updates, values)}))),
        st.tuples(st.just("prompted"), st.text(max_size=5)),
        st.tuples(st.just("answered"), st.fixed_dictionaries({}, optional={"usage": values, "stopReason": values})),
        st.tuples(st.just("permission"), st.one_of(values, st.fixed_dictionaries({"toolCall": updates}))),
    ),
    max_size=12,
)


@given(said)
def test_whatever_is_sent_becomes_a_valid_trajectory(messages: list[tuple[str, Any]]) -> None:
    told: list[Usage] = []
    recorder = Recorder(name="demo", model=None, on_usage=told.append)
    recorder.prompted("go")
    for method, value in messages:
        if method == "permission":
            recorder.permission(value, allowed=True)
        elif method != "update" or isinstance(value, dict):
            getattr(recorder, method)(value)
    made = recorder.finish().build()
    assert made.steps[0].message == "go"
    for usage in told:
        counts = [usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cost_usd]
        assert all(count is None or 0 <= count < float("inf") for count in counts)


def answer(**counts: int) -> Usage | None:
    recorder = Recorder(name="demo", model=None, on_usage=lambda usage: None)
    recorder.answered({"usage": counts, "stopReason": "end_turn"})
    return recorder.usage


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}, (10, 5, 0)),
        ({"inputTokens": 10, "outputTokens": 5, "cachedReadTokens": 90, "totalTokens": 105}, (100, 5, 90)),
        ({"inputTokens": 100, "outputTokens": 5, "cachedReadTokens": 90, "totalTokens": 105}, (100, 5, 90)),
        ({"inputTokens": 10, "outputTokens": 5, "thoughtTokens": 7, "totalTokens": 22}, (10, 12, 0)),
        ({"inputTokens": 10, "outputTokens": 5, "thoughtTokens": 3, "totalTokens": 15}, (10, 5, 0)),
        (
            {
                "inputTokens": 1,
                "outputTokens": 2,
                "thoughtTokens": 4,
                "cachedReadTokens": 8,
                "cachedWriteTokens": 16,
                "totalTokens": 31,
            },
            (25, 6, 8),
        ),
    ],
)
def test_cached_tokens_and_thoughts_are_counted_once(counts: dict[str, int], expected: tuple[int, int, int]) -> None:
    usage = answer(**counts)
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == expected


def test_totals_are_the_sessions_and_not_added_up() -> None:
    recorder = Recorder(name="demo", model=None, on_usage=lambda usage: None)
    for total in (10, 30):
        recorder.answered({"usage": {"inputTokens": total, "outputTokens": 1, "totalTokens": total + 1}})
    assert recorder.usage == Usage(input_tokens=30, output_tokens=1, cached_tokens=0)


def test_another_currency_is_no_cost() -> None:
    recorder = Recorder(name="demo", model=None, on_usage=lambda usage: None)
    recorder.update({"update": {"sessionUpdate": "usage_update", "used": 7, "cost": {"amount": 3.0, "currency": "EUR"}}})
    assert recorder.usage == Usage(input_tokens=7)


def test_the_content_of_an_update_replaces_what_was_there() -> None:
    recorder = Recorder(name="demo", model=None, on_usage=lambda usage: None)
    for text in ("one", "one two"):
        content = [{"type": "content", "content": {"type": "text", "text": text}}]
        recorder.update({"update": {"sessionUpdate": "tool_call_update", "toolCallId": "a", "content": content}})
    (step,) = recorder.finish().build().steps
    assert step.observation is not None
    assert [result.content for result in step.observation.results] == ["one two"]


def test_what_a_command_prints_beside_the_protocol_is_its_result_unless_there_is_another() -> None:
    recorder = Recorder(name="demo", model=None, on_usage=lambda usage: None)
    recorder.update({"update": {"sessionUpdate": "tool_call", "toolCallId": "a", "kind": "execute", "name": "exec_command"}})
    for text in ("one ", "two"):
        meta = {"terminal_output_delta": {"data": text}}
        recorder.update({"update": {"sessionUpdate": "tool_call_update", "toolCallId": "a", "_meta": meta}})
    (step,) = recorder.finish().build().steps
    assert step.observation is not None and step.tool_calls is not None
    assert [call.function_name for call in step.tool_calls] == ["exec_command"]
    assert [result.content for result in step.observation.results] == ["one two"]


def test_what_is_said_without_end_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollout_acp.recorder.MAX_TEXT", 2**20)
    recorder = Recorder(name="demo", model=None, on_usage=lambda usage: None)
    chunk = {"update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x" * 100_000}}}
    for _ in range(20):
        recorder.update(chunk)
    made = recorder.finish().build()
    assert 2**20 - 2000 < len(made.steps[0].message) <= 2**20
    assert made.notes is not None and "left out" in made.notes


def test_output_that_is_told_again_and_again_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollout_acp.recorder.MAX_TEXT", 2**20)
    recorder = Recorder(name="demo", model=None, on_usage=lambda usage: None)
    for number in range(100):
        recorder.update({"update": {"sessionUpdate": "tool_call_update", "toolCallId": "a", "rawOutput": "x" * 50_000}})
        recorder.update({"update": {"sessionUpdate": "tool_call_update", "toolCallId": "a", "status": f"{number}"}})
    made = recorder.finish().build()
    assert made.notes is None
    (step,) = made.steps
    assert step.observation is not None and len(step.observation.results[0].content or "") == 50_000


def test_an_agent_that_tells_nothing_of_its_use_has_none() -> None:
    told: list[Usage] = []
    recorder = Recorder(name="demo", model=None, on_usage=told.append)
    recorder.prompted("go")
    recorder.answered({"stopReason": "end_turn"})
    assert (recorder.usage, told) == (None, [])


def test_characters_that_are_cut_in_two_are_whole_again_or_replaced() -> None:
    recorder = Recorder(name="demo", model=None, on_usage=lambda usage: None)
    for text in ("so \ud83d", "\ude00 and \ud83d"):
        recorder.update({"update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}})
    assert recorder.answer == "so \U0001f600 and \ufffd"
    recorder.update({"update": {"sessionUpdate": "tool_call", "toolCallId": "\udc00", "rawInput": {"\ud800": ["\ud800"]}}})
    made = recorder.finish().build()
    assert decode_atif(msgspec.json.encode(made)) == made
    assert made.steps[0].message == "so \U0001f600 and \ufffd"
