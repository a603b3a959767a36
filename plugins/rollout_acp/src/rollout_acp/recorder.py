"""What a session's updates say, as a trajectory and as usage.

It reads the plain messages, not the package's models: kinds that are not in the protocol, and updates that are yet to come, are
kept as far as they can be understood. In an update of a call `content` replaces what was there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from rollout import AtifFinalMetrics, TrajectoryBuilder, Usage
from rollout.core.trajectories import well_formed

MAX_TEXT = 64 * 1024 * 1024
"""How many characters of what the agent says are kept in a trajectory."""


class Recorder:
    """Takes the parameters of `session/update`, and what a prompt answers."""

    def __init__(self, *, name: str, model: str | None, on_usage: Callable[[Usage], None]) -> None:
        self.made = TrajectoryBuilder(name=name, model=model)
        self._said: list[str] = []
        self.usage: Usage | None = None
        """Of the session, as far as it was told."""
        self._on_usage = on_usage
        self._context_tokens: int | None = None
        self._cost: float | None = None
        self._tokens: tuple[int, int, int] | None = None
        self._calls: dict[str, dict[str, Any]] = {}
        self._results: dict[str, int] = {}
        self._printed: dict[str, list[str]] = {}
        self._plan: list[Any] = []
        self._stop_reasons: list[str] = []
        self._room = MAX_TEXT
        self._other: dict[str, int] = {}

    @property
    def answer(self) -> str:
        """The agent's words since the last prompt or the last call of a tool."""
        return well_formed("".join(self._said))

    def prompted(self, text: str) -> None:
        self._said = []
        self.made.user(text, timestamp=_now())

    def permission(self, request: Any, *, allowed: bool) -> None:
        """The agent asked, and this was the decision."""
        call = request.get("toolCall") if isinstance(request, dict) else None
        if not isinstance(call, dict) or not isinstance(call.get("toolCallId"), str):
            return
        self._call({**call, "permission": "allowed" if allowed else "denied"})

    def update(self, params: dict[str, Any]) -> None:
        update = params.get("update")
        if not isinstance(update, dict):
            return
        kind = update.get("sessionUpdate")
        if kind == "agent_message_chunk":
            if text := self._kept(_text(update.get("content"))):
                self._said.append(text)
                self.made.say(text, timestamp=_now())
        elif kind == "agent_thought_chunk":
            if text := self._kept(_text(update.get("content"))):
                self.made.think(text, timestamp=_now())
        elif kind in ("tool_call", "tool_call_update"):
            if isinstance(update.get("toolCallId"), str):
                self._call(update)
        elif kind == "plan":
            entries = update.get("entries")
            self._plan = entries if isinstance(entries, list) else []
        elif kind == "usage_update":
            self._used(update)
        elif isinstance(kind, str):
            self._other[kind] = self._other.get(kind, 0) + 1

    def answered(self, result: dict[str, Any]) -> None:
        """What `session/prompt` gave."""
        usage = result.get("usage")
        if isinstance(usage, dict):
            counts = {name: _count(usage.get(name)) for name in _COUNTS}
            self._tokens = _tokens(counts)
        self._tell()
        self._stop_reasons.append(str(result.get("stopReason")))

    def finish(self) -> TrajectoryBuilder:
        """The trajectory, with what belongs to all of it."""
        usage = self.usage or Usage()
        self.made.totals = AtifFinalMetrics(
            total_prompt_tokens=usage.input_tokens,
            total_completion_tokens=usage.output_tokens,
            total_cached_tokens=usage.cached_tokens,
            total_cost_usd=usage.cost_usd,
            total_steps=len(self.made),
            extra={"stop_reasons": self._stop_reasons} if self._stop_reasons else None,
        )
        for call_id, parts in self._printed.items():
            if call_id not in self._results:
                self.made.result(call_id, "".join(parts))
        if self._plan:
            self.made.extra["plan"] = self._plan
        if self._other:
            self.made.extra["other_updates"] = dict(self._other)
        if self._room <= 0:
            self.made.notes = f"What was said after {MAX_TEXT >> 20} Mi characters is left out; the messages are in acp.jsonl."
        return self.made

    def _call(self, update: dict[str, Any]) -> None:
        call_id = update["toolCallId"]
        if call_id not in self._calls:
            self._room -= _OVERHEAD
        if self._room <= 0 and call_id not in self._calls:
            return
        known = self._calls.setdefault(call_id, {})
        known.update({key: update[key] for key in _ABOUT_CALLS if update.get(key) is not None})
        if update.get("rawInput") is not None:
            known["rawInput"] = self._kept_data(update["rawInput"])
        self._said = []
        arguments = known.get("rawInput")
        if arguments is None and known.get("locations"):
            arguments = {"locations": known["locations"]}
        extra: dict[str, Any] = {key: known[key] for key in _ABOUT_CALLS if key in known}
        if isinstance(update.get("name"), str):
            known["name"] = update["name"][:_MAX_NAME]
        name = str(known.get("name") or known.get("kind") or known.get("title") or "tool")
        self.made.call(call_id, name, arguments, extra=extra, timestamp=_now())
        text = _result(update)
        if text:
            self._room += self._results.get(call_id, 0)  # it takes the place of what was there
            content = self._kept(text)
            self._results[call_id] = len(content) + _OVERHEAD
            self.made.result(call_id, content)
        elif printed := _printed(update):
            parts = self._printed.setdefault(call_id, [])
            parts.append(self._kept(printed))
            if len(parts) == 1:
                self.made.result(call_id, parts[0])  # its place; `finish` puts all of it there

    def _used(self, update: dict[str, Any]) -> None:
        self._context_tokens = max(_count(update.get("used")) or 0, self._context_tokens or 0) or None
        cost = update.get("cost")
        if isinstance(cost, dict) and str(cost.get("currency", "USD")).upper() == "USD":
            amount = cost.get("amount")
            if isinstance(amount, int | float) and not isinstance(amount, bool) and math.isfinite(amount) and amount >= 0:
                self._cost = float(amount)
        self._tell()

    def _tell(self) -> None:
        prompt, completion, cached = self._tokens or (None, None, None)
        # The context is no less than what was sent; an agent that counts tells so when it answers.
        sent = prompt if prompt is not None else self._context_tokens
        usage = Usage(input_tokens=sent, output_tokens=completion, cached_tokens=cached, cost_usd=self._cost)
        if usage != Usage():
            self.usage = usage
            self._on_usage(usage)

    def _kept(self, text: str) -> str:
        if self._room <= 0:
            return ""
        kept = text[: self._room]
        self._room -= len(text) + _OVERHEAD
        return kept

    def _kept_data(self, value: Any) -> Any:
        """Arguments, when there is room for them."""
        size = len(json.dumps(value))
        self._room -= size
        return value if self._room > 0 else {"cut": f"{size} characters"}


