"""A model that is not there: a fixed latency, the prompt's tokens back, and faults on demand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Literal

import msgspec

from common.job import JobRequest, Usage
from common.settings import Settings
from worker.backends.base import BrokenStream, Completion, Refused

#: What the shell reports for a process ended by SIGKILL, as the out-of-memory killer does it.
KILLED = 137


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """`params.mock` of a request."""

    latency_ms: float | None = None
    #: Length of the output; the prompt's tokens are repeated or cut to fit.
    tokens: int | None = None
    fail: Literal["error", "permanent", "hang", "exit"] | None = None
    #: Only the first so many attempts fail; all of them when left out.
    fail_attempts: int | None = None

    def failing(self, attempt: int) -> bool:
        return self.fail is not None and (self.fail_attempts is None or attempt <= self.fail_attempts)


NO_ORDERS = Orders()


@dataclass(frozen=True, slots=True)
class Script:
    """What one call will do."""

    prompt_tokens: int
    words: list[str]
    latency_s: float
    fail: str | None


class MockBackend:
    def __init__(self, settings: Settings) -> None:
        self._latency_s = settings.mock_latency_ms / 1000
        self._faults = settings.mock_faults

    async def generate(self, request: JobRequest, attempt: int) -> AsyncGenerator[str | Completion, None]:
        script = self._script(request, attempt)
        if request.stream:
            async for piece in _spoken(script):
                yield piece
        elif script.latency_s:
            await asyncio.sleep(script.latency_s)
        if script.fail:
            await _fail(script.fail)
        if not request.stream:
            yield " ".join(script.words)
        usage = Usage(prompt_tokens=script.prompt_tokens, completion_tokens=len(script.words))
        yield Completion(finish_reason="stop", usage=usage)

    async def ready(self) -> bool:
        return True

    async def aclose(self) -> None:
        pass

    def _script(self, request: JobRequest, attempt: int) -> Script:
        orders = _orders(request) if self._faults and "mock" in request.params else NO_ORDERS
        prompt = _text(request).split()
        words = prompt if orders.tokens is None else list(islice(cycle(prompt or ["token"]), orders.tokens))
        latency_s = self._latency_s if orders.latency_ms is None else orders.latency_ms / 1000
        fail = orders.fail if orders.failing(attempt) else None
        return Script(len(prompt), words, latency_s, fail)


async def _spoken(script: Script) -> AsyncGenerator[str, None]:
    """The words over the latency. A call that is going to fail gets half way."""
    start = asyncio.get_running_loop().time()
    count = len(script.words)
    for spoken, word in enumerate(script.words[: count // 2] if script.fail else script.words, start=1):
        # Against the start, not from word to word: a timer's lateness would add up.
        due = start + script.latency_s * spoken / count - asyncio.get_running_loop().time()
        if due > 0:
            await asyncio.sleep(due)
        yield word if spoken == 1 else f" {word}"


async def _fail(how: str) -> None:
    match how:
        case "permanent":
            raise Refused(400, "the request asked for a permanent error")
        case "hang":
            await asyncio.get_running_loop().create_future()
        case "exit":
            os._exit(KILLED)
        case _:
            raise BrokenStream("the request asked for an error")


def _text(request: JobRequest) -> str:
    """The prompt, or what the user said last. Content may be a list of parts."""
    if request.prompt is not None:
        return request.prompt
    for message in reversed(request.messages or ()):
        if message.get("role") == "user":
            return _content(message.get("content"))
    return ""


def _content(content: object) -> str:
    if isinstance(content, str):
        return content
    try:
        return " ".join(part.text for part in msgspec.convert(content, list[_Part]))
    except msgspec.ValidationError:
        return ""


class _Part(msgspec.Struct):
    text: str = ""


def _orders(request: JobRequest) -> Orders:
    try:
        return msgspec.convert(request.params["mock"], Orders)
    except msgspec.ValidationError as error:
        raise Refused(422, f"params.mock: {error}") from error
