"""A server of the Model Context Protocol on its standard streams: one tool, `open_box`, that says a word. Stdlib only."""

import json
import os
import sys

TOOL = {"name": "open_box", "description": "Opens the box.", "inputSchema": {"type": "object", "properties": {}}}
WORD = "heron-" + os.environ.get("BOX", "0")


def answer(method: str, params: dict) -> dict:  # type: ignore[type-arg]
    if method == "initialize":
        about = {"name": "vault", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": f"The word is {WORD}."}]}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        result = answer(message["method"], message.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
