"""Sweeps: one worker at a time looks at what is pending, and to its end; the consumers of the dead go too."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from common.redis_store import fleet
from common.redis_store.keys import GROUP
from common.store import Store
from tests.keyspace import command
from tests.processes import Processes
from tests.requests import submit
from tests.vandal import Vandal
from tests.waiting import wait_until
from tests.workers import Worker


@pytest.mark.settings(claim_idle_ms=1000)
async def test_a_long_row_of_held_jobs_does_not_hide_what_a_dead_worker_held_behind_them(
    processes: Processes, gateway: Store
) -> None:
    """XAUTOCLAIM stops after ten times as many entries as it was asked for, and says where to go on."""
    alive, dead = await processes.hire(), await processes.hire()
    for _ in range(30):
        await submit(gateway)
    held = await alive.take(30)
    job = await submit(gateway)
    await dead.lease(job.job_id)

    async def renew() -> None:
        while True:
            await alive.store.extend(held)
            await asyncio.sleep(0.1)

    renewing = asyncio.create_task(renew())
    other = await processes.hire()
    taken = await other.lease(job.job_id, fresh=False)
    assert taken.reclaimed
    renewing.cancel()
    await other.finish(taken)


async def sweeps(raw: Redis) -> int:
    """How often the server was asked for idle entries, by anybody."""
    stats = cast(dict[str, dict[str, int]], await cast(Any, raw).info("commandstats"))
    return stats.get("cmdstat_xautoclaim", {"calls": 0})["calls"]


@pytest.mark.real_server
async def test_one_worker_at_a_time_sweeps(processes: Processes, raw: Redis) -> None:
    """Or a fleet would read what is pending as often as it has workers."""
    workers = [await processes.hire() for _ in range(6)]
    before = await sweeps(raw)
    for worker in workers:
        await worker.look(fresh=False)
    # The lock ends by itself after a second: a machine that pauses so long lets another one in.
    assert 1 <= await sweeps(raw) - before < 3


@pytest.mark.settings(claim_idle_ms=400, heartbeat_ms=50)
async def test_the_consumer_of_a_dead_worker_goes_and_never_with_a_job(
    monkeypatch: pytest.MonkeyPatch, processes: Processes, gateway: Store, vandal: Vandal
) -> None:
    """Deleting a consumer drops what it has pending."""
    monkeypatch.setattr(fleet, "KEEP_MS", 100)
    monkeypatch.setattr(fleet, "PRUNE_EVERY_S", 0.0)
    dead = await processes.hire(worker_id="gpu-a")
    job = await submit(gateway)
    await dead.lease(job.job_id)

    async def consumers() -> list[str]:
        await gateway.tend()
        return [row["name"] for row in await vandal.raw.xinfo_consumers(vandal.keys.jobs, GROUP)]

    async def slot_forgotten() -> bool:
        await gateway.tend()
        return await command(vandal.raw, "ZSCORE", f"{vandal.keys.namespace}:workers", "gpu-a") is None

    await wait_until(slot_forgotten)
    assert await consumers() == ["gpu-a"]
    other: Worker = await processes.hire()
    await other.finish(await other.lease(job.job_id))

    async def gone() -> bool:
        return "gpu-a" not in await consumers()

    await wait_until(gone)
