"""What agents' own logs tell: steps with tool calls, tokens, money. `read_...` are pure functions of bytes that never raise.

A line that is no JSON, or not of the shape that is expected, is passed over: a log's format is its agent's, and changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rollout import AgentLogs, AtifTrajectory, TrajectoryBuilder
from rollout_agents.story import Reading, Story, arguments_of, as_number, as_text, at, document, listed, objects


def read_claude(log: bytes) -> Reading:
    """`claude --print --output-format stream-json --verbose`."""
    story = Story()
    for event in objects(log):
        for block in listed(at(event, "message", "content")):
            kind = at(block, "type")
            if event.get("type") == "assistant" and kind == "text":
                story.says(at(block, "text"))
            elif event.get("type") == "assistant" and kind == "thinking":
                story.says("", at(block, "thinking"))
            elif event.get("type") == "assistant" and kind == "tool_use":
                story.calls(at(block, "id"), at(block, "name"), at(block, "input"))
            elif event.get("type") == "user" and kind == "tool_result":
                story.results(at(block, "tool_use_id"), at(block, "content"))
        if event.get("type") == "result":
            usage = event.get("usage")
            sent, got, cached = (
                as_number(at(usage, key)) for key in ("input_tokens", "output_tokens", "cache_read_input_tokens")
            )
            if at(usage, "total_tokens") != sent + got:  # Qwen Code tells a total, and counts what was cached as sent
                sent += cached + as_number(at(usage, "cache_creation_input_tokens"))
            story.used(input=sent, output=at(usage, "output_tokens"), cached=cached, cost=event.get("total_cost_usd"))
            story.ends_with(event.get("result"))
    return story.end()


def read_codex(log: bytes) -> Reading:
    """`codex exec --json`."""
    story = Story()
    for event in objects(log):
        item = event.get("item")
        if event.get("type") == "item.completed" and isinstance(item, dict):
            kind, identity = item.get("type"), item.get("id")
            if kind == "agent_message":
                story.says(item.get("text"))
            elif kind == "reasoning":
                story.says("", item.get("text"))
            elif kind == "command_execution":
                story.calls(identity, "shell", {"command": item.get("command")})
                story.results(identity, {"output": item.get("aggregated_output"), "exit_code": item.get("exit_code")})
            elif isinstance(kind, str) and kind not in ("error", "todo_list"):
                rest = {key: value for key, value in item.items() if key not in ("id", "type", "status", "result")}
                story.calls(identity, kind, rest)
                story.results(identity, item.get("result", item.get("status")))
        elif event.get("type") == "turn.completed":
            usage = event.get("usage")
            story.used(
                input=at(usage, "input_tokens"), output=at(usage, "output_tokens"), cached=at(usage, "cached_input_tokens")
            )
    return story.end()


def read_gemini(log: bytes) -> Reading:
    """`gemini --output-format stream-json`, and Qwen Code's likewise."""
    story = Story()
    words: list[str] = []

    def flush() -> None:
        story.says("".join(words))
        words.clear()

    for event in objects(log):
        kind = event.get("type")
        if kind == "message" and event.get("role") in ("assistant", "model"):
            words.append(as_text(event.get("content")))
            continue
        flush()
        if kind == "tool_use":
            story.calls(event.get("tool_id"), event.get("tool_name"), event.get("parameters"))
        elif kind == "tool_result":
            story.results(event.get("tool_id"), event.get("output", event.get("error")))
        elif kind == "result":
            stats = event.get("stats")
            story.used(input=at(stats, "input_tokens"), output=at(stats, "output_tokens"), cached=at(stats, "cached"))
    flush()
    return story.end()


def read_opencode(log: bytes) -> Reading:
    """`opencode run --format json`."""
    story = Story()
    for event in objects(log):
        part = event.get("part")
        if event.get("type") == "text":
            story.says(at(part, "text"))
        elif event.get("type") == "reasoning":
            story.says("", at(part, "text"))
        elif event.get("type") == "tool_use":
            story.calls(at(part, "callID"), at(part, "tool"), at(part, "state", "input"))
            story.results(at(part, "callID"), at(part, "state", "output"))
        elif event.get("type") == "step_finish":
            cached = as_number(at(part, "tokens", "cache", "read"))
            story.used(
                input=as_number(at(part, "tokens", "input")) + cached,
                output=at(part, "tokens", "output"),
                cached=cached,
                cost=at(part, "cost"),
            )
    return story.end()


