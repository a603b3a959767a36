"""The connection: JSON-RPC of the package `agent-client-protocol` over the streams of a process. Only this module imports it.

Its client dies of lines that are JSON and no object, and starts a task for each notification; so lines are filtered before it
sees them, and `session/update` goes to the recorder directly, in order. Requests and answers are the package's.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from rollout import AgentError, Process, RolloutError
from rollout.core.trajectories import well_formed
from rollout_acp.lines import LineFilter, Message

if TYPE_CHECKING:
    from acp.connection import Connection

PROTOCOL_VERSION = 1
UPDATE = "session/update"


class RequestFailedError(Exception):
    """The agent answered a request with an error."""

    def __init__(self, code: int, message: str, data: Any) -> None:
        super().__init__(message)
        self.code = code
        self.data = data

    def __str__(self) -> str:
        detail = f": {json.dumps(self.data)[:500]}" if self.data not in (None, {}) else ""
        return well_formed(f"error {self.code}, {self.args[0]}{detail}")


class Wire:
    """One agent's process as a connection."""

    def __init__(
        self,
        process: Process,
        *,
        on_update: Callable[[Message], None],
        on_request: Callable[[str, Any], Awaitable[Any]],
        on_noise: Callable[[bytes], None],
        log: Callable[[str, bytes, Message], None],
    ) -> None:
        """`log` gets every message of the protocol with its direction, `in` or `out`, as a line and as what is in it."""
        self._process = process
        self._output = process.output()
        self._on_update = on_update
        self._on_request = on_request
        self._log = log
        self._lines = LineFilter(on_noise)
        self._waiting: list[Message] = []
        self._connection: Connection | None = None
        self._ended = False
        self.failure: RolloutError | None = None
        """Why the streams broke, when it was not the agent who closed them."""
        self.heard_at = asyncio.get_running_loop().time()
        """When the agent last said something of the protocol."""

    async def open(self) -> None:
        # Its models take a second to import, which other trials need not wait for.
        await asyncio.to_thread(importlib.import_module, "acp.connection")
        from acp.connection import Connection

        self._connection = Connection(self._handle, self)

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The answer's result.

        Raises:
            RequestFailedError: the agent refused.
            ConnectionError: it closed its output.
            EnvironmentLostError
        """
        from acp.exceptions import RequestError

        assert self._connection is not None
        try:
            result = await self._connection.send_request(method, params)
        except RequestError as error:
            raise RequestFailedError(error.code, str(error), error.data) from error
        except ConnectionError:
            if self.failure is not None:
                raise self.failure from None
            raise
        return result if isinstance(result, dict) else {}

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        assert self._connection is not None
        await self._connection.send_notification(method, params)

    async def aclose(self) -> None:
        """Let go of the connection; the process is its owner's."""
        if self._connection is not None:
            await self._connection.close()

    # What the package's connection calls

    async def send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self._log("out", line, message)
        await self._process.write(line)

    async def receive(self) -> dict[str, Any] | None:
        while not self._waiting:
            if self._ended:
                return None
            try:
                chunk = await anext(self._output, None)
            except RolloutError as error:
                self.failure = error
                chunk = None
            if chunk is None:
                self._ended = True
                found = list(self._lines.close())
            else:
                found = list(self._lines.feed(chunk))
            for message, line in found:
                self._take(message, line)
        return self._waiting.pop(0)

    async def close(self) -> None:
        """The process is killed by its owner."""

    def _take(self, message: Message, line: bytes) -> None:
        self._log("in", line, message)
        self.heard_at = asyncio.get_running_loop().time()
        if message.get("method") == UPDATE and message.get("id") is None:
            params = message.get("params")
            if isinstance(params, dict):
                self._on_update(params)
            return
        self._waiting.append(message)

    async def _handle(self, method: str, params: Any, is_notification: bool) -> Any:
        from acp.exceptions import RequestError

        if is_notification:
            return None
        answer = await self._on_request(method, params)
        if answer is None:
            raise RequestError.method_not_found(method)
        return answer


def refused(doing: str, error: RequestFailedError) -> AgentError:
    return AgentError(f"the agent refused {doing}: {error}")
