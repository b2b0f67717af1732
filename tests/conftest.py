"""Fixtures that every suite shares: servers, settings, stores, and the checks after each test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from common.store import Store
from tests.keyspace import clear
from tests.processes import Processes
from tests.servers import (
    EMBEDDED,
    FAKEREDIS,
    FakeredisServer,
    Server,
    ServerProcess,
    embedded_binary,
    named_binaries,
)
from tests.vandal import Vandal
from tests.workers import Worker

#: A developer's own IWL_* must not change what the tests see; IWL_TEST_* is meant for them.
NAMED_SERVERS = os.environ.pop("IWL_TEST_SERVERS", "")
SENT_TWICE = bool(os.environ.pop("IWL_TEST_SENT_TWICE", ""))
for _name in [name for name in os.environ if name.startswith("IWL_") and not name.startswith("IWL_TEST_")]:
    del os.environ[_name]

REAL_SERVERS = [EMBEDDED, *named_binaries(NAMED_SERVERS)]
REAL = [pytest.param(name, marks=pytest.mark.server) for name in REAL_SERVERS]

#: Where a test needs nothing to go stale: longer than any pause of a busy machine.
IDLE_MS = 5_000


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "settings(**overrides): settings of every store of this test",
        "vandal: writes to the store's keys behind its back, so conservation and leaks are not asserted",
        "sent_twice: every script of this test reaches the server twice",
        "real_server: no fakeredis, because it lacks what the test is about",
    ):
        config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        real_only = any(mark.name == "real_server" for mark in metafunc.definition.iter_markers())
        metafunc.parametrize("server", REAL if real_only else [FAKEREDIS, *REAL], indirect=True)


class Servers:
    """Starts each shared server when the first test asks for it, and stops all at the end."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._running: dict[str, Server] = {}
        self._processes: list[ServerProcess] = []

    def shared(self, name: str) -> Server:
        if name not in self._running:
            self._running[name] = FakeredisServer() if name == FAKEREDIS else self.private(name)
        return self._running[name]

    def private(self, name: str = EMBEDDED, **options: Any) -> ServerProcess:
        process = ServerProcess(name, _binary(name), self._directory(), **options)
        process.start()
        self._processes.append(process)
        return process

    def stop(self, processes: list[ServerProcess] | None = None) -> None:
        for process in list(self._processes) if processes is None else processes:
            process.stop()
            self._processes.remove(process)

    def _directory(self) -> Path:
        directory = self._root / f"server-{uuid4().hex[:8]}"
        directory.mkdir()
        return directory


def _binary(name: str) -> Path:
    """Missing: skip on a laptop, fail in CI, where nobody would notice a skip."""
    binary = embedded_binary() if name == EMBEDDED else named_binaries(NAMED_SERVERS)[name]
    if not os.access(binary, os.X_OK):
        message = f"no server {name} at {binary}"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(message)
        pytest.skip(message)
    return binary


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    running = Servers(tmp_path_factory.mktemp("servers"))
    yield running
    running.stop()


@pytest.fixture
def server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    """Each server of the matrix in turn; shared by all tests, so keep to your namespace."""
    return servers.shared(request.param)


@pytest.fixture
def start_server(servers: Servers) -> Iterator[Callable[..., ServerProcess]]:
    """Starts a real server for this test alone: `start_server(name, durable=..., maxmemory_policy=...)`."""
    mine: list[ServerProcess] = []

    def start(name: str = EMBEDDED, **options: Any) -> ServerProcess:
        mine.append(servers.private(name, **options))
        return mine[-1]

    yield start
    servers.stop(mine)


@pytest.fixture
def private_server(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    """A durable embedded server that this test may kill, pause and restart."""
    return start_server(durable=True)


@pytest.fixture
def namespace() -> str:
    return f"test-{uuid4().hex[:10]}"


@pytest.fixture
async def raw(server: Server) -> AsyncIterator[Redis]:
    """A plain client: looks at keys and plays the vandal."""
    client = server.connect(decode_responses=True)
    yield client
    await client.aclose()


@pytest.fixture
async def processes(
    request: pytest.FixtureRequest, server: Server, namespace: str
) -> AsyncIterator[Processes]:
    """Store objects on one namespace, each as if in a process of its own. Checks P1 and P7 at the end."""
    overrides: dict[str, Any] = {"claim_idle_ms": IDLE_MS}
    for mark in reversed(list(request.node.iter_markers("settings"))):
        overrides |= mark.kwargs
    twice = SENT_TWICE or request.node.get_closest_marker("sent_twice") is not None
    opened = Processes(server, namespace, overrides, sent_twice=twice)
    yield opened
    try:
        if request.node.get_closest_marker("vandal") is None:
            await opened.assert_promises_kept()
    finally:
        await opened.close()
        await clear(server, namespace)


@pytest.fixture
def vandal(raw: Redis, namespace: str) -> Vandal:
    return Vandal(raw, namespace)


@pytest.fixture
async def gateway(processes: Processes) -> Store:
    """The store of a process that takes no jobs."""
    return await processes.open()


@pytest.fixture
async def worker(processes: Processes) -> Worker:
    """The store of a process that does, with a seat."""
    return await processes.hire()