_ABOUT_CALLS = ("title", "kind", "status", "permission", "locations")
_MAX_NAME = 200
_OVERHEAD = 64
"""What a piece of text counts besides its characters: a flood of empty ones takes memory too."""
_COUNTS = ("totalTokens", "inputTokens", "outputTokens", "thoughtTokens", "cachedReadTokens", "cachedWriteTokens")


def _tokens(counts: dict[str, int | None]) -> tuple[int, int, int] | None:
    """Prompt tokens with cached ones, completion tokens with thoughts, cached ones.

    Agents differ in whether `inputTokens` includes the cached and `outputTokens` the thoughts; their total tells.
    """
    total, given, output, thought, read, written = (counts[name] or 0 for name in _COUNTS)
    if not (given or output or total):
        return None
    rest = total - given - output
    if rest >= read + written + thought:
        return given + read + written, output + thought, read
    if rest >= read + written:
        return given + read + written, output, read
    if rest >= thought:
        return given, output + thought, read
    return given, output, read


def _result(call: dict[str, Any]) -> str:
    parts = []
    content = call.get("content")
    for item in content if isinstance(content, list) else ():
        if not isinstance(item, dict):
            continue
        if item.get("type") == "diff":
            parts.append(f"{item.get('path')}\n--- before\n{item.get('oldText') or ''}\n+++ after\n{item.get('newText') or ''}")
        else:
            parts.append(_text(item.get("content")))
    if not any(parts) and call.get("rawOutput") is not None:
        raw = call["rawOutput"]
        parts = [raw if isinstance(raw, str) else json.dumps(raw)]
    return "\n".join(part for part in parts if part)


def _printed(call: dict[str, Any]) -> str:
    """What a command printed since the last update, where the agent tells it beside the protocol (codex-acp does)."""
    meta = call.get("_meta")
    delta = meta.get("terminal_output_delta") if isinstance(meta, dict) else None
    data = delta.get("data") if isinstance(delta, dict) else None
    return data if isinstance(data, str) else ""


def _text(content: Any) -> str:
    """The text of a content block; of others what they are."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(map(_text, content))
    if not isinstance(content, dict):
        return ""
    if content.get("type") in (None, "text"):
        return str(content.get("text") or "")
    resource = content.get("resource")
    if isinstance(resource, dict) and isinstance(resource.get("text"), str):
        return str(resource["text"])
    return f"[{content.get('type')}: {content.get('uri') or content.get('name') or content.get('mimeType') or ''}]"


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _now() -> str:
    return datetime.now(UTC).isoformat()
