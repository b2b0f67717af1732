"""A TCP relay before a server: what passes can be held, lost, cut and acted on, and the server can change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from redis.asyncio import Redis


class Relay:
    """A `Server` to those who connect to it."""

    name = "relay"
    real = True

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._whole = asyncio.Event()
        self._whole.set()
        self._lose: bytes | None = None
        self.lost = asyncio.Event()
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

    def mend(self) -> None:
        """What was sent meanwhile arrives, late and in order."""
        self._whole.set()

    def lead_to(self, port: int) -> None:
        """New connections go there."""
        self._target = port

    def lose_reply_with(self, part: bytes) -> None:
        """The next reply that has these bytes is lost, and its connection ends; `lost` is set then."""
        self._lose = part
        self.lost.clear()

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

    async def aclose(self) -> None:
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:  # Nobody is there.
            return
        ways = (self._pass_requests(reader, far_writer), self._pass_replies(far_reader, writer))
        tasks = [asyncio.create_task(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            far_writer.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass_requests(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await client.read(1 << 16):
            if self.before_passing is not None:
                await self.before_passing(data)
            await self._pass_on(data, server)

    async def _pass_replies(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await server.read(1 << 16):
            if self._lose is not None and self._lose in data:
                self._lose = None
                self.lost.set()
                return
            await self._pass_on(data, client)

    async def _pass_on(self, data: bytes, sink: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        sink.write(data)
        await sink.drain()


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
