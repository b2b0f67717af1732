"""A fleet that somebody makes larger and smaller under load, as an autoscaler does it: start, or SIGTERM."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from common.job import JobStatus, Outcome
from common.store import Store
from tests.requests import submit
from tests.waiting import wait_until
from tests.worker.children import Child

pytestmark = [pytest.mark.real_server, pytest.mark.settings(max_queue_depth=0)]

Spawn = Callable[..., Child]

#: Of the load: a little longer than the drain time, so that some jobs are ended and some given back.
LATENCY_MS, DRAIN_MS = 300, 200
#: Jobs that certainly run when the fleet is told to leave, and would run on for long.
LONG_JOBS, LONG_MS = 4, 5_000


class Fleet:
    def __init__(self, spawn: Spawn, gateway: Store) -> None:
        self._spawn = spawn
        self._gateway = gateway
        self._living: list[Child] = []

    async def scale(self, count: int) -> None:
        """Returns once so many hold the lowest slots, and those told to leave are gone."""
        leaving, self._living = self._living[count:], self._living[:count]
        for child in leaving:
            child.ask_to_leave()
        while len(self._living) < count:
            self._living.append(self._spawn(drain_ms=DRAIN_MS, worker_concurrency=2))
        assert [await child.exit_code() for child in leaving] == [0] * len(leaving)
        await wait_until(lambda: self._seated(count), timeout=30)

    async def _seated(self, count: int) -> bool:
        names = {worker.worker for worker in (await self._gateway.scale()).workers}
        return names == {f"worker-{number}" for number in range(1, count + 1)}


@pytest.mark.timeout(120)
async def test_a_fleet_of_1_8_0_and_3_drops_no_start_and_no_job(spawn: Spawn, gateway: Store) -> None:
    ids: list[str] = []

    async def hand_in(latency_ms: int) -> str:
        job = await submit(gateway, f"job {len(ids)}", params={"mock": {"latency_ms": latency_ms}})
        ids.append(job.job_id)
        return job.job_id

    async def load() -> None:
        while True:
            await hand_in(LATENCY_MS)
            await asyncio.sleep(0.05)

    clients = asyncio.create_task(load())
    fleet = Fleet(spawn, gateway)
    for count in (1, 8):
        await fleet.scale(count)
        await asyncio.sleep(1)
        assert (await gateway.depth()).unaccounted == 0
    long = [await hand_in(LONG_MS) for _ in range(LONG_JOBS)]

    async def all_run() -> bool:
        return all([(await gateway.get(job_id)).status is JobStatus.RUNNING for job_id in long])

    await wait_until(all_run, timeout=30)
    await fleet.scale(0)
    await asyncio.sleep(1)
    assert (await gateway.depth()).unaccounted == 0
    waiting = await gateway.depth()
    assert waiting.running == 0
    assert waiting.queued > 0
    await fleet.scale(3)
    clients.cancel()
    with suppress(asyncio.CancelledError):
        await clients

    async def drained() -> bool:
        return not (await gateway.depth()).unfinished

    await wait_until(drained, timeout=60)
    jobs = [await gateway.get(job_id) for job_id in ids]
    outcomes = {job.job_id: [attempt.outcome for attempt in job.attempts] for job in jobs}
    assert {job.status for job in jobs} == {JobStatus.SUCCEEDED}
    assert {outcome for each in outcomes.values() for outcome in each} <= {
        Outcome.RELEASED,
        Outcome.SUCCEEDED,
    }
    assert all(each.count(Outcome.SUCCEEDED) == 1 for each in outcomes.values())
    assert all(Outcome.RELEASED in outcomes[job_id] for job_id in long)
