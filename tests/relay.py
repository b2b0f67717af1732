"""A TCP relay before a server: what passes can be held, lost, cut and acted on, and the server can change.

Faults meet chunks, as they were read from a socket: a request, a reply, or several of either."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from redis.asyncio import Redis

CHUNK = 1 << 16


class Way(StrEnum):
    REQUEST = "request"
    REPLY = "reply"


class Kind(StrEnum):
    """What happens to a chunk once its first part has arrived."""

    #: The rest comes later.
    STALL = "stall"
    #: Both sides see the connection end.
    CUT = "cut"
    #: The receiver sees the end of what is sent to it; the other way stays open.
    HALF_CLOSE = "half-close"
    #: Nothing more passes on this connection, either way, and nobody is told.
    SILENCE = "silence"


@dataclass(frozen=True)
class Fault:
    kind: Kind
    #: How much of the chunk arrives before it: 0 is nothing, so that a stall is a delay.
    part: float = 0.5
    #: Of a stall.
    seconds: float = 0.0


#: Every kind, both ways.
FAULTS = [*product(Way, Kind)]

#: The fault that a chunk meets, if any.
Weather = Callable[[Way, bytes], Fault | None]


def calm(way: Way, data: bytes) -> None:
    """Everything passes."""


class Storm:
    """Every few chunks a fault. All kinds come in turn, both ways, in an order that the seed decides."""

    def __init__(self, seed: int, *, gap: int, longest_stall: float) -> None:
        """`gap`: at most so many chunks pass unharmed between two faults."""
        self._random = random.Random(seed)
        self._gap = gap
        self._longest = longest_stall
        self._decks = {way: self._deck() for way in Way}
        self._left = dict.fromkeys(Way, 0)
        self.seen = Counter[tuple[Way, Kind]]()

    def __call__(self, way: Way, data: bytes) -> Fault | None:
        self._left[way] -= 1
        if self._left[way] > 0:
            return None
        self._left[way] = self._random.randint(1, self._gap)
        kind = next(self._decks[way])
        self.seen[way, kind] += 1
        return Fault(
            kind, self._random.choice((0.0, self._random.random())), self._random.random() * self._longest
        )

    def _deck(self) -> Iterator[Kind]:
        while True:
            yield from self._random.sample(list(Kind), len(Kind))


class Relay:
    """A `Server` to those who connect to it."""

    name = "relay"
    real = True

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._whole = asyncio.Event()
        self._whole.set()
        self.weather: Weather = calm
        #: A fault that was ordered for one chunk has met it.
        self.struck = asyncio.Event()
        #: Awaited with what is about to be passed to the server; an OSError ends the connection before that.
        self.before_passing: Callable[[bytes], Awaitable[object]] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def connect(self, *, decode_responses: bool = False) -> Redis:
        return Redis.from_url(self.url, decode_responses=decode_responses, protocol=2)  # pyright: ignore[reportUnknownMemberType]

    def part(self) -> None:
        """What is sent from now on does not arrive, and nobody is told."""
        self._whole.clear()

    def heal(self) -> None:
        """What was held arrives, and no more faults come. A silent connection stays so."""
        self.weather = calm
        self._whole.set()

    def lead_to(self, port: int) -> None:
        """New connections go there."""
        self._target = port

    def strike(self, way: Way, having: bytes, fault: Fault) -> None:
        """The next chunk that has these bytes meets the fault; `struck` is set then."""
        self.struck.clear()

        def once(this_way: Way, data: bytes) -> Fault | None:
            if this_way is not way or having not in data:
                return None
            self.weather = calm
            self.struck.set()
            return fault

        self.weather = once

    def lose_reply_with(self, part: bytes) -> None:
        """The next reply that has these bytes is lost, and its connection ends."""
        self.strike(Way.REPLY, part, Fault(Kind.CUT, 0))

    def cut(self) -> None:
        """Ends all connections."""
        for connection in self._connections:
            connection.cancel()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._connect(reader, writer))
        self._connections.add(connection)

        def over(_: object) -> None:
            # Here, as one that is cut before its first step never gets to its own end.
            self._connections.discard(connection)
            writer.close()

        connection.add_done_callback(over)

    async def whole(self) -> None:
        """Until no partition holds anything back."""
        await self._whole.wait()

    async def aclose(self) -> None:
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:  # Nobody is there.
            return
        connection = _Connection(self)
        ways = (
            connection.pass_on(Way.REQUEST, reader, far_writer),
            connection.pass_on(Way.REPLY, far_reader, writer),
        )
        tasks = [asyncio.create_task(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            far_writer.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _Connection:
    """One client's connection through the relay. It ends when one of its two ways returns."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._silent = False

    async def pass_on(self, way: Way, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(CHUNK):
            if way is Way.REQUEST and self._relay.before_passing is not None:
                await self._relay.before_passing(data)
            if fault := self._relay.weather(way, data):
                sent = int(len(data) * fault.part)
                await self._send(data[:sent], sink)
                data = data[sent:]
                if not await self._goes_on(fault, source, sink):
                    return
            await self._send(data, sink)

    async def _goes_on(self, fault: Fault, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> bool:
        """Whether the rest is to be sent after the fault."""
        match fault.kind:
            case Kind.STALL:
                await asyncio.sleep(fault.seconds)
                return True
            case Kind.CUT:
                pass
            case Kind.HALF_CLOSE:
                sink.write_eof()
                with suppress(OSError):
                    while await source.read(CHUNK):
                        pass
            case Kind.SILENCE:
                self._silent = True
                await _for_ever()
        return False

    async def _send(self, data: bytes, sink: asyncio.StreamWriter) -> None:
        await self._relay.whole()
        if self._silent:
            await _for_ever()
        sink.write(data)
        await sink.drain()


async def _for_ever() -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def relayed(port: int) -> AsyncGenerator[Relay]:
    relay = Relay(port)
    server = await asyncio.start_server(relay.accept, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        await relay.aclose()
        await server.wait_closed()
