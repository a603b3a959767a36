"""Asking a model one question over HTTP: OpenAI's chat completions and Anthropic's messages."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from rollout.core.errors import VerifierError
from rollout.core.types import Struct

if TYPE_CHECKING:
    import httpx

Provider = Literal["openai", "anthropic"]

_SERVICES: dict[str, str] = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
_ANTHROPIC_VERSION = "2023-06-01"
_BUSY = (408, 409, 425, 429, 500, 502, 503, 504, 529)
_MAX_WAIT_SEC = 60.0


class ModelError(Exception):
    """The model gave no usable reply."""

    def __init__(self, text: str, *, retryable: bool, wait_sec: float | None = None) -> None:
        super().__init__(text)
        self.retryable = retryable
        self.wait_sec = wait_sec
        """What the service asked for."""


class Asked(Struct, frozen=True, kw_only=True):
    """One question."""

    instructions: str
    question: str
    temperature: float | None
    max_tokens: int
    timeout_sec: float


class Reply(Struct, frozen=True, kw_only=True):
    text: str
    usage: dict[str, int] = {}
    """`input_tokens` and `output_tokens`, as far as the service tells."""


class Client:
    """A connection to one service."""

    def __init__(self, provider: Provider, model: str, base_url: str, key: str) -> None:
        self.base_url = base_url.rstrip("/")
        self._provider = provider
        self._model = model
        self._key = key
        self._http: httpx.AsyncClient | None = None

    @classmethod
    def of(
        cls, model: str, provider: Provider | None, base_url: str | None, key_variable: str | None, env: Mapping[str, str]
    ) -> Self:
        """The client that options and the verifier's variables describe.

        Raises:
            VerifierError: there is no key.
        """
        chosen: Provider = provider or ("anthropic" if model.startswith("claude") else "openai")
        prefix = chosen.upper()
        variable = key_variable or f"{prefix}_API_KEY"
        url = base_url or env.get(f"{prefix}_BASE_URL") or _SERVICES[chosen]
        key = env.get(variable, "")
        if not key and url == _SERVICES[chosen]:
            raise VerifierError(f"the judge has no key: write `env: {{{variable}: ${{{variable}}}}}` under `verifier`")
        return cls(chosen, model, url, key)

    async def __aenter__(self) -> Self:
        import httpx

        self._http = httpx.AsyncClient(follow_redirects=False)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def ask(self, asked: Asked) -> Reply:
        """Raises ModelError: the service refused, failed or cannot be reached, or the reply has no text."""
        import httpx

        assert self._http is not None
        path, headers, body = self._anthropic(asked) if self._provider == "anthropic" else self._openai(asked)
        url = f"{self.base_url}{path}"
        try:
            response = await self._http.post(url, headers=headers, json=body, timeout=asked.timeout_sec)
        except httpx.TimeoutException as error:
            raise ModelError(f"{url} did not answer within {asked.timeout_sec:g} s", retryable=True) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ModelError(f"{url}: {type(error).__name__}: {error}", retryable=True) from error
        if response.status_code != 200:
            said = " ".join(response.text.split())[:300]
            if self._key:
                said = said.replace(self._key, "***")
            raise ModelError(
                f"{url} answered {response.status_code}: {said}",
                retryable=response.status_code in _BUSY,
                wait_sec=_wait(response.headers.get("retry-after")),
            )
        try:
            return self._reply(response.json())
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ModelError(f"{url} sent a reply of another form: {error!r}", retryable=True) from error

    def _openai(self, asked: Asked) -> tuple[str, dict[str, str], dict[str, Any]]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "system", "content": asked.instructions}, {"role": "user", "content": asked.question}],
            "max_completion_tokens" if self.base_url == _SERVICES["openai"] else "max_tokens": asked.max_tokens,
        }
        if asked.temperature is not None:
            body["temperature"] = asked.temperature
        return "/chat/completions", {"authorization": f"Bearer {self._key}"} if self._key else {}, body

    def _anthropic(self, asked: Asked) -> tuple[str, dict[str, str], dict[str, Any]]:
        body: dict[str, Any] = {
            "model": self._model,
            "system": asked.instructions,
            "messages": [{"role": "user", "content": asked.question}],
            "max_tokens": asked.max_tokens,
        }
        if asked.temperature is not None:
            body["temperature"] = asked.temperature
        path = "/messages" if self.base_url.endswith("/v1") else "/v1/messages"
        headers = {"anthropic-version": _ANTHROPIC_VERSION, **({"x-api-key": self._key} if self._key else {})}
        return path, headers, body

    def _reply(self, said: dict[str, Any]) -> Reply:
        usage = said.get("usage") or {}
        if self._provider == "anthropic":
            text = "".join(block["text"] for block in said["content"] if block.get("type") == "text")
            names = {"input_tokens": "input_tokens", "output_tokens": "output_tokens"}
        else:
            text = said["choices"][0]["message"]["content"]
            names = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
        if not isinstance(text, str) or not text.strip():
            raise ValueError("it has no text")
        return Reply(text=text, usage={name: int(usage[key]) for name, key in names.items() if key in usage})


def _wait(header: str | None) -> float | None:
    """Seconds that a `Retry-After` asks for, when it is a number."""
    try:
        return min(_MAX_WAIT_SEC, max(0.0, float(header))) if header is not None else None
    except ValueError:
        return None
