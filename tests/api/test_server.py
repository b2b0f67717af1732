"""The HTTP protocol's own limits, on a listener in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from prometheus_client import CollectorRegistry
from uvicorn.server import ServerState

from api.app import create_app
from api.server import BoundedHttp, GatewayServer
from common.redis_store.store import RedisStore
from common.settings import Settings

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Client]:
    monkeypatch.setattr("api.server.HEAD_TIMEOUT_S", 0.1)
    settings = Settings()
    config = GatewayServer(create_app(RedisStore(settings), settings, CollectorRegistry()), "", 0).config
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: BoundedHttp(config, state, {}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    yield reader, writer
    writer.close()
    await writer.wait_closed()
    listener.close()
    await listener.wait_closed()


async def test_a_connection_that_says_nothing_is_closed(client: Client) -> None:
    reader, _ = client
    async with asyncio.timeout(5):
        assert await reader.read() == b""


async def test_a_head_that_does_not_end_is_not_waited_for(client: Client) -> None:
    reader, writer = client
    writer.write(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
    async with asyncio.timeout(5):
        assert await reader.read() == b""


async def test_a_second_request_may_come_later_than_a_head_may_take(client: Client) -> None:
    reader, writer = client
    for _ in range(2):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 OK")
        # Longer than the limit for a head, which has none running between two requests.
        await asyncio.sleep(0.15)
