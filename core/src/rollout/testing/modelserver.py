"""A model server without a model: it answers real agents and SDKs from a script, and remembers what they asked.

    async with ModelServer([ToolUse(name="Bash", arguments={"command": "echo hi"}), Say("Done.")]) as server:
        ...                         # point an agent at server.url; it speaks OpenAI's, Anthropic's and Gemini's protocols
    assert server.requests[0].model == "some-model"

It speaks OpenAI's chat completions and responses, Anthropic's messages and Gemini's generateContent, streaming or not. Every
conversation starts at the script's first line and goes on with each result that its requests hold, so trials that run at once
do not disturb each other. `python -m rollout.testing.modelserver SCRIPT.json` serves one until it is interrupted.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from rollout.testing import modelprotocols
from rollout.testing.modelprotocols import Answer, Call, Question

_MAX_BODY_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Say:
    """The model says something and is done."""

    text: str


@dataclass(frozen=True)
class ToolUse:
    """The model calls a tool. Of several names the first that the request offers is taken, each with its own arguments."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    """What it says before."""
    others: tuple[tuple[str, dict[str, Any]], ...] = ()
    """Further names and their arguments."""


@dataclass(frozen=True)
class Fail:
    """The server answers with an error, `times` times over all conversations; then the script goes on."""

    status: int = 500
    message: str = "scripted failure"
    retry_after_sec: float | None = None
    times: int = 1


@dataclass(frozen=True)
class Wait:
    """Wait before the next line."""

    seconds: float


Line = Say | ToolUse | Fail | Wait
Script = Sequence[Line] | Callable[[Question], Say | ToolUse | Fail]
"""Lines in turn, or a function of what was asked."""


@dataclass(frozen=True)
class Recorded:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: Any
    model: str
    turn: int
    """How many tool results its conversation holds."""


class ModelServer:
    """Serves a script over HTTP. A line per turn; after the last line it says "Done."."""

    def __init__(self, script: Script, *, host: str = "127.0.0.1", port: int = 0, latency_sec: float = 0.0) -> None:
        """`latency_sec`: before every answer. `port` 0 is a free one."""
        self._script = script
        self._host = host
        self._port = port
        self._latency_sec = latency_sec
        self._failed: dict[int, int] = {}
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.requests: list[Recorded] = []

    @property
    def port(self) -> int:
        assert self._server is not None, "it is not running"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """Without a path: Anthropic's and Gemini's base URL. OpenAI's is this and `/v1`."""
        return f"http://{self._host}:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, self._host, self._port, limit=1 << 20)
        return self

    async def __aexit__(self, *ended: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, _BadRequestError):
            return  # the client is gone, or this server is
        finally:
            self._open.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer. False at the connection's end."""
        first = await reader.readline()
        if not first.strip():
            return False
        method, target = first.decode("latin-1").split()[:2]
        headers = {}
        while line := (await reader.readline()).decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        data = await _body(reader, headers)
        path = urlsplit(target)
        if method == "GET" or method == "HEAD":
            await self._send(writer, 200, modelprotocols.models(path.path), method=method)
            return True
        try:
            body = json.loads(data or b"{}")
        except ValueError:
            await self._send(writer, 400, {"error": {"message": "the body is no JSON"}})
            return True
        await self._answer(writer, Recorded(method, target, headers, body, "", 0), path.path, path.query)
        return True

    async def _answer(self, writer: asyncio.StreamWriter, request: Recorded, path: str, query: str) -> None:
        protocol = modelprotocols.protocol_of(path)
        if protocol is None:
            self.requests.append(request)
            await self._send(writer, 404, {"error": {"message": f"there is nothing at {path}", "type": "not_found_error"}})
            return
        question = protocol.question(path, request.body)
        self.requests.append(Recorded(request.method, request.path, request.headers, request.body, question.model, question.turn))
        if protocol.counts(path):
            await self._send(writer, 200, protocol.count(question))
            return
        line = await self._line(question)
        if isinstance(line, Fail):
            headers = {} if line.retry_after_sec is None else {"retry-after": f"{line.retry_after_sec:g}"}
            await self._send(writer, line.status, protocol.error(line.status, line.message), headers)
            return
        answer = _answer_of(line, question)
        if protocol.streams(path, query, request.body):
            await self._stream(writer, protocol.events(question, answer))
        else:
            await self._send(writer, 200, protocol.answer(question, answer))

    async def _line(self, question: Question) -> Say | ToolUse | Fail:
        """What the script has for a conversation that got so far."""
        if self._latency_sec:
            await asyncio.sleep(self._latency_sec)
        if callable(self._script):
            return self._script(question)
        turn = question.turn
        for number, line in enumerate(self._script):
            if isinstance(line, Wait):
                if turn == 0:
                    await asyncio.sleep(line.seconds)
            elif isinstance(line, Fail):
                if turn == 0 and self._failed.get(number, 0) < line.times:
                    self._failed[number] = self._failed.get(number, 0) + 1
                    return line
            elif isinstance(line, Say) or turn == 0:
                if not question.tools and isinstance(line, ToolUse):
                    return Say("ok")  # a side question, of a title or the like
                return line
            else:
                turn -= 1
        return Say("Done.")

    async def _send(
        self, writer: asyncio.StreamWriter, status: int, body: Any, headers: dict[str, str] | None = None, *, method: str = "POST"
    ) -> None:
        data = json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} {'OK' if status < 400 else 'Error'}", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        lines += [f"content-length: {len(data)}", "", ""]
        writer.write("\r\n".join(lines).encode() + (b"" if method == "HEAD" else data))
        await writer.drain()

    async def _stream(self, writer: asyncio.StreamWriter, events: Sequence[tuple[str | None, Any]]) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for name, event in events:
            text = event if isinstance(event, str) else json.dumps(event)
            chunk = (f"event: {name}\n" if name else "") + f"data: {text}\n\n"
            data = chunk.encode()
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()


