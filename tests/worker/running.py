"""A worker running inside the test's event loop, on a store of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from common.errors import StoreUnavailable
from common.job import Job
from common.store import GatewayStore, Store
from common.telemetry import WorkerMetrics
from tests.processes import Processes
from tests.waiting import wait_until
from worker.backends.base import Backend
from worker.loop import Worker


@dataclass
class Running:
    worker: Worker
    store: Store
    registry: CollectorRegistry
    task: asyncio.Task[None]

    def count(self, name: str, **labels: str) -> float:
        """A sample of this worker's metrics, 0 when there is none."""
        return self.registry.get_sample_value(name, labels) or 0.0

    async def leave(self, timeout: float = 15.0) -> None:
        """Drains it and waits until it has left."""
        if not self.task.done():
            self.worker.drain()
        async with asyncio.timeout(timeout):
            await self.task


class Crew:
    """Starts workers, and sees them off at the end of the test."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._running: list[Running] = []

    async def start(
        self, backend: Backend, *, wrap: Callable[[Store], Any] = lambda store: store, **overrides: Any
    ) -> Running:
        overrides = {"instance": f"crew-{len(self._running)}", "drain_ms": 500} | overrides
        store = wrap(await self._processes.open(**overrides))
        registry = CollectorRegistry()
        settings = self._processes.settings(**overrides)
        worker = Worker(settings, store, backend, WorkerMetrics(registry))
        self._running.append(Running(worker, store, registry, asyncio.create_task(worker.run())))
        return self._running[-1]

    async def leave(self) -> None:
        for running in self._running:
            await running.leave()


async def ended(store: GatewayStore, job_id: str, timeout: float = 10.0) -> Job:
    """The job once it has ended. A store that is away meanwhile is asked again."""

    async def has_ended() -> bool:
        try:
            return (await store.get(job_id)).status.terminal
        except StoreUnavailable:
            return False

    await wait_until(has_ended, timeout)
    return await store.get(job_id)
