"""A TCP proxy between a store and its server that can lose a reply, act in between, and cut connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress


class Proxy:
    """Passes everything on, until `lose_reply_with` names bytes: the reply that has them is lost."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lose: bytes | None = None
        self.lost = asyncio.Event()
        #: Awaited with what is about to be passed to the server. An OSError cuts the connection before that.
        self.before_passing: Callable[[bytes], Awaitable[object]] | None = None
        self.port = 0
        self._handlers: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def lose_reply_with(self, part: bytes) -> None:
        self._lose = part
        self.lost.clear()

    def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._handlers.add(asyncio.create_task(self._pass_on(reader, writer)))

    async def finished(self) -> None:
        """Once every client has gone."""
        await asyncio.gather(*self._handlers)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, server_writer, replies=False))
                tasks.create_task(self._pump(server_reader, writer, replies=True))
        except* (OSError, _Cut):
            pass
        finally:
            for end in (writer, server_writer):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, replies: bool) -> None:
        while data := await source.read(1 << 16):
            if replies and self._lose is not None and self._lose in data:
                self._lose = None
                self.lost.set()
                raise _Cut
            if not replies and self.before_passing is not None:
                await self.before_passing(data)
            sink.write(data)
            await sink.drain()
        raise _Cut


class _Cut(Exception):
    """This connection is over, in both directions."""


@asynccontextmanager
async def proxied(port: int) -> AsyncGenerator[Proxy, None]:
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await server.wait_closed()
        await proxy.finished()
