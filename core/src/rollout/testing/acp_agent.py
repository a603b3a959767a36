#!/usr/bin/env python3
"""An agent that speaks ACP and does what it is told, for tests of whatever speaks with one. One file, Python's own library.

    python3 acp_agent.py --do "write /app/answer.txt 42" --do "say done"

Every `--do` is done at every prompt, then every line of the prompt that begins with `!`:

    say TEXT             a message, in chunks                 think TEXT           a thought
    write PATH TEXT      writes a file, as a tool call        run COMMAND          runs it, as a tool call with its output
    ask KIND COMMAND     runs it if it is permitted           plan TEXT            a plan of one entry
    usage IN OUT COST    tokens and dollars, told at once     context TOKENS COST  the same as an update of the context
    remember TEXT        keeps it in the session              recall               says everything that was kept
    noise TEXT           a line that is no message            raw JSON             a line as it stands, to standard output
    stderr TEXT          a line to standard error             flood MEGABYTES      as many of noise, in one line
    hang                 never answers, but can be cancelled  deaf                 does not even do that
    die CODE             ends at once                         close                closes standard output and goes on
    daemon SECONDS       leaves a process in its own session  env NAME             says the variable's value
    cwd                  says where it works                  refuse               answers the prompt with an error
    images               says the kind and data of the prompt's images
    spend COST TIMES     tells of COST dollars more, TIMES times, until it is cancelled

Flags: `--models A,B` offers a choice of models (`--old-models` in the older way), `--auth METHOD` wants to be authenticated,
`--version N` speaks another version of the protocol, `--mute` never answers, `--no-answer METHOD` does not answer that request,
`--mcp` says that it can use servers behind http, `--images` that prompts may hold images.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from typing import Any

Message = dict[str, Any]


class Refused(Exception):
    """The request is answered with an error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, "data": data}


class Cancelled(Exception):
    """The client cancelled the prompt."""


