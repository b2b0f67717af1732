"""Promise P10: a server that is out of memory refuses new work and lets go of what it has."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from redis.asyncio import Redis

from common.errors import StoreFull, StoreRefused
from common.job import JobStatus
from common.store import LeaseState, Settled, Store
from tests.keyspace import command
from tests.processes import Processes
from tests.requests import submission, submit
from tests.servers import Server, ServerProcess
from tests.vandal import Vandal
from tests.waiting import wait_until
from tests.workers import Worker

pytestmark = pytest.mark.real_server


@asynccontextmanager
async def out_of_memory(raw: Redis) -> AsyncGenerator[None]:
    await command(raw, "CONFIG", "SET", "maxmemory", 1)
    try:
        yield
    finally:
        await command(raw, "CONFIG", "SET", "maxmemory", 0)


async def test_a_full_store_refuses_new_work_and_changes_nothing(gateway: Store, raw: Redis) -> None:
    sent = submission(idempotency_key="k")
    async with out_of_memory(raw):
        with pytest.raises(StoreFull):
            await gateway.submit(sent)
    backlog = await gateway.depth()
    assert (backlog.submitted, backlog.lag) == (0, 0)
    assert not (await gateway.submit(sent)).replayed


async def test_a_full_store_refuses_to_redrive_and_keeps_the_letters(
    gateway: Store, worker: Worker, raw: Redis
) -> None:
    await submit(gateway)
    await worker.fail(await worker.lease(), retry_in=None)
    async with out_of_memory(raw):
        with pytest.raises(StoreFull):
            await gateway.redrive()
        assert len(await gateway.list_dead()) == 1
    assert len((await gateway.redrive()).jobs) == 1


@pytest.mark.settings(claim_idle_ms=400)
async def test_a_full_store_drains(processes: Processes, gateway: Store, worker: Worker, raw: Redis) -> None:
    """Begin, extend, append, retry, delay, release, fail, cancel, take over, expire, promote, finish."""
    late = await processes.hire()
    await submit(gateway, expires_in_s=0.3)
    for _ in range(8):
        await submit(gateway, stream=True)
    async with out_of_memory(raw):
        _expires, a, b, c, d, e = await worker.take(6)
        crashed = await late.lease()
        assert await worker.store.extend([a, b]) == [LeaseState.HELD] * 2
        assert await worker.store.append(a, 1, "chunk")
        assert await worker.fail(b) is Settled.RETRYING
        assert await worker.fail(c, retry_in=timedelta(milliseconds=50)) is Settled.RETRYING
        assert await worker.release(d) is Settled.RELEASED
        assert await worker.fail(e, retry_in=None) is Settled.FAILED
        assert (await gateway.cancel(a.job_id)).status is JobStatus.CANCELLED
        reclaimed = False

        async def drained() -> bool:
            nonlocal reclaimed
            await gateway.tend()
            for lease in (await worker.look()).leases:
                reclaimed |= lease.job_id == crashed.job_id and lease.reclaimed
                await worker.finish(lease)
            return not (await gateway.depth()).unfinished

        await wait_until(drained)
        assert reclaimed
        await worker.store.retire()
    backlog = await gateway.depth()
    assert (backlog.succeeded, backlog.failed, backlog.cancelled, backlog.expired) == (6, 1, 1, 1)


async def test_a_worker_can_start_on_a_full_store(processes: Processes, gateway: Store, raw: Redis) -> None:
    """Or a full store could not be drained after a restart."""
    job = await submit(gateway)
    async with out_of_memory(raw):
        late = await processes.hire()
        await late.run(job.job_id)


async def test_a_full_store_still_answers(gateway: Store, worker: Worker, raw: Redis) -> None:
    job = await submit(gateway)
    async with out_of_memory(raw):
        await gateway.ping()
        assert (await gateway.get(job.job_id)).status is JobStatus.QUEUED
        assert (await gateway.wait(job.job_id, timedelta(milliseconds=20))).status is JobStatus.QUEUED
        assert len(await gateway.list_jobs()) == 1
        term = await gateway.lead("scaler", timedelta(minutes=1))
        assert term is not None
        assert len((await gateway.scale()).workers) == 1
        assert await worker.heartbeat() == worker.seat


async def test_a_full_store_makes_its_group_again(
    gateway: Store, worker: Worker, raw: Redis, vandal: Vandal
) -> None:
    """A bare XGROUP CREATE is refused by a full server."""
    job = await submit(gateway)
    await raw.xgroup_destroy(vandal.keys.jobs, "workers")
    async with out_of_memory(raw):
        await worker.run(job.job_id)


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_server_that_would_evict_jobs_is_refused(
    policy: str, server: Server, start_server: Callable[..., ServerProcess], namespace: str
) -> None:
    evicting = start_server(server.name, maxmemory_policy=policy)
    processes = Processes(evicting, namespace, {})
    with pytest.raises(StoreRefused, match=policy):
        await processes.open()
    await processes.close()


async def test_a_full_store_takes_work_again_when_there_is_room(gateway: Store, raw: Redis) -> None:
    async with out_of_memory(raw):
        with pytest.raises(StoreFull):
            await gateway.submit(submission())
    await submit(gateway)
    assert (await gateway.depth()).submitted == 1
