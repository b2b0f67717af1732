"""Processes and what lies between them and the server: latency, resets, lost replies, partitions."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from redis.exceptions import ConnectionError as ConnectionLost

from common.redis_store.wire import Reply
from tests.simulation.clock import PROCESS, Process, VirtualLoop
from tests.simulation.server import Session, SimulatedServer
from tests.simulation.weather import CALM, Fate


class Node(Process):
    """A process with its tasks and connections."""

    def __init__(self, network: Network, name: str, *, sheltered: bool = False) -> None:
        super().__init__(name)
        self.network = network
        #: No faults of the network for this one.
        self.sheltered = sheltered
        self.cut = False
        self.links: list[Link] = []
        #: Pipes of connections that are over, with messages still on their way.
        self.stragglers: list[Pipe] = []
        self.on_kill: Callable[[], None] = _unnoticed
        self._context = copy_context()
        self._context.run(PROCESS.set, self)
        network.nodes.append(self)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.network.loop.create_task(work, context=self._context.copy())

    def connect(self) -> SimulatedClient:
        return SimulatedClient(self)

    def kill(self) -> None:
        """SIGKILL. What it had sent is on its way."""
        self.dead = True
        for link in list(self.links):
            link.hang_up()
        self.on_kill()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        if self.paused and not self.dead:
            self.network.loop.resume(self)

    def part(self) -> None:
        self.cut = True

    def heal(self) -> None:
        self.cut = False
        for link in list(self.links):
            link.flow()
        for pipe in self.stragglers:
            pipe.flow()


class Network:
    def __init__(self, loop: VirtualLoop, server: SimulatedServer, chance: random.Random) -> None:
        self.loop = loop
        self.server = server
        self.chance = chance
        self.weather = CALM
        #: Not any process's: packets travel on when their sender is dead.
        self.context = copy_context()
        self.nodes: list[Node] = []

    def delay(self, node: Node) -> float:
        if node.sheltered:
            return 0.0
        if self.chance.random() < self.weather.slow:
            return self.chance.random() * self.weather.stall
        return self.weather.latency * (0.5 + self.chance.random())

    def fate(self, node: Node) -> Fate:
        """Of a request to the node or from it."""
        return (CALM if node.sheltered else self.weather).fate(self.chance.random())

    def lateness(self) -> float:
        """Seconds, of a request that comes late."""
        return self.chance.random() * 5

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        self.loop.call_later(seconds, what, context=self.context)

    def restart_server(self, seconds: float, restore: object = None) -> None:
        self.server.stop()
        for node in self.nodes:
            for link in list(node.links):
                # Whoever is cut off does not hear of it.
                if not node.cut:
                    link.broken()
        if restore is not None:
            self.server.restore(restore)
        self.later(seconds, self.server.start)


class Pipe:
    """One direction of a connection: in order, each message some time after it was sent."""

    def __init__(self, node: Node, deliver: Callable[[Any], None]) -> None:
        self._node = node
        self._deliver = deliver
        self._on_the_way: deque[Any] = deque()
        self._arrived = 0

    def send(self, message: Any, extra: float = 0.0) -> None:
        self._on_the_way.append(message)
        self._node.network.later(self._node.network.delay(self._node) + extra, self._arrive)

    def _arrive(self) -> None:
        self._arrived += 1
        self.flow()

    @property
    def pending(self) -> bool:
        return bool(self._on_the_way)

    def flow(self) -> None:
        """Hands over what has arrived; a partition keeps it back."""
        while self._arrived and self._on_the_way and not self._node.cut:
            self._arrived -= 1
            self._deliver(self._on_the_way.popleft())


class Link:
    """A connection as the client library shows it to the store (`common.redis_store.wire.Connection`)."""

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


def _unnoticed() -> None:
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
