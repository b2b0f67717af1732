"""The gateway as tests see it: the app on a store of the matrix, or a process of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.app import create_app
from common.store import Store
from tests.api.served import GatewayProcess
from tests.processes import Processes

Connect = Callable[..., Awaitable[httpx.AsyncClient]]
Serve = Callable[..., GatewayProcess]


def client_of(app: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")


@pytest.fixture
async def connect(processes: Processes) -> AsyncGenerator[Connect]:
    """`await connect(max_queue_depth=1)`: a client of a running gateway with these settings."""
    async with AsyncExitStack() as running:

        async def connected(**overrides: Any) -> httpx.AsyncClient:
            store: Store = await processes.open(**overrides)
            app = create_app(store, processes.settings(**overrides))
            await app.state.gateway.trust()
            await running.enter_async_context(app.router.lifespan_context(app))
            return await running.enter_async_context(client_of(app))

        yield connected


@pytest.fixture
async def client(connect: Connect) -> httpx.AsyncClient:
    return await connect()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(redis_url=...)`: a gateway process with these settings, serving."""
    started: list[GatewayProcess] = []

    def serving(**settings: str) -> GatewayProcess:
        started.append(GatewayProcess(**settings))
        started[-1].wait_for_url()
        return started[-1]

    yield serving
    for process in started:
        process.kill()