class _BadRequestError(Exception):
    """The connection does not speak HTTP as this server knows it."""


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        data = b""
        while size := int((await reader.readline()).split(b";")[0], 16):
            data += await reader.readexactly(size)
            await reader.readline()
            if len(data) > _MAX_BODY_BYTES:
                raise _BadRequestError
        await reader.readline()
        return data
    length = int(headers.get("content-length", "0"))
    if length > _MAX_BODY_BYTES:
        raise _BadRequestError
    return await reader.readexactly(length)


def _answer_of(line: Say | ToolUse, question: Question) -> Answer:
    identity = f"{question.turn + 1}"
    if isinstance(line, Say):
        return Answer(text=line.text, call=None, identity=identity)
    offers = [(line.name, line.arguments), *line.others]
    name, arguments = next((offer for offer in offers if offer[0] in question.tools), offers[0])
    return Answer(text=line.text, call=Call(f"call_{identity}", name, arguments), identity=identity)


def script_from_json(text: str) -> list[Line]:
    """A script from JSON, a list of `{"say": text}`, `{"tool": name, "arguments": {}}`, `{"fail": status}`, `{"wait": seconds}`.

    Raises:
        ValueError
    """
    lines: list[Line] = []
    for item in json.loads(text):
        if "say" in item:
            lines.append(Say(item["say"]))
        elif "tool" in item:
            lines.append(ToolUse(item["tool"], item.get("arguments", {}), item.get("text", "")))
        elif "fail" in item:
            lines.append(Fail(item["fail"], item.get("message", "scripted failure"), item.get("retry_after_sec")))
        elif "wait" in item:
            lines.append(Wait(float(item["wait"])))
        else:
            raise ValueError(f"a line has say, tool, fail or wait; this has {', '.join(item)}")
    return lines


async def _serve(script: Script, port: int) -> None:
    async with ModelServer(script, host="0.0.0.0", port=port) as server:
        sys.stdout.write(f"{server.port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or not re.fullmatch(r"\d+", sys.argv[2] if len(sys.argv) > 2 else "0"):
        sys.exit("usage: python -m rollout.testing.modelserver SCRIPT.json [PORT]")
    try:
        lines = script_from_json(Path(sys.argv[1]).read_text("utf-8"))
        asyncio.run(_serve(lines, int(sys.argv[2]) if len(sys.argv) > 2 else 0))
    except KeyboardInterrupt:
        sys.exit(130)
