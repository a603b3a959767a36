"""ATIF: what the model accepts and refuses, and that Harbor's own models agree."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import harbor_models
from rollout import AtifFinalMetrics, AtifMetrics, AtifPart, AtifStep, AtifTrajectory, TrajectoryBuilder, Usage, decode_atif

AGENT = {"name": "demo", "version": "1"}


def document(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    numbered = [{"step_id": number, "source": "agent", "message": "", **step} for number, step in enumerate(steps, 1)]
    return {"schema_version": "ATIF-v1.8", "agent": AGENT, "steps": numbered, **more}


CALL = {"tool_call_id": "c1", "function_name": "bash", "arguments": {"command": "ls"}}

VALID = {
    "text": document({"source": "user", "message": "do it"}, {"message": "done"}),
    "an old version": document({}, schema_version="ATIF-v1.0"),
    "a call and its result": document(
        {"tool_calls": [CALL], "observation": {"results": [{"source_call_id": "c1", "content": "a b"}]}}
    ),
    "a result without a call": document({"source": "system", "observation": {"results": [{"content": "booted"}]}}),
    "an image": document(
        {"source": "user", "message": [{"type": "image", "source": {"media_type": "image/png", "path": "a.png"}}]}
    ),
    "a sound": document(
        {"message": [{"type": "audio", "source": {"media_type": "audio/mp3", "path": "a.mp3", "duration_sec": 2}}]}
    ),
    "metrics": document({"metrics": {"prompt_tokens": 5, "cost_usd": 0.1, "logprobs": [-0.5], "extra": {"x": 1}}}),
    "a subagent": document(
        {"tool_calls": [CALL], "observation": {"results": [{"subagent_trajectory_ref": [{"trajectory_id": "t"}]}]}},
        subagent_trajectories=[document({}, trajectory_id="t")],
    ),
}

INVALID = {
    "no step": document(),
    "a gap in the numbers": document({"step_id": 2}),
    "an unknown key": document({"mesage": "x"}),
    "an unknown version": document({}, schema_version="ATIF-v2.0"),
    "a call of the user's": document({"source": "user", "tool_calls": [CALL]}),
    "a result of no call": document({"tool_calls": [CALL], "observation": {"results": [{"source_call_id": "c2"}]}}),
    "a result of another step's call": document({"tool_calls": [CALL]}, {"observation": {"results": [{"source_call_id": "c1"}]}}),
    "a time that is none": document({"timestamp": "yesterday"}),
    "thoughts without a model": document({"llm_call_count": 0, "reasoning_content": "hm"}),
    "text with a source": document(
        {"message": [{"type": "text", "text": "x", "source": {"media_type": "image/png", "path": "a"}}]}
    ),
    "an image that is a sound": document({"message": [{"type": "image", "source": {"media_type": "audio/wav", "path": "a"}}]}),
    "a subagent without an id": document({}, subagent_trajectories=[document({})]),
    "two subagents of one id": document(
        {}, subagent_trajectories=[document({}, trajectory_id="t"), document({}, trajectory_id="t")]
    ),
    "a reference to nothing": document({"observation": {"results": [{"subagent_trajectory_ref": [{"session_id": "s"}]}]}}),
    "arguments that are no object": document({"tool_calls": [{**CALL, "arguments": "ls"}]}),
}


@pytest.mark.parametrize("name", VALID)
def test_a_valid_trajectory_is_read_and_written_without_loss(name: str) -> None:
    trajectory = decode_atif(json.dumps(VALID[name]).encode())
    again = json.loads(msgspec.json.encode(trajectory))
    assert decode_atif(json.dumps(again).encode()) == trajectory
    assert again["steps"][0]["step_id"] == 1
    assert again["schema_version"] == VALID[name]["schema_version"]


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_trajectory_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        decode_atif(json.dumps(INVALID[name]).encode())


def test_numbers_that_json_cannot_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        AtifMetrics(cost_usd=float("nan"))
    with pytest.raises(ValueError, match="finite"):
        AtifMetrics(logprobs=[float("-inf")])
    with pytest.raises(ValueError, match="finite"):
        AtifFinalMetrics(total_cost_usd=float("inf"))


@pytest.mark.needs("atif")
@pytest.mark.parametrize("name", VALID)
def test_harbor_accepts_what_is_accepted(name: str) -> None:
    harbor_models.validate(VALID[name])


@pytest.mark.needs("atif")
@pytest.mark.parametrize("name", INVALID)
def test_harbor_refuses_what_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        harbor_models.validate(INVALID[name])


text = st.text(max_size=20)
texts = st.one_of(st.none(), text)
extras = st.one_of(st.none(), st.dictionaries(text, st.one_of(text, st.integers(-5, 5), st.booleans()), max_size=2))
counts = st.one_of(st.none(), st.integers(-1, 10**6))
calls = st.dictionaries(text, st.tuples(text, st.dictionaries(text, text, max_size=2)), max_size=3)


@st.composite
def built(draw: st.DrawFn) -> TrajectoryBuilder:
    """Whatever an agent may say, in whatever order."""
    made = TrajectoryBuilder(name=draw(text), version=draw(text), model=draw(texts), session_id=draw(texts))
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["system", "user", "agent", "say", "think", "call", "result", "measure"]))
        if kind in ("system", "user"):
            getattr(made, kind)(draw(text), extra=draw(extras))
        elif kind == "agent":
            made.agent(draw(text), reasoning=draw(texts), model=draw(texts), extra=draw(extras))
        elif kind in ("say", "think"):
            getattr(made, kind)(draw(text))
        elif kind == "call":
            made.call(draw(text), draw(text), draw(st.one_of(text, st.none(), st.dictionaries(text, text))), extra=draw(extras))
        elif kind == "result":
            made.result(draw(texts), draw(texts), extra=draw(extras))
        else:
            made.measure(AtifMetrics(prompt_tokens=draw(counts), completion_tokens=draw(counts), extra=draw(extras)))
    return made


@given(built())
def test_whatever_is_built_is_valid(made: TrajectoryBuilder) -> None:
    trajectory = made.build()
    assert decode_atif(msgspec.json.encode(trajectory)) == trajectory
    assert trajectory.final_metrics is not None
    assert trajectory.final_metrics.total_steps == len(made)


@pytest.mark.needs("atif")
@given(built())
def test_harbor_accepts_whatever_is_built(made: TrajectoryBuilder) -> None:
    harbor_models.validate(json.loads(msgspec.json.encode(made.build())))


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(allow_nan=False), text),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=8,
)


@st.composite
def mangled(draw: st.DrawFn) -> dict[str, Any]:
    """A valid trajectory in which one value was exchanged."""
    made: dict[str, Any] = json.loads(json.dumps(VALID[draw(st.sampled_from(sorted(VALID)))]))
    place: Any = made
    while True:
        keys: list[Any] = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        if not place[key] or not isinstance(place[key], dict | list) or draw(st.booleans()):
            place[key] = draw(json_values)
            return made
        place = place[key]


@pytest.mark.needs("atif")
@given(mangled())
def test_harbor_accepts_every_mangled_trajectory_that_is_accepted(value: dict[str, Any]) -> None:
    try:
        decode_atif(json.dumps(value).encode())
    except ValueError:
        return
    harbor_models.validate(value)


@given(st.binary(max_size=200))
def test_bytes_are_a_trajectory_or_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_atif(data)


def test_deep_nesting_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        decode_atif(b'{"extra":' * 100_000)


# --- building ---


def test_chunks_become_one_step_and_results_go_to_their_calls() -> None:
    made = TrajectoryBuilder(name="demo", model="m1")
    made.user("do it")
    made.think("hm")
    made.think("m")
    made.say("I ")
    made.say("look")
    made.call("c1", "bash", {"command": "ls"})
    made.result("c1", "first")
    made.result("c1", "a b")
    made.agent("done", model="m2")
    made.result("c1", "a b c")
    user, first, second = made.build().steps
    assert (user.source, first.message, first.reasoning_content) == ("user", "I look", "hmm")
    assert first.tool_calls is not None and first.tool_calls[0].function_name == "bash"
    assert first.observation is not None
    assert [(result.source_call_id, result.content) for result in first.observation.results] == [("c1", "a b c")]
    assert (second.message, second.model_name, second.observation) == ("done", "m2", None)


def test_totals_are_the_sums_of_the_steps_unless_the_agent_tells_them() -> None:
    made = TrajectoryBuilder(name="demo")
    for tokens in (10, 20):
        made.agent("x", metrics=AtifMetrics(prompt_tokens=tokens, completion_tokens=1, cost_usd=0.5))
    assert made.build().usage() == Usage(input_tokens=30, output_tokens=2, cost_usd=1.0)
    made.totals = AtifFinalMetrics(total_prompt_tokens=99)
    assert made.build().usage() == Usage(input_tokens=99, output_tokens=2, cost_usd=1.0)


def test_copied_steps_and_unknown_counts_are_not_usage() -> None:
    step = AtifStep(step_id=1, source="agent", message="x", metrics=AtifMetrics(prompt_tokens=5), is_copied_context=True)
    other = AtifStep(step_id=2, source="agent", message=[AtifPart(type="text", text="y")], metrics=AtifMetrics(cost_usd=-1.0))
    agent = decode_atif(json.dumps(document({})).encode()).agent
    assert AtifTrajectory(agent=agent, steps=[step, other]).usage() is None
