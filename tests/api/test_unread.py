"""Answers that clients do not read, on a listener in this process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from api.server import BoundedHttp
from tests.waiting import wait_until

#: More than the kernel takes off our hands.
SIZE = 16 << 20

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Ask = Callable[[], Awaitable[Client]]


async def app(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"%d" % SIZE)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": bytes(SIZE)})


@pytest.fixture
def state() -> ServerState:
    return ServerState()


@pytest.fixture
async def ask(state: ServerState) -> AsyncGenerator[Ask]:
    """A client that has asked for the answer, and does not read it unless told to."""
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: BoundedHttp(config, state, {}), "127.0.0.1", 0)
    opened: list[asyncio.StreamWriter] = []

    async def asking() -> Client:
        mine = socket.socket()
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        mine.setblocking(False)
        await loop.sock_connect(mine, listener.sockets[0].getsockname())
        reader, writer = await asyncio.open_connection(sock=mine, limit=4096)
        opened.append(writer)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        return reader, writer

    yield asking
    for writer in opened:
        writer.transport.abort()
    listener.close()
    await listener.wait_closed()


def unread(state: ServerState) -> int:
    return sum(cast(BoundedHttp, each).unread for each in state.connections)


async def test_an_answer_that_nobody_reads_is_cut_off(
    ask: Ask, state: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.server.UNREAD_TIMEOUT_S", 0.3)
    reader, _ = await ask()
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    await wait_until(lambda: not state.connections, 5)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(SIZE)


async def test_an_answer_that_is_read_slowly_is_given_whole(
    ask: Ask, state: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.server.UNREAD_TIMEOUT_S", 1.5)
    reader, _ = await ask()
    await wait_until(lambda: unread(state) > 0, 5)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    loop = asyncio.get_running_loop()
    began, got = loop.time(), 0
    for _ in range(32):
        got += len(await reader.readexactly(SIZE // 32))
        await asyncio.sleep(0.1)
    assert got == SIZE
    assert loop.time() - began > 2 * 1.5


async def test_what_all_clients_leave_unread_is_bounded_and_who_has_waited_longest_goes_first(
    ask: Ask, state: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.server.MAX_UNREAD_BYTES", 3 * SIZE)
    clients: list[Client] = []
    for _ in range(8):
        clients.append(await ask())
        await asyncio.sleep(0.05)
        assert unread(state) <= 3 * SIZE
    await wait_until(lambda: len(state.connections) < 8, 5)
    newest, _ = clients[-1]
    assert (await newest.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert len(await newest.readexactly(SIZE)) == SIZE
    oldest, _ = clients[0]
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await oldest.readexactly(SIZE)
