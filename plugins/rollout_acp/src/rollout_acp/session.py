"""One ACP session: the handshake, prompts, what the agent asks for, and its end."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from rollout import (
    AgentContext,
    AgentError,
    AgentTimeoutError,
    AgentTurn,
    Command,
    McpServer,
    Process,
    RolloutError,
    Stream,
    TrajectoryReport,
)
from rollout.core.aio import run_shielded
from rollout.core.tasks.images import image_files
from rollout_acp.options import SessionOptions
from rollout_acp.permissions import CANCELLED, decide
from rollout_acp.record import WireLog
from rollout_acp.recorder import Recorder
from rollout_acp.wire import PROTOCOL_VERSION, RequestFailedError, Wire, refused

WIRE_LOG = "agent/acp.jsonl"
_CANCEL_SEC = 5.0
_END_SEC = 2.0
_STDERR_BYTES = 4096
_KINDS = {"streamable-http": "http", "sse": "sse"}
"""Transports that an agent says it can use, as the protocol calls them; each can use `stdio`."""
_CAPABILITIES = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}


class AcpSession:
    """A process of the agent's with one session of the protocol."""

    def __init__(self, options: SessionOptions, command: str, context: AgentContext) -> None:
        self._options = options
        self._command = command
        self._context = context
        self._recorder = Recorder(name=context.name, model=options.model, on_usage=context.spent)
        self._log = WireLog(context.log_dir / WIRE_LOG, context.redact)
        self._process: Process | None = None
        self._wire: Wire | None = None
        self._session_id = ""
        self._cancelling = False
        self._deciding = 0
        self._broken: RolloutError | None = None
        self._stderr = b""
        self._images: list[dict[str, str]] = []

    async def start(self) -> None:
        """Start the process, initialize, open a session, choose the model. Leaves nothing behind when it fails.

        Raises:
            AgentError: the agent ended, refused, speaks another version, or cannot be told what the options say.
            EnvironmentLostError
        """
        try:
            await self._start()
        except BaseException:
            await run_shielded(self.close())
            raise

    async def prompt(self, text: str) -> AgentTurn:
        """Cancelling it tells the agent to stop, gives it 5 seconds to say what it did, and kills it.

        Raises:
            AgentError: the agent ended or refused.
            AgentTimeoutError: it said nothing for `idle_timeout_sec`.
            EnvironmentLostError
        """
        if self._broken is not None:
            raise self._broken
        assert self._wire is not None
        self._recorder.prompted(text)
        params = {"sessionId": self._session_id, "prompt": [{"type": "text", "text": text}, *self._images]}
        self._images = []  # they belong to the first prompt
        self._wire.heard_at = asyncio.get_running_loop().time()
        asked = asyncio.ensure_future(self._wire.request("session/prompt", params))
        try:
            await self._watch(asked)
        except (asyncio.CancelledError, AgentTimeoutError):
            await run_shielded(self._cancel(asked))
            raise
        try:
            result = asked.result()
        except RequestFailedError as error:
            raise refused("the prompt", error) from error
        except ConnectionError as error:
            raise await self._ended("before it answered") from error
        if self._broken is not None:
            raise self._broken
        self._recorder.answered(result)
        return AgentTurn(output=self._recorder.answer or None, usage=self._recorder.usage)

    async def close(self) -> None:
        """Close the agent's input, give it 2 seconds to end, kill what is left. Idempotent."""
        process, self._process = self._process, None
        try:
            if process is not None:
                try:
                    async with asyncio.timeout(_END_SEC):
                        await process.close_stdin()
                        await process.wait()
                except (TimeoutError, RolloutError):
                    pass  # it is killed below, which says when the environment is gone
                finally:
                    await process.kill()
        finally:
            if self._wire is not None:
                await self._wire.aclose()
            self._log.close()

    def report(self) -> TrajectoryReport | None:
        """What was seen of the session; nothing before the first prompt."""
        made = self._recorder.finish()
        if not len(made):
            return None
        return TrajectoryReport(trajectory=made.build(), trust="observed", native=WIRE_LOG)

    async def _start(self) -> None:
        context, options = self._context, self._options
        cwd = await self._cwd()
        command = Command(argv=("sh", "-c", self._command), env=context.env, cwd=context.workdir, user=context.user)
        process = self._process = await context.environment.open(command, self._on_stderr)
        wire = self._wire = Wire(
            process,
            on_update=self._recorder.update,
            on_request=self._on_request,
            on_noise=lambda line: context.sink("stdout", line),
            log=self._log,
        )
        await wire.open()
        try:
            async with asyncio.timeout(options.start_timeout_sec or None):
                await self._handshake(wire, cwd)
        except TimeoutError as error:
            raise AgentError(f"the agent did not open a session within {options.start_timeout_sec:g} s{self._said()}") from error
        except ConnectionError as error:
            raise await self._ended("before it opened a session") from error

    async def _handshake(self, wire: Wire, cwd: str) -> None:
        options = self._options
        hello = {
            "protocolVersion": PROTOCOL_VERSION,
            "clientCapabilities": _CAPABILITIES,
            "clientInfo": {"name": "rollout", "version": "1"},
        }
        try:
            found = await wire.request("initialize", hello)
        except RequestFailedError as error:
            raise refused("`initialize`", error) from error
        version = found.get("protocolVersion")
        if version != PROTOCOL_VERSION:
            raise AgentError(f"the agent speaks version {version!r} of the protocol; version {PROTOCOL_VERSION} is needed")
        about = found.get("agentInfo")
        if isinstance(about, dict):
            self._recorder.made.version = str(about.get("version") or "unknown")
            self._recorder.made.extra["agent_info"] = about
        self._check_servers(found)
        if _can(found, "promptCapabilities", "image"):
            self._images = [
                {"type": "image", "mimeType": image.kind, "data": base64.b64encode(image.data).decode()}
                for image in image_files(self._context.task.instruction)
            ]
        try:
            if options.auth_method is not None:
                await wire.request("authenticate", {"methodId": options.auth_method})
            servers = [server_message(server) for server in self._context.mcp_servers]
            session = await wire.request("session/new", {"cwd": cwd, "mcpServers": servers})
        except RequestFailedError as error:
            raise refused("a session", error) if error.code != -32000 else _unauthenticated(found, error) from error
        if not isinstance(session.get("sessionId"), str):
            raise AgentError("the agent opened a session without an id")
        self._session_id = self._recorder.made.session_id = session["sessionId"]
        if options.model is None:
            self._recorder.made.model = _current_model(session)
        else:
            try:
                await self._choose_model(wire, session, options.model)
            except RequestFailedError as error:
                raise refused(f"the model {options.model!r}", error) from error

    async def _choose_model(self, wire: Wire, session: dict[str, Any], model: str) -> None:
        """By the session's option of category `model`; older agents have a request of their own for it."""
        offered = session.get("configOptions")
        for option in offered if isinstance(offered, list) else ():
            if isinstance(option, dict) and option.get("category") == "model" and option.get("type", "select") == "select":
                values = _values(option.get("options"))
                if values and model not in values:
                    raise AgentError(f"the agent has no model {model!r}; it has {', '.join(values[:30])}")
                chosen = {"sessionId": self._session_id, "configId": option.get("id"), "value": model}
                await wire.request("session/set_config_option", chosen)
                return
        if not isinstance(session.get("models"), dict):
            raise AgentError(
                f"the agent cannot be told to use {model!r}: it offers no choice of models; use its variables or flags"
            )
        await wire.request("session/set_model", {"sessionId": self._session_id, "modelId": model})

    def _check_servers(self, found: dict[str, Any]) -> None:
        for server in self._context.mcp_servers:
            kind = _KINDS.get(server.spoken)
            if kind is not None and not _can(found, "mcpCapabilities", kind):
                raise AgentError(f"the agent cannot use the MCP server {server.name}: it does not speak {kind}")

    async def _watch(self, asked: asyncio.Future[Any]) -> None:
        """Wait for the answer, but not for an agent that says nothing."""
        assert self._wire is not None
        idle = self._options.idle_timeout_sec or None
        loop = asyncio.get_running_loop()
        while not asked.done():
            if self._deciding:
                self._wire.heard_at = loop.time()  # it is the agent that waits
            left = None if idle is None else self._wire.heard_at + idle - loop.time()
            if left is not None and left <= 0:
                raise AgentTimeoutError(f"the agent said nothing for {idle:g} s")
            await asyncio.wait({asked}, timeout=left)

    async def _cancel(self, asked: asyncio.Future[Any]) -> None:
        assert self._wire is not None
        self._cancelling = True
        self._broken = self._broken or AgentError("the agent was stopped in an earlier prompt")
        try:
            async with asyncio.timeout(_CANCEL_SEC):
                await self._wire.notify("session/cancel", {"sessionId": self._session_id})
                self._recorder.answered(await asked)
        except (TimeoutError, ConnectionError, RequestFailedError, RolloutError):
            pass  # it is killed in any case
        finally:
            asked.cancel()
            if self._process is not None:
                await self._process.kill()

    async def _on_request(self, method: str, params: Any) -> dict[str, Any] | None:
        """What the agent asks of us; None: there is no such thing here."""
        if method != "session/request_permission":
            return None
        if self._cancelling:
            return CANCELLED
        self._deciding += 1
        try:
            allowed, answer = await decide(self._options, params)
        except AgentError as error:
            self._broken = error
            allowed, answer = False, CANCELLED
        finally:
            self._deciding -= 1
        self._recorder.permission(params, allowed=allowed)
        return answer

    async def _ended(self, when: str) -> RolloutError:
        """What to say of an agent that closed its output."""
        code = None
        if self._process is not None:
            try:
                async with asyncio.timeout(_END_SEC):
                    code = await self._process.wait()
            except TimeoutError:
                pass  # it closed its output and goes on: there is no code
            except RolloutError as error:
                return error
        ended = f"ended {when} (exit code {code})" if code is not None else f"closed its output {when}"
        self._broken = AgentError(f"the agent {ended}{self._said()}")
        return self._broken

    async def _cwd(self) -> str:
        """Where the agent works, absolute."""
        context = self._context
        if context.workdir is not None and context.workdir.startswith("/"):
            return context.workdir
        asked = Command(argv=("pwd",), cwd=context.workdir, user=context.user)
        result = await context.environment.exec(asked)
        cwd = result.stdout.decode("utf-8", "surrogateescape").strip()
        if result.exit_code != 0 or not cwd.startswith("/"):
            raise AgentError(f"the working directory cannot be found out: `pwd` exited with code {result.exit_code}")
        return cwd

    def _on_stderr(self, stream: Stream, chunk: bytes) -> None:
        self._stderr = (self._stderr + chunk)[-_STDERR_BYTES:]
        self._context.sink("stderr", chunk)

    def _said(self) -> str:
        """The end of what it printed, for messages."""
        lines = [line.strip() for line in self._stderr.decode("utf-8", "replace").splitlines() if line.strip()]
        return f": {' / '.join(lines[-3:])[-500:]}" if lines else ""


