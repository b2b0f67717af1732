"""Connections to the server, as the client library shows them to a store."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError as ConnectionLost

from common.redis_store.wire import Reply
from tests.simulation.network import Node, Pipe
from tests.simulation.server import Session, SimulatedServer
from tests.simulation.weather import Fate


class Link:
    """One of them (`common.redis_store.wire.Connection`)."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.session: Session | None = None
        self._replies: deque[Any] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._up: Pipe | None = None
        self._down: Pipe | None = None

    @property
    def is_connected(self) -> bool:
        return self.session is not None

    async def connect(self) -> None:
        network = self.node.network
        await asyncio.sleep(network.delay(self.node))
        if self.node.cut:
            # Nobody refuses it either: whoever connects gives up on it.
            await asyncio.get_running_loop().create_future()
        session = network.server.connect(self.node.name, lambda reply: down.send(reply))
        if session is None:
            raise ConnectionLost("refused")
        down = Pipe(self.node, lambda reply: self._hear(session, reply))
        self.session, self._down = session, down
        self._up = Pipe(self.node, lambda packed: _run(network.server, session, packed))
        self._replies.clear()
        self.node.links.append(self)
        self._reader = None

    async def disconnect(self, nowait: bool = False) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        """The server hears of it after what was sent before."""
        if self.session is not None and self._up is not None:
            self._up.send(None)
            self._forget()

    async def send_packed_command(self, command: bytes, check_health: bool = True) -> None:
        if self.session is None or self._up is None:
            raise ConnectionLost("not connected")
        match self.node.network.fate(self.node):
            case Fate.ARRIVES:
                self._up.send(command)
            case Fate.LOST:
                self.broken()
            case Fate.UNANSWERED:
                self._up.send(command)
                self._replies_lost()
            case Fate.LATE:
                self._up.send(command, extra=self.node.network.lateness())
                self.broken()

    async def read_response(self, *, timeout: float) -> Reply:
        while not self._replies:
            if self.session is None:
                raise ConnectionLost("reset")
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        reply = self._replies.popleft()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def broken(self) -> None:
        """Reset: the client is told at once, the server when the packets get there."""
        if self.session is not None and self._up is not None:
            self._up.send(None)
        self._forget()
        self._wake()

    def flow(self) -> None:
        for pipe in (self._up, self._down):
            if pipe is not None:
                pipe.flow()

    def _replies_lost(self) -> None:
        session = self.session

        def reset() -> None:
            if self.session is session:
                self.broken()

        self.node.network.later(self.node.network.delay(self.node) * 2, reset)
        if session is not None:
            session.answer = _unheard

    def _hear(self, session: Session, reply: Any) -> None:
        if self.session is session:
            self._replies.append(reply)
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _forget(self) -> None:
        self.session = None
        if self in self.node.links:
            self.node.links.remove(self)
            old = [pipe for pipe in self.node.stragglers if pipe.pending]
            self.node.stragglers = [*old, *(pipe for pipe in (self._up,) if pipe)]


def _unheard(reply: Any) -> None:
    pass


def _run(server: SimulatedServer, session: Session, packed: bytes | None) -> None:
    if packed is None:
        server.close(session)
    else:
        server.receive(session, packed)


class SimulatedClient:
    """`common.redis_store.wire.Client` and its pool."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def connection_pool(self) -> SimulatedClient:
        return self

    def make_connection(self) -> Link:
        return Link(self._node)

    def pubsub(self) -> Ear:
        return Ear(Link(self._node))

    async def aclose(self) -> None:
        pass


class Ear:
    """`common.redis_store.wire.PubSub`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def _subscribe(self, channel: str) -> None:
        await self._link.connect()
        packed = f"*2\r\n$9\r\nSUBSCRIBE\r\n${len(channel)}\r\n{channel}\r\n"
        await self._link.send_packed_command(packed.encode())

    async def ping(self) -> None:
        await self._link.send_packed_command(b"*1\r\n$4\r\nPING\r\n")

    def subscribe(self, channel: str) -> Awaitable[None]:
        return self._subscribe(channel)

    async def get_message(self, *, timeout: float) -> dict[str, Any] | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                # A pong has two elements.
                kind, *_, data = await self._link.read_response(timeout=timeout)
                return {"type": kind.decode(), "data": data}
        return None

    async def aclose(self) -> None:
        await self._link.disconnect()