def read_mini_swe_agent(log: bytes) -> Reading:
    """The trajectory that `mini --output FILE` writes."""
    story = Story()
    whole = document(log)
    for message in listed(at(whole, "messages")):
        if at(message, "role") == "assistant":
            _chat(story, message)
            usage = at(message, "extra", "response", "usage")
            story.used(
                input=at(usage, "prompt_tokens"),
                output=at(usage, "completion_tokens"),
                cached=at(usage, "prompt_tokens_details", "cached_tokens"),
            )
        elif at(message, "role") == "tool":
            story.results(at(message, "tool_call_id"), at(message, "content"))
    story.used(cost=at(whole, "info", "model_stats", "instance_cost"))
    return story.end()


def read_aider(chat: bytes, events: bytes) -> Reading:
    """The history of its chat (`--chat-history-file`), and the events with its tokens (`--analytics-log`)."""
    story = Story()
    words: list[str] = []
    edits = 0
    for line in chat.decode("utf-8", "replace").splitlines():
        if not line.startswith(("# aider chat started", "#### ", "> ")) and line != ">":
            words.append(line)
            continue
        story.says("\n".join(words).strip())
        words.clear()
        if line.startswith("> Applied edit to "):
            edits += 1
            story.calls(f"edit-{edits}", "edit", {"path": line.removeprefix("> Applied edit to ").strip()})
            story.results(f"edit-{edits}", line.removeprefix("> ").strip())
    story.says("\n".join(words).strip())
    for event in objects(events):
        if event.get("event") == "message_send":
            tokens = event.get("properties")
            story.used(input=at(tokens, "prompt_tokens"), output=at(tokens, "completion_tokens"), cost=at(tokens, "cost") or None)
    return story.end()


def read_pi(log: bytes) -> Reading:
    """`pi --mode json`."""
    story = Story()
    for event in objects(log):
        message = event.get("message")
        if event.get("type") != "message_end":
            continue
        if at(message, "role") == "toolResult":
            story.results(at(message, "toolCallId"), at(message, "content"))
        elif at(message, "role") == "assistant":
            for block in listed(at(message, "content")):
                if at(block, "type") == "toolCall":
                    story.calls(at(block, "id"), at(block, "name"), at(block, "arguments"))
                else:
                    story.says(at(block, "text"), at(block, "thinking"))
            usage = at(message, "usage")
            cached = as_number(at(usage, "cacheRead"))
            fresh = as_number(at(usage, "input")) + as_number(at(usage, "cacheWrite"))
            story.used(input=fresh + cached, output=at(usage, "output"), cached=cached, cost=at(usage, "cost", "total"))
    return story.end()


def read_kimi(log: bytes, wires: Iterable[bytes]) -> Reading:
    """`kimi --output-format stream-json`, and the wire logs of its session with its tokens."""
    story = Story()
    for message in objects(log):
        if message.get("role") == "assistant":
            _chat(story, message)
        elif message.get("role") == "tool":
            story.results(message.get("tool_call_id"), message.get("content"))
    for wire in wires:
        for event in objects(wire):
            if event.get("type") == "usage.record":
                usage = event.get("usage")
                cached = as_number(at(usage, "inputCacheRead"))
                fresh = as_number(at(usage, "inputOther")) + as_number(at(usage, "inputCacheCreation"))
                story.used(input=fresh + cached, output=at(usage, "output"), cached=cached)
    return story.end()


def read_copilot(log: bytes, usage: bytes) -> Reading:
    """`copilot --output-format json`, and what it writes to `--usage-output-file`."""
    story = Story()
    for event in objects(log):
        data = event.get("data")
        if event.get("type") == "assistant.message":
            story.says(at(data, "content"), at(data, "reasoningText"))
            for call in listed(at(data, "toolRequests")):
                story.calls(at(call, "toolCallId"), at(call, "name"), at(call, "arguments"))
        elif event.get("type") == "tool.execution_complete":
            story.results(at(data, "toolCallId"), at(data, "result", "content") or at(data, "error"))
    models = at(document(usage), "modelMetrics")
    for model in models.values() if isinstance(models, dict) else ():
        told = at(model, "usage")
        story.used(input=at(told, "inputTokens"), output=at(told, "outputTokens"), cached=at(told, "cacheReadTokens"))
    return story.end()


