"""The wire formats of model servers: what is asked in each, and an answer in each, whole or as a stream of events.

Sources: OpenAI's and Anthropic's API references, Gemini's REST reference; the SDKs of the first two check them in the tests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

_USED_IN = 100
"""Tokens that each request is said to hold; 10 of them from a cache."""
_CACHED = 10
_USED_OUT = 20

Event = tuple[str | None, Any]


@dataclass(frozen=True)
class Question:
    """What is asked, in every protocol."""

    model: str
    turn: int
    """How many tool results the conversation holds."""
    tools: frozenset[str]
    """Names of the tools on offer."""
    text: str
    """The whole of the request, as text to look things up in."""


@dataclass(frozen=True)
class Call:
    identity: str
    name: str
    arguments: dict[str, Any]

    @property
    def json(self) -> str:
        return json.dumps(self.arguments)


@dataclass(frozen=True)
class Answer:
    text: str
    call: Call | None
    identity: str


class ModelProtocol(Protocol):
    """One wire format."""

    def question(self, path: str, body: Any) -> Question: ...
    def streams(self, path: str, query: str, body: Any) -> bool: ...
    def answer(self, question: Question, answer: Answer) -> Any: ...
    def events(self, question: Question, answer: Answer) -> list[Event]: ...
    def error(self, status: int, message: str) -> Any: ...

    def counts(self, path: str) -> bool:
        """Whether the request only asks how many tokens it has."""
        ...

    def count(self, question: Question) -> Any: ...


class _Chat:
    """OpenAI's chat completions."""

    def question(self, path: str, body: Any) -> Question:
        messages = body.get("messages") or []
        turn = sum(1 for message in messages if message.get("role") == "tool")
        tools = frozenset(str((tool.get("function") or tool).get("name")) for tool in body.get("tools") or [])
        return Question(str(body.get("model", "")), turn, tools, json.dumps(body))

    def streams(self, path: str, query: str, body: Any) -> bool:
        return bool(body.get("stream"))

    def counts(self, path: str) -> bool:
        return False

    def count(self, question: Question) -> Any:
        return {}

    def error(self, status: int, message: str) -> Any:
        kind = "rate_limit_exceeded" if status == 429 else "server_error"
        return {"error": {"message": message, "type": kind, "code": kind, "param": None}}

    def answer(self, question: Question, answer: Answer) -> Any:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
        if answer.call is not None:
            message["tool_calls"] = [self._call(answer.call)]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if answer.call else "stop"}
        return {**self._head(question, answer, "chat.completion"), "choices": [choice], "usage": self._usage()}

    def events(self, question: Question, answer: Answer) -> list[Event]:
        head = self._head(question, answer, "chat.completion.chunk")

        def chunk(delta: dict[str, Any], finish: str | None = None) -> Event:
            return None, {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

        events = [chunk({"role": "assistant", "content": ""})]
        events += [chunk({"content": part}) for part in _parts(answer.text)]
        if answer.call is not None:
            started = {**self._call(answer.call), "index": 0}
            started["function"] = {"name": answer.call.name, "arguments": ""}
            events.append(chunk({"tool_calls": [started]}))
            events += [
                chunk({"tool_calls": [{"index": 0, "function": {"arguments": part}}]}) for part in _parts(answer.call.json)
            ]
        events.append(chunk({}, "tool_calls" if answer.call else "stop"))
        return [*events, (None, {**head, "choices": [], "usage": self._usage()}), (None, "[DONE]")]

    def _head(self, question: Question, answer: Answer, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{answer.identity}", "object": kind, "created": 1_700_000_000, "model": question.model}

    def _call(self, call: Call) -> dict[str, Any]:
        return {"id": call.identity, "type": "function", "function": {"name": call.name, "arguments": call.json}}

    def _usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": _USED_IN,
            "completion_tokens": _USED_OUT,
            "total_tokens": _USED_IN + _USED_OUT,
            "prompt_tokens_details": {"cached_tokens": _CACHED},
        }


class _Responses(_Chat):
    """OpenAI's responses."""

    def question(self, path: str, body: Any) -> Question:
        given = body.get("input") or []
        items = given if isinstance(given, list) else []
        turn = sum(1 for item in items if str(item.get("type", "")).endswith("_call_output"))
        tools = frozenset(name for tool in body.get("tools") or [] for name in self._names(tool))
        return Question(str(body.get("model", "")), turn, tools, json.dumps(body))

    def _names(self, tool: dict[str, Any]) -> list[str]:
        """Its name, or its kind; of a namespace those in it, as NAMESPACE.NAME."""
        if tool.get("type") != "namespace":
            return [str(tool.get("name") or tool.get("type"))]
        return [f"{tool.get('name')}.{inner.get('name')}" for inner in tool.get("tools") or []]

    def answer(self, question: Question, answer: Answer) -> Any:
        return self._response(question, answer, "completed", self._items(answer), self._used())

    def events(self, question: Question, answer: Answer) -> list[Event]:
        events: list[dict[str, Any]] = []
        begun = self._response(question, answer, "in_progress", [], None)
        events.append({"type": "response.created", "response": begun})
        events.append({"type": "response.in_progress", "response": begun})
        for index, item in enumerate(self._items(answer)):
            at = {"output_index": index, "item_id": item["id"]}
            if item["type"] == "message":
                events.append({"type": "response.output_item.added", "output_index": index, "item": {**item, "content": []}})
                part = {"type": "output_text", "text": "", "annotations": []}
                events.append({"type": "response.content_part.added", **at, "content_index": 0, "part": part})
                for text in _parts(answer.text):
                    events.append({"type": "response.output_text.delta", **at, "content_index": 0, "delta": text, "logprobs": []})
                events.append(
                    {"type": "response.output_text.done", **at, "content_index": 0, "text": answer.text, "logprobs": []}
                )
                done = {"type": "response.content_part.done", **at, "content_index": 0, "part": item["content"][0]}
                events.append(done)
            else:
                events.append({"type": "response.output_item.added", "output_index": index, "item": {**item, "arguments": ""}})
                for text in _parts(item["arguments"]):
                    events.append({"type": "response.function_call_arguments.delta", **at, "delta": text})
                whole = {"arguments": item["arguments"], "name": item["name"]}
                events.append({"type": "response.function_call_arguments.done", **at, **whole})
            events.append({"type": "response.output_item.done", "output_index": index, "item": item})
        events.append({"type": "response.completed", "response": self.answer(question, answer)})
        return [(event["type"], {**event, "sequence_number": number}) for number, event in enumerate(events)]

    def _items(self, answer: Answer) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        if answer.text or answer.call is None:
            content = [{"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}]
            item = {"type": "message", "id": f"msg_{answer.identity}", "role": "assistant", "status": "completed"}
            items.append({**item, "content": content})
        if answer.call is not None:
            call = answer.call
            namespace, _, name = call.name.rpartition(".")
            item = {"type": "function_call", "id": f"fc_{answer.identity}", "call_id": call.identity, "name": name}
            if namespace:
                item["namespace"] = namespace
            items.append({**item, "arguments": call.json, "status": "completed"})
        return items

    def _response(self, question: Question, answer: Answer, status: str, output: Any, usage: Any) -> dict[str, Any]:
        return {
            "id": f"resp_{answer.identity}",
            "object": "response",
            "created_at": 1_700_000_000,
            "status": status,
            "model": question.model,
            "output": output,
            "usage": usage,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": False,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
        }

    def _used(self) -> dict[str, Any]:
        return {
            "input_tokens": _USED_IN,
            "input_tokens_details": {"cached_tokens": _CACHED, "cache_write_tokens": 0},
            "output_tokens": _USED_OUT,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": _USED_IN + _USED_OUT,
        }


class _Anthropic:
    """Anthropic's messages."""

    def question(self, path: str, body: Any) -> Question:
        blocks = [
            block
            for message in body.get("messages") or []
            for block in (message.get("content") if isinstance(message.get("content"), list) else [])
        ]
        turn = sum(1 for block in blocks if block.get("type") == "tool_result")
        tools = frozenset(str(tool.get("name")) for tool in body.get("tools") or [])
        return Question(str(body.get("model", "")), turn, tools, json.dumps(body))

    def streams(self, path: str, query: str, body: Any) -> bool:
        return bool(body.get("stream"))

    def counts(self, path: str) -> bool:
        return path.endswith("/count_tokens")

    def count(self, question: Question) -> Any:
        return {"input_tokens": _USED_IN}

    def error(self, status: int, message: str) -> Any:
        kind = {429: "rate_limit_error", 529: "overloaded_error", 401: "authentication_error"}.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}

    def answer(self, question: Question, answer: Answer) -> Any:
        return self._message(question, answer, self._blocks(answer), "tool_use" if answer.call else "end_turn")

    def events(self, question: Question, answer: Answer) -> list[Event]:
        events: list[dict[str, Any]] = [{"type": "message_start", "message": self._message(question, answer, [], None)}]
        for index, block in enumerate(self._blocks(answer)):
            if block["type"] == "text":
                start: dict[str, Any] = {"type": "text", "text": ""}
                deltas = [{"type": "text_delta", "text": part} for part in _parts(block["text"])]
            else:
                start = {**block, "input": {}}
                deltas = [{"type": "input_json_delta", "partial_json": part} for part in _parts(json.dumps(block["input"]))]
            events.append({"type": "content_block_start", "index": index, "content_block": start})
            events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            events.append({"type": "content_block_stop", "index": index})
        stop = {"stop_reason": "tool_use" if answer.call else "end_turn", "stop_sequence": None}
        events.append({"type": "message_delta", "delta": stop, "usage": {"output_tokens": _USED_OUT}})
        events.append({"type": "message_stop"})
        return [(event["type"], event) for event in events]

    def _blocks(self, answer: Answer) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        if answer.text or answer.call is None:
            blocks.append({"type": "text", "text": answer.text})
        if answer.call is not None:
            call = answer.call
            blocks.append({"type": "tool_use", "id": f"toolu_{answer.identity}", "name": call.name, "input": call.arguments})
        return blocks

    def _message(self, question: Question, answer: Answer, content: Any, stop: str | None) -> dict[str, Any]:
        return {
            "id": f"msg_{answer.identity}",
            "type": "message",
            "role": "assistant",
            "model": question.model,
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {
                "input_tokens": _USED_IN - _CACHED,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": _CACHED,
                "output_tokens": _USED_OUT if stop else 1,
            },
        }


class _Gemini:
    """Gemini's generateContent."""

    def question(self, path: str, body: Any) -> Question:
        parts = [part for content in body.get("contents") or [] for part in content.get("parts") or []]
        turn = sum(1 for part in parts if "functionResponse" in part)
        groups = body.get("tools") or []
        tools = frozenset(str(one.get("name")) for group in groups for one in group.get("functionDeclarations") or [])
        model = path.rpartition("/models/")[2].partition(":")[0]
        return Question(model, turn, tools, json.dumps(body))

    def streams(self, path: str, query: str, body: Any) -> bool:
        return path.endswith(":streamGenerateContent")

    def counts(self, path: str) -> bool:
        return path.endswith(":countTokens")

    def count(self, question: Question) -> Any:
        return {"totalTokens": _USED_IN}

    def error(self, status: int, message: str) -> Any:
        kind = "RESOURCE_EXHAUSTED" if status == 429 else "INTERNAL"
        return {"error": {"code": status, "message": message, "status": kind}}

    def answer(self, question: Question, answer: Answer) -> Any:
        parts: list[dict[str, Any]] = []
        if answer.text or answer.call is None:
            parts.append({"text": answer.text})
        if answer.call is not None:
            call = answer.call
            parts.append({"functionCall": {"id": call.identity, "name": call.name, "args": call.arguments}})
        return self._chunk(question, answer, parts, last=True)

    def events(self, question: Question, answer: Answer) -> list[Event]:
        events: list[Event] = [(None, self._chunk(question, answer, [{"text": part}])) for part in _parts(answer.text)]
        if answer.call is not None:
            call = answer.call
            part = {"functionCall": {"id": call.identity, "name": call.name, "args": call.arguments}}
            events.append((None, self._chunk(question, answer, [part])))
        return [*events, (None, self._chunk(question, answer, [{"text": ""}], last=True))]

    def _chunk(self, question: Question, answer: Answer, parts: Any, *, last: bool = False) -> dict[str, Any]:
        candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
        if last:
            candidate["finishReason"] = "STOP"
        used = {
            "promptTokenCount": _USED_IN,
            "candidatesTokenCount": _USED_OUT,
            "cachedContentTokenCount": _CACHED,
            "totalTokenCount": _USED_IN + _USED_OUT,
        }
        more = {"usageMetadata": used} if last else {}
        return {"candidates": [candidate], "modelVersion": question.model, "responseId": answer.identity, **more}


_PROTOCOLS: tuple[tuple[str, ModelProtocol], ...] = (
    ("/chat/completions", _Chat()),
    ("/responses", _Responses()),
    ("/messages", _Anthropic()),
    ("/messages/count_tokens", _Anthropic()),
    (":generateContent", _Gemini()),
    (":streamGenerateContent", _Gemini()),
    (":countTokens", _Gemini()),
)


def protocol_of(path: str) -> ModelProtocol | None:
    """The protocol that is spoken at a path, whatever stands before its end."""
    return next((protocol for end, protocol in _PROTOCOLS if path.endswith(end)), None)


def models(path: str) -> Any:
    """What a list of models says, in the form of all protocols at once."""
    one = {"id": "scripted", "object": "model", "created": 0, "owned_by": "rollout", "type": "model", "display_name": "Scripted"}
    return {"object": "list", "data": [one], "has_more": False, "models": [{"name": "models/scripted"}]}


def _parts(text: str) -> list[str]:
    """A text in pieces, as a stream brings it."""
    size = max(1, (len(text) + 2) // 3)
    return [text[start : start + size] for start in range(0, len(text), size)]
