"""Workers in the test's own event loop, and workers in processes of their own."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from common.settings import Settings
from tests.processes import Processes
from tests.servers import ServerProcess
from tests.worker.children import Child
from tests.worker.running import Crew


@pytest.fixture
async def crew(processes: Processes) -> AsyncIterator[Crew]:
    """Starts workers on the test's namespace; they are drained before its promises are checked."""
    started = Crew(processes)
    yield started
    await started.leave()


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """Starts worker processes with settings like the given ones; none survives the test."""
    started: list[Child] = []

    def start(settings: Settings, **overrides: Any) -> Child:
        started.append(Child(settings, tmp_path, **overrides))
        return started[-1]

    yield start
    for child in started:
        child.clear_away()


@pytest.fixture
def spawn(processes: Processes, children: Callable[..., Child]) -> Callable[..., Child]:
    """Starts worker processes on the test's namespace."""
    return partial(children, processes.settings())


@pytest.fixture
async def private(private_server: ServerProcess, namespace: str) -> AsyncIterator[Processes]:
    """Processes on a server that the test may kill. What it does to it is not checked."""
    opened = Processes(private_server, namespace, {"claim_idle_ms": 5_000})
    yield opened
    await opened.close()


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