def read_cline(log: bytes) -> Reading:
    """`cline --json`."""
    story = Story()
    asked: dict[str, Any] = {}
    for line in objects(log):
        event = line.get("event")
        kind, identity = (at(event, "type"), at(event, "contentType")), as_text(at(event, "toolCallId"))
        if kind == ("content_end", "text"):
            story.says(at(event, "text"))
        elif kind == ("content_end", "reasoning"):
            story.says("", at(event, "text"))
        elif kind == ("content_start", "tool"):
            asked[identity] = at(event, "input")
        elif kind == ("content_end", "tool"):
            story.calls(identity, at(event, "toolName"), asked.get(identity))
            story.results(identity, at(event, "output"))
        elif line.get("type") == "run_result":
            usage = line.get("usage")
            cost = at(usage, "totalCost") or None  # 0 of models that it does not know
            story.used(
                input=at(usage, "inputTokens"), output=at(usage, "outputTokens"), cached=at(usage, "cacheReadTokens"), cost=cost
            )
    return story.end()


def _chat(story: Story, message: Any) -> None:
    """An assistant's message as OpenAI's chat completions have it."""
    story.says(at(message, "content"), at(message, "reasoning_content"))
    for call in listed(at(message, "tool_calls")):
        story.calls(at(call, "id"), at(call, "function", "name"), arguments_of(at(call, "function", "arguments")))


# What is registered in the group `rollout.readers`.


def claude(logs: AgentLogs) -> AtifTrajectory | None:
    """Claude Code's stream of JSON, and that of agents which print the same."""
    return _trajectory("claude", read_claude(logs.printed()))


def codex(logs: AgentLogs) -> AtifTrajectory | None:
    """What `codex exec --json` prints."""
    return _trajectory("codex", read_codex(logs.printed()))


def gemini(logs: AgentLogs) -> AtifTrajectory | None:
    """Gemini CLI's stream of JSON."""
    return _trajectory("gemini", read_gemini(logs.printed()))


def opencode(logs: AgentLogs) -> AtifTrajectory | None:
    """What `opencode run --format json` prints."""
    return _trajectory("opencode", read_opencode(logs.printed()))


def mini_swe_agent(logs: AgentLogs) -> AtifTrajectory | None:
    """mini-swe-agent's trajectory, as /logs/agent/mini.traj.json."""
    return _trajectory("mini-swe-agent", read_mini_swe_agent(_content(logs, "mini.traj.json")))


def aider(logs: AgentLogs) -> AtifTrajectory | None:
    """aider's /logs/agent/aider.chat.md and aider.events.jsonl."""
    events = _content(logs, "aider.events.jsonl")
    return _trajectory("aider", read_aider(_content(logs, "aider.chat.md"), events))


def pi(logs: AgentLogs) -> AtifTrajectory | None:
    """What `pi --mode json` prints."""
    return _trajectory("pi", read_pi(logs.printed()))


def kimi(logs: AgentLogs) -> AtifTrajectory | None:
    """What `kimi --output-format stream-json` prints, and the tokens of /logs/agent/kimi, its KIMI_CODE_HOME."""
    wires = [file.read_bytes() for file in logs.files("kimi/sessions/*/*/agents/*/wire.jsonl")]
    return _trajectory("kimi", read_kimi(logs.printed(), wires))


def cline(logs: AgentLogs) -> AtifTrajectory | None:
    """What `cline --json` prints."""
    return _trajectory("cline", read_cline(logs.printed()))


def copilot(logs: AgentLogs) -> AtifTrajectory | None:
    """What `copilot --output-format json` prints, and the tokens of /logs/agent/copilot.usage.json."""
    usage = _content(logs, "copilot.usage.json")
    return _trajectory("copilot", read_copilot(logs.printed(), usage))


def _content(logs: AgentLogs, name: str) -> bytes:
    file = logs.file(name)
    return file.read_bytes() if file is not None else b""


def _trajectory(name: str, reading: Reading) -> AtifTrajectory | None:
    if not reading.steps:
        return None
    made = TrajectoryBuilder(name=name)
    reading.tell(made)
    return made.build()
