"""An address that stays while the server behind it changes, and a link that can be parted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
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
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def connect(self, *, decode_responses: bool = False) -> Redis:
        return Redis.from_url(self.url, decode_responses=decode_responses, protocol=2)  # pyright: ignore[reportUnknownMemberType]

    def part(self) -> None:
        """What is sent from now on does not arrive, and nobody is told."""
        self._whole.clear()

    def lead_to(self, port: int) -> None:
        """New connections go there."""
        self._target = port

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
        ways = (self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))
        tasks = [asyncio.create_task(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            far_writer.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
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