def server_message(server: McpServer) -> dict[str, Any]:
    """An MCP server as `session/new` tells it."""
    if server.command is not None:
        return {"name": server.name, "command": server.command, "args": server.args, "env": _pairs(server.env)}
    return {"type": _KINDS[server.spoken], "name": server.name, "url": server.url, "headers": _pairs(server.headers)}


def _pairs(block: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in block.items()]


def _unauthenticated(found: dict[str, Any], error: RequestFailedError) -> AgentError:
    methods = found.get("authMethods")
    names = [str(method.get("id")) for method in methods if isinstance(method, dict)] if isinstance(methods, list) else []
    how = f"; set its key in `env:`, or name one of its methods in `auth_method`: {', '.join(names)}" if names else ""
    return AgentError(f"the agent is not authenticated ({error}){how}")


def _current_model(session: dict[str, Any]) -> str | None:
    """The model that the agent uses unless it is told another, when it says so."""
    offered, models = session.get("configOptions"), session.get("models")
    found = [option for option in offered if isinstance(option, dict)] if isinstance(offered, list) else []
    said = [option.get("currentValue") for option in found if option.get("category") == "model"]
    if isinstance(models, dict):
        said.append(models.get("currentModelId"))
    return next((model for model in said if isinstance(model, str) and model), None)


def _values(options: Any) -> list[str]:
    """The values of a choice, of its groups too."""
    found: list[str] = []
    for option in options if isinstance(options, list) else ():
        if isinstance(option, dict):
            if isinstance(option.get("value"), str):
                found.append(option["value"])
            found += _values(option.get("options"))
    return found


def _can(found: dict[str, Any], kind: str, what: str) -> bool:
    """Whether an agent said in its answer to `initialize` that it can do something."""
    capabilities = found.get("agentCapabilities")
    can = capabilities.get(kind) if isinstance(capabilities, dict) else None
    return isinstance(can, dict) and bool(can.get(what))
