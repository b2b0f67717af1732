"""Machines on which each server of the matrix runs, one for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.disasters.machine import Machine
from tests.disasters.pair import Pair, paired
from tests.processes import Processes
from tests.servers import Server, ServerProcess

#: A lease that no pause of a busy machine outlives.
LONG_MS = 60_000


@pytest.fixture
def machine(server: Server, tmp_path: Path) -> Iterator[Machine]:
    """A durable server that this test may kill, and whose folder it may cut."""
    assert isinstance(server, ServerProcess)
    started = Machine(server.name, server.binary, tmp_path / "machine")
    started.start()
    yield started
    started.stop()


@pytest.fixture
async def here(machine: Machine, namespace: str) -> AsyncIterator[Processes]:
    """Processes on that machine. Checks P1 and P7 at the end."""
    opened = Processes(machine, namespace, {"claim_idle_ms": LONG_MS, "heartbeat_ms": 1000})
    yield opened
    try:
        await opened.assert_promises_kept()
    finally:
        await opened.close()


@pytest.fixture
async def pair(server: Server, tmp_path: Path) -> AsyncIterator[Pair]:
    """A primary and its replica."""
    assert isinstance(server, ServerProcess)
    machines = [
        Machine(server.name, server.binary, tmp_path / name, durable=False) for name in ("primary", "replica")
    ]
    try:
        for machine in machines:
            machine.start()
        async with paired(*machines) as pair:
            yield pair
    finally:
        for machine in machines:
            machine.stop()


@pytest.fixture
async def behind(pair: Pair, namespace: str) -> AsyncIterator[Processes]:
    """Processes that reach whoever is the primary. Checks P1 and P7 at the end."""
    opened = Processes(pair.front, namespace, {"claim_idle_ms": LONG_MS, "heartbeat_ms": 1000})
    yield opened
    try:
        await opened.assert_promises_kept()
    finally:
        await opened.close()
