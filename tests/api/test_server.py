"""The HTTP protocol's own limits, on a listener in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry
from uvicorn.server import ServerState

from api.app import create_app
from api.server import MAX_HEAD_BYTES, MAX_HEADERS, BoundedHttp, GatewayServer
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


async def test_an_empty_line_is_no_request_and_its_connection_is_closed(client: Client) -> None:
    reader, writer = client
    writer.write(b"\r\n")
    async with asyncio.timeout(5):
        assert await reader.read() == b""


@pytest.mark.parametrize(
    ("request_", "late"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n"),
        (b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", b"x"),
        (b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n", b"x"),
    ],
    ids=["an empty line", "part of the body", "the body"],
)
async def test_bytes_that_begin_no_request_do_not_keep_an_answered_connection_open(
    client: Client, request_: bytes, late: bytes
) -> None:
    """uvicorn takes any byte for the next request, and its limit on idle time off."""
    reader, writer = client
    writer.write(request_)
    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 ")
    writer.write(late)
    async with asyncio.timeout(5):
        assert await reader.read() == b""


async def test_an_empty_line_before_a_request_does_no_harm(client: Client) -> None:
    reader, writer = client
    for _ in range(2):
        writer.write(b"\r\n")
        await asyncio.sleep(0.02)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 OK")
        # Longer than the limit, which ended with the head.
        await asyncio.sleep(0.15)


async def test_a_head_that_does_not_end_is_not_waited_for(client: Client) -> None:
    reader, writer = client
    writer.write(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
    async with asyncio.timeout(5):
        assert await reader.read() == b""


@pytest.mark.parametrize(
    "headers",
    [
        b"X-Many: x\r\n" * MAX_HEADERS,
        b"X-Huge: " + b"x" * MAX_HEAD_BYTES + b"\r\n",
        b"X-Many-Huge: " + b"x" * 1024 + b"\r\n" + (b"X-Y: " + b"y" * 2048 + b"\r\n") * 50,
    ],
    ids=["many", "huge", "many and huge"],
)
async def test_a_head_that_is_too_large_is_refused_and_its_connection_closed(
    client: Client, headers: bytes
) -> None:
    """Also when it arrives all at once."""
    reader, writer = client
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n%b\r\n" % headers)
    async with asyncio.timeout(5):
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"application/problem+json" in answer


async def test_a_head_just_within_the_limits_is_answered(client: Client) -> None:
    reader, writer = client
    headers = b"X-Many: x\r\n" * (MAX_HEADERS - 2) + b"X-Huge: " + b"x" * (MAX_HEAD_BYTES - 2000) + b"\r\n"
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n%b\r\n" % headers)
    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 OK")


async def test_a_long_body_does_not_count_as_head(client: Client) -> None:
    reader, writer = client
    body = b"x" * 2 * MAX_HEAD_BYTES
    writer.write(b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    assert (await reader.readline()).startswith(b"HTTP/1.1 405")


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/dlq/redrive"])
async def test_a_body_of_which_nothing_arrives_is_not_waited_for(
    client: Client, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("api.answers.BODY_TIMEOUT_S", 0.05)
    reader, writer = client
    writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n" % path.encode())
    async with asyncio.timeout(5):
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("piece", [b"X-A: b\r\n", b"x"], ids=["headers", "letters"])
async def test_a_head_that_comes_in_drops_is_cut_off(client: Client, piece: bytes) -> None:
    """Slowloris: every drop is a sign of life, and the time runs all the same."""
    reader, writer = client
    writer.write(b"GET /healthz HTTP/1.1\r\n")
    async with asyncio.timeout(5):
        while not reader.at_eof():
            with suppress(ConnectionError):
                writer.write(piece)
                await writer.drain()
            with suppress(TimeoutError, ConnectionError):
                assert await asyncio.wait_for(reader.read(1), 0.02) == b""


async def test_a_second_request_may_come_later_than_a_head_may_take(client: Client) -> None:
    reader, writer = client
    for _ in range(2):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 OK")
        # Longer than the limit for a head, which has none running between two requests.
        await asyncio.sleep(0.15)
