"""What an agent may do when it asks."""

from __future__ import annotations

import importlib
import inspect
from fnmatch import fnmatchcase
from typing import Any

from rollout import AgentError
from rollout.core.errors import boundary
from rollout_acp.options import SessionOptions

CANCELLED: dict[str, Any] = {"outcome": {"outcome": "cancelled"}}


async def decide(options: SessionOptions, params: Any) -> tuple[bool, dict[str, Any]]:
    """Whether it is allowed, and the answer to `session/request_permission`.

    Of what is offered the option of the decision's kind is taken, the one for this time first; an agent that offers none of that
    kind is told that the request was cancelled.

    Raises:
        AgentError: the function that was to be asked cannot be found, or raised.
    """
    request = params if isinstance(params, dict) else {}
    allowed = await _allowed(options, request)
    prefix = "allow" if allowed else "reject"
    offered = [option for option in request.get("options") or () if isinstance(option, dict) and option.get("optionId")]
    fitting = [option for option in offered if str(option.get("kind", "")).startswith(prefix)]
    fitting.sort(key=lambda option: option.get("kind") != f"{prefix}_once")
    if not fitting:
        return allowed, CANCELLED
    return allowed, {"outcome": {"outcome": "selected", "optionId": fitting[0]["optionId"]}}


async def _allowed(options: SessionOptions, request: dict[str, Any]) -> bool:
    call = request.get("toolCall")
    call = call if isinstance(call, dict) else {}
    title, kind = str(call.get("title") or ""), str(call.get("kind") or "other")
    for rule in options.permissions:
        if fnmatchcase(title, rule.tool) and fnmatchcase(kind, rule.kind):
            return await _asked(options, request) if rule.action == "ask" else rule.action == "allow"
    return True


async def _asked(options: SessionOptions, request: dict[str, Any]) -> bool:
    assert options.ask is not None
    module, _, name = options.ask.rpartition(":")
    with boundary(AgentError, f"asking {options.ask}"):
        answer = getattr(importlib.import_module(module), name)(request)
        return bool(await answer if inspect.isawaitable(answer) else answer)
