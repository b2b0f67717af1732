"""A real model behind an OpenAI-compatible chat-completions endpoint, such as vLLM's."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx

from common.errors import SettingsError
from common.job import JobRequest
from common.settings import Settings
from worker.backends.base import BrokenStream, Completion, Unreachable
from worker.backends.openai import Answer, chat_body, first_model, refusal
from worker.backends.sse import EventTooLarge, data_of_events

#: A listening engine accepts at once, however busy it is.
CONNECT_S = 5.0

#: vLLM closes idle connections after five seconds; reusing one at that moment would cost an attempt.
KEEPALIVE_S = 2.0

#: No read timeout: a long prompt may take minutes to its first token. The attempt's own timeout decides.
CALL = httpx.Timeout(None, connect=CONNECT_S)
PROBE = httpx.Timeout(CONNECT_S)

#: Enough of an error page to find its message.
LONGEST_ERROR_BODY = 64 << 10


class _Transport(httpx.AsyncHTTPTransport):
    """An engine may reset a connection as it is made. uvloop has closed it by then, and in httpcore's next
    question about it anyio finds no socket: an AttributeError, before anything was sent."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except AttributeError as error:
            raise httpx.ConnectError("reset as it was made", request=request) from error


def _is_http(url: str) -> bool:
    try:
        return httpx.URL(url).scheme in ("http", "https")
    except httpx.InvalidURL:
        return False


class VllmBackend:
    def __init__(self, settings: Settings) -> None:
        base = settings.vllm_url.rstrip("/")
        if not _is_http(base):
            raise SettingsError("IWL_VLLM_URL: not an http URL")
        self._chat_url = f"{base}/chat/completions"
        self._models_url = f"{base}/models"
        self._health_url = f"{base.removesuffix('/v1')}/health"
        self._model = settings.vllm_model
        self._served: str | None = None
        key = settings.vllm_api_key
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else None,
            timeout=CALL,
            # Proxy variables and ~/.netrc of the machine are no settings of ours.
            trust_env=False,
            transport=_Transport(
                trust_env=False, limits=httpx.Limits(max_connections=None, keepalive_expiry=KEEPALIVE_S)
            ),
        )

    async def generate(self, request: JobRequest, attempt: int) -> AsyncGenerator[str | Completion, None]:
        body = chat_body(request, request.model or self._model or await self._served_model())
        answer = Answer()
        async with self._asked(body) as response:
            async for data in data_of_events(response.aiter_bytes()):
                if text := answer.hear(data):
                    yield text
        if not answer.complete:
            raise BrokenStream("The stream ended without a finish reason.")
        yield answer.completion()

    async def ready(self) -> bool:
        """The engine says so, and serves a model. /health alone answers 200 before that."""
        try:
            health = await self._client.get(self._health_url, timeout=PROBE)
            # 404: another server of the same API, which has no such page.
            if health.status_code not in (200, 404):
                return False
            models = await self._client.get(self._models_url, timeout=PROBE)
        except httpx.HTTPError:
            return False
        # Asked again each time: a restarted engine may serve another model.
        self._served = first_model(models.content) if models.is_success else None
        return self._served is not None

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _served_model(self) -> str:
        if self._served is None and not await self.ready():
            raise Unreachable("The engine serves no model.")
        assert self._served is not None
        return self._served

    @asynccontextmanager
    async def _asked(self, body: bytes) -> AsyncGenerator[httpx.Response]:
        """The streaming answer. Leaving closes the connection, which makes the engine abort."""
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        try:
            async with self._client.stream("POST", self._chat_url, content=body, headers=headers) as response:
                if not response.is_success:
                    text = await _beginning(response)
                    told = response.headers.get
                    raise refusal(response.status_code, text, told("Retry-After"), told("Date"))
                yield response
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            self._served = None
            raise Unreachable(f"No connection to the engine: {error}") from error
        except EventTooLarge as error:
            raise BrokenStream("An event of the stream is too large.") from error
        except httpx.HTTPError as error:
            raise BrokenStream(f"The connection broke: {str(error) or type(error).__name__}") from error


async def _beginning(response: httpx.Response) -> bytes:
    """As much of an error's body as may hold its message."""
    text = b""
    async for block in response.aiter_bytes():
        text += block
        if len(text) >= LONGEST_ERROR_BODY:
            break
    return text
