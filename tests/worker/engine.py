"""A small server that speaks the OpenAI streaming format, and fails as it is told to."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Exchange:
    """One request being answered."""

    def __init__(self, engine: Engine, receive: Receive, send: Send) -> None:
        self._engine = engine
        self._receive = receive
        self._send = send

    async def start(self, status: int = 200, **headers: str) -> None:
        pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def write(self, text: str | bytes, more: bool = True) -> None:
        body = text.encode() if isinstance(text, str) else text
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def event(self, data: object) -> None:
        await self.write(f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n")

    async def delta(self, text: str | None = None, finish_reason: str | None = None) -> None:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
        await self.event({"choices": [choice]})

    async def until_the_client_goes(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._engine.aborted.set()


Behaviour = Callable[[Exchange], Awaitable[None]]


def speaking(*words: str, finish_reason: str = "stop", every_s: float = 0.0) -> Behaviour:
    async def speak(exchange: Exchange) -> None:
        await exchange.start(content_type="text/event-stream")
        for word in words:
            await exchange.delta(word)
            await asyncio.sleep(every_s)
        await exchange.delta(finish_reason=finish_reason)
        usage = {"prompt_tokens": 7, "completion_tokens": len(words), "total_tokens": 7 + len(words)}
        await exchange.event({"choices": [], "usage": usage})
        await exchange.event("[DONE]")
        await exchange.write("", more=False)

    return speak


def refusing(status: int, body: object, **headers: str) -> Behaviour:
    async def refuse(exchange: Exchange) -> None:
        await exchange.start(status, **headers)
        await exchange.write(body if isinstance(body, str) else json.dumps(body), more=False)

    return refuse


def breaking_off(*words: str, politely: bool) -> Behaviour:
    """Politely: the stream ends, the answer does not. Otherwise the connection goes with it."""

    async def break_off(exchange: Exchange) -> None:
        await exchange.start()
        for word in words:
            await exchange.delta(word)
        if politely:
            await exchange.write("", more=False)
        # uvicorn closes the connection of an application that leaves its answer unfinished.

    return break_off


def failing_mid_stream(*events: object) -> Behaviour:
    async def fail(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.delta("half ")
        for event in events:
            await exchange.event(event)
        await exchange.event("[DONE]")
        await exchange.write("", more=False)

    return fail


def sending(raw: bytes) -> Behaviour:
    async def send(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.write(raw, more=False)

    return send


async def hanging(exchange: Exchange) -> None:
    """Takes the request and never answers."""
    await exchange.until_the_client_goes()


async def hanging_mid_stream(exchange: Exchange) -> None:
    await exchange.start()
    await exchange.delta("half ")
    await exchange.until_the_client_goes()


class Engine:
    """Runs in a thread with a loop of its own."""

    def __init__(self) -> None:
        self.behaviours: deque[Behaviour] = deque()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.aborted = threading.Event()
        self.health = 200
        #: Takes every request and answers none.
        self.hangs = False
        self.models = ["served-model"]
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            lifespan="off",
            ws="none",
            date_header=False,
            log_level="critical",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],))
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started:
            assert time.monotonic() < deadline, "the engine did not start"
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    async def _answer(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        exchange = Exchange(self, receive, send)
        if self.hangs:
            await hanging(exchange)
            return
        match scope["path"]:
            case "/health":
                await refusing(self.health, "")(exchange)
            case "/v1/models":
                await refusing(200, {"object": "list", "data": [{"id": name} for name in self.models]})(
                    exchange
                )
            case "/v1/chat/completions":
                self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
                self.requests.append(json.loads(await _body(receive)))
                behave = self.behaviours.popleft() if self.behaviours else speaking("hello", " world")
                await behave(exchange)
            case _:
                await refusing(404, {"detail": "Not Found"})(exchange)


async def _body(receive: Receive) -> bytes:
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body
