"""HTTP between clients and gateways: requests and answers that the network delays, or loses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message

from tests.simulation.network import Node
from tests.simulation.weather import Fate

#: How long a client waits for an answer. Longer than a gateway takes to give up on its store.
PATIENCE_S = 30.0


class Unanswered(Exception):
    """The connection broke, or nothing came: the request may have been served or not."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    query: str = ""
    body: object = None
    key: str

    @property
    def scope(self) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": self.query.encode(),
            "headers": [(b"host", b"gateway"), (b"authorization", b"Bearer " + self.key.encode())],
            "client": ("192.0.2.1", 1),
            "server": ("192.0.2.2", 8080),
        }


class Door:
    """A gateway as clients see it: connections to it, until its process is killed."""

    def __init__(self, node: Node, app: ASGIApp, broken: list[BaseException]) -> None:
        """`broken` gets what the application did not answer for."""
        self.node = node
        self._app = app
        self._broken = broken
        self._open: list[Exchange] = []
        self._served: list[asyncio.Task[None]] = []
        self._closed = False
        node.on_kill = self._reset

    async def ask(self, request: Request) -> Answer:
        """Raises Unanswered."""
        exchange = Exchange(request)
        self._open.append(exchange)
        self._send(exchange)
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await exchange.answer
        except TimeoutError:
            raise Unanswered from None
        finally:
            self._open.remove(exchange)
            self._soon(exchange.gone.set)

    async def close(self) -> None:
        """Refuses whoever comes, and returns when all who are in have left."""
        self._closed = True
        if self._served:
            await asyncio.wait(self._served)

    def _send(self, exchange: Exchange) -> None:
        fate, late = self.node.network.fate(self.node), 0.0
        exchange.deaf = fate is Fate.UNANSWERED
        if fate is Fate.LATE:
            late = self.node.network.lateness()
        if fate in (Fate.LOST, Fate.LATE):
            self._soon(exchange.reset)
        if fate is not Fate.LOST:
            self._soon(lambda: self._arrive(exchange), late)

    def _arrive(self, exchange: Exchange) -> None:
        if self.node.dead or self._closed:
            self._soon(exchange.reset)
        else:
            self._served = [task for task in self._served if not task.done()]
            self._served.append(self.node.spawn(self._serve(exchange)))

    async def _serve(self, exchange: Exchange) -> None:
        try:
            await self._app(exchange.request.scope, exchange.receive, exchange.send)
        except Exception as error:
            self._broken.append(error)
        self._soon(exchange.reset if exchange.deaf else exchange.hear)

    def _reset(self) -> None:
        for exchange in self._open:
            self._soon(exchange.reset)

    def _soon(self, what: Callable[[], None], extra: float = 0.0) -> None:
        self.node.network.later(self.node.network.delay(self.node) + extra, what)


class Exchange:
    """One request and its answer: an ASGI connection, and its other end."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        #: The client has hung up, and the gateway may know.
        self.gone = asyncio.Event()
        #: The answer will be lost.
        self.deaf = False
        self._asked = False
        self._status = 0
        self._parts: list[bytes] = []

    async def receive(self) -> Message:
        if self._asked:
            await self.gone.wait()
            return {"type": "http.disconnect"}
        self._asked = True
        body = b"" if self.request.body is None else msgspec.json.encode(self.request.body)
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        self._status = message.get("status", self._status)
        self._parts.append(message.get("body", b""))

    def hear(self) -> None:
        if not self.answer.done():
            self.answer.set_result(Answer(self._status, b"".join(self._parts)))

    def reset(self) -> None:
        if not self.answer.done():
            self.answer.set_exception(Unanswered())