class Agent:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.inbox: queue.Queue[Message | None] = queue.Queue()
        self.cancelled = threading.Event()
        self.authenticated = arguments.auth is None
        self.model = (arguments.models or [""])[0]
        self.memory: list[str] = []
        self.tokens = [0, 0]
        self.cost = 0.0
        self.cwd = os.getcwd()
        self.calls = 0
        self.asked = 0
        self.servers: list[Message] = []
        self.images: list[Message] = []

    def run(self) -> None:
        threading.Thread(target=self.read, daemon=True).start()
        while (message := self.inbox.get()) is not None:
            method = message.get("method")
            if method is None or message.get("id") is None or self.arguments.mute or method == self.arguments.no_answer:
                continue
            try:
                result = self.answer(method, message.get("params") or {})
            except Refused as error:
                self.send({"jsonrpc": "2.0", "id": message["id"], "error": error.error})
            else:
                self.send({"jsonrpc": "2.0", "id": message["id"], "result": result})

    def read(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if message.get("method") == "session/cancel":
                self.cancelled.set()
            self.inbox.put(message)
        self.inbox.put(None)

    def send(self, message: Message) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    def answer(self, method: str, params: Message) -> Message:
        if method == "initialize":
            methods = [{"id": self.arguments.auth, "name": "Log in"}] if self.arguments.auth else []
            return {
                "protocolVersion": self.arguments.version,
                "agentCapabilities": {
                    "loadSession": False,
                    "promptCapabilities": {"image": self.arguments.images},
                    "mcpCapabilities": {"http": self.arguments.mcp, "sse": False},
                },
                "agentInfo": {"name": "scripted", "version": "1.2.3"},
                "authMethods": methods,
            }
        if method == "authenticate":
            self.authenticated = params.get("methodId") == self.arguments.auth
            return {}
        if method == "session/new":
            if not self.authenticated:
                raise Refused(-32000, "Authentication required")
            return self.new_session(params)
        if method in ("session/set_config_option", "session/set_model"):
            self.model = str(params.get("value") or params.get("modelId"))
            if self.model not in self.arguments.models:
                raise Refused(-32602, "no such model")
            return {}
        if method == "session/prompt":
            return self.prompt(params)
        raise Refused(-32601, "Method not found", {"method": method})

    def new_session(self, params: Message) -> Message:
        self.cwd = params["cwd"]
        self.servers = params["mcpServers"]
        session: Message = {"sessionId": "scripted-session"}
        if self.arguments.models and self.arguments.old_models:
            session["models"] = {"currentModelId": self.model, "availableModels": [{"modelId": m} for m in self.arguments.models]}
        elif self.arguments.models:
            options = [{"value": model, "name": model} for model in self.arguments.models]
            choice = {"id": "model", "name": "Model", "category": "model", "type": "select"}
            session["configOptions"] = [{**choice, "currentValue": self.model, "options": options}]
        return session

    def prompt(self, params: Message) -> Message:
        self.cancelled.clear()
        self.images = [block for block in params["prompt"] if block["type"] == "image"]
        text = "".join(block.get("text", "") for block in params["prompt"])
        told = [line[1:] for line in text.splitlines() if line.startswith("!")]
        try:
            for line in [*self.arguments.do, *told]:
                word, _, rest = line.strip().partition(" ")
                getattr(self, f"do_{word}")(rest)
        except Cancelled:
            return self.turn("cancelled")
        return self.turn("end_turn")

    def turn(self, reason: str) -> Message:
        if not any(self.tokens):
            return {"stopReason": reason}
        given, made = self.tokens
        return {"stopReason": reason, "usage": {"inputTokens": given, "outputTokens": made, "totalTokens": given + made}}

    def update(self, update_type: str, **fields: Any) -> None:
        update = {"sessionUpdate": update_type, **fields}
        params = {"sessionId": "scripted-session", "update": update}
        self.send({"jsonrpc": "2.0", "method": "session/update", "params": params})

    def call(self, kind: str, title: str, given: Message) -> str:
        self.calls += 1
        call_id = f"call-{self.calls}"
        self.update("tool_call", toolCallId=call_id, title=title, kind=kind, status="in_progress", rawInput=given, content=[])
        return call_id

    def called(self, call_id: str, output: str, *, failed: bool = False) -> None:
        content = [{"type": "content", "content": {"type": "text", "text": output}}]
        self.update("tool_call_update", toolCallId=call_id, status="failed" if failed else "completed", content=content)

    def shell(self, call_id: str, command: str) -> None:
        done = subprocess.run(command, shell=True, cwd=self.cwd, capture_output=True, text=True, check=False)
        self.called(call_id, done.stdout + done.stderr, failed=done.returncode != 0)

    # What it can be told

    def do_say(self, text: str) -> None:
        half = len(text) // 2
        for part in (text[:half], text[half:]):
            self.update("agent_message_chunk", content={"type": "text", "text": part})

    def do_images(self, _: str) -> None:
        self.do_say(" ".join(f"{image['mimeType']}:{image['data']}" for image in self.images))

    def do_think(self, text: str) -> None:
        self.update("agent_thought_chunk", content={"type": "text", "text": text})

    def do_write(self, rest: str) -> None:
        path, _, text = rest.partition(" ")
        call_id = self.call("edit", f"write {path}", {"path": path, "text": text})
        with open(os.path.join(self.cwd, path), "w", encoding="utf-8") as file:
            file.write(text + "\n")
        self.called(call_id, f"{path} is written")

    def do_run(self, command: str) -> None:
        self.shell(self.call("execute", command, {"command": command}), command)

    def do_ask(self, rest: str) -> None:
        kind, _, command = rest.partition(" ")
        call_id = self.call(kind, command, {"command": command})
        options = [
            {"optionId": f"o-{name}", "name": name, "kind": name}
            for name in ("allow_always", "allow_once", "reject_once", "reject_always")
        ]
        self.asked += 1
        request = {
            "sessionId": "scripted-session",
            "toolCall": {"toolCallId": call_id, "title": command, "kind": kind},
            "options": options,
        }
        number = f"ask-{self.asked}"
        self.send({"jsonrpc": "2.0", "id": number, "method": "session/request_permission", "params": request})
        while (message := self.inbox.get()) is not None and message.get("id") != number:
            continue
        outcome = ((message or {}).get("result") or {}).get("outcome") or {}
        if outcome.get("outcome") == "cancelled":
            self.called(call_id, "cancelled", failed=True)
        elif str(outcome.get("optionId")).startswith("o-allow"):
            self.shell(call_id, command)
        else:
            self.called(call_id, "not permitted", failed=True)

    def do_plan(self, text: str) -> None:
        self.update("plan", entries=[{"content": text, "priority": "high", "status": "pending"}])

    def do_usage(self, rest: str) -> None:
        given, made, cost = rest.split()
        self.tokens[0] += int(given)
        self.tokens[1] += int(made)
        self.cost += float(cost)
        self.do_context(f"{self.tokens[0]} {self.cost}")

    def do_context(self, rest: str) -> None:
        used, cost = rest.split()
        self.update("usage_update", used=int(used), size=200_000, cost={"amount": float(cost), "currency": "USD"})

    def do_spend(self, rest: str) -> None:
        cost, times = rest.split()
        for _ in range(int(times)):
            self.cost += float(cost)
            self.do_context(f"100 {self.cost}")
            if self.cancelled.wait(0.02):
                raise Cancelled

    def do_remember(self, text: str) -> None:
        self.memory.append(text)

    def do_recall(self, rest: str) -> None:
        self.do_say(", ".join(self.memory))

    def do_noise(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def do_raw(self, text: str) -> None:
        self.do_noise(text)

    def do_stderr(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def do_flood(self, megabytes: str) -> None:
        for _ in range(int(megabytes)):
            sys.stdout.write("x" * 2**20)
        self.do_noise("")

    def do_hang(self, rest: str) -> None:
        self.cancelled.wait()
        raise Cancelled

    def do_deaf(self, rest: str) -> None:
        while True:
            time.sleep(1000)

    def do_die(self, code: str) -> None:
        os._exit(int(code or 1))

    def do_close(self, rest: str) -> None:
        os.close(1)
        self.do_deaf("")

    def do_daemon(self, seconds: str) -> None:
        nowhere = subprocess.DEVNULL
        subprocess.Popen(["sleep", seconds], start_new_session=True, stdin=nowhere, stdout=nowhere, stderr=nowhere)

    def do_env(self, name: str) -> None:
        self.do_say(os.environ.get(name, ""))

    def do_cwd(self, rest: str) -> None:
        self.do_say(f"{self.cwd} {self.model} {json.dumps(self.servers)}")

    def do_refuse(self, rest: str) -> None:
        raise Refused(-32603, "Internal error", {"details": rest or "it refuses"})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--do", action="append", default=[])
    parser.add_argument("--models", type=lambda text: text.split(","), default=[])
    parser.add_argument("--old-models", action="store_true")
    parser.add_argument("--auth")
    parser.add_argument("--version", type=int, default=1)
    parser.add_argument("--mute", action="store_true")
    parser.add_argument("--no-answer")
    parser.add_argument("--mcp", action="store_true")
    parser.add_argument("--images", action="store_true")
    Agent(parser.parse_args()).run()


if __name__ == "__main__":
    main()
