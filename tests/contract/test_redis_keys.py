"""Keys: what is kept, for how long, and how little of it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from redis.asyncio import Redis

from common.redis_store.keys import GROUP
from common.store import Store
from tests.keyspace import command, keys_of
from tests.processes import Processes
from tests.requests import submit
from tests.servers import Server
from tests.vandal import Vandal
from tests.workers import Worker


@pytest.mark.settings(result_ttl_s=1000, idempotency_ttl_s=500)
async def test_an_idempotency_key_lives_as_long_as_its_job_and_then_its_time(
    gateway: Store, worker: Worker, raw: Redis, namespace: str
) -> None:
    await submit(gateway, idempotency_key="k", owner="ann")
    (key,) = await keys_of(raw, f"{namespace}:idem")
    assert await raw.ttl(key) == -1
    await worker.fail(await worker.lease(), retry_in=timedelta(0))
    assert await raw.ttl(key) == -1
    await worker.run()
    assert 490 <= await raw.ttl(key) <= 500


@pytest.mark.settings(result_ttl_s=1000, idempotency_ttl_s=500)
async def test_result_and_event_log_live_for_the_result_ttl(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    job = await submit(gateway, stream=True)
    assert await vandal.raw.ttl(vandal.keys.tokens(job.job_id)) == -1
    await worker.run()
    for key in (vandal.keys.result(job.job_id), vandal.keys.tokens(job.job_id)):
        assert 990 <= await vandal.raw.ttl(key) <= 1000


async def test_a_live_job_without_extras_is_one_hash(
    gateway: Store, worker: Worker, raw: Redis, namespace: str, vandal: Vandal
) -> None:
    job = await submit(gateway)
    await worker.lease()
    assert await keys_of(raw, f"{namespace}:job") == [vandal.keys.record(job.job_id)]
    assert await keys_of(raw, f"{namespace}:result") == []


async def test_an_ended_job_is_one_string(
    gateway: Store, worker: Worker, raw: Redis, namespace: str, vandal: Vandal
) -> None:
    job = await submit(gateway)
    await worker.run()
    ours = [key for key in await keys_of(raw, namespace) if job.job_id in key]
    assert ours == [vandal.keys.result(job.job_id)]
    assert await raw.type(ours[0]) == "string"


@pytest.mark.real_server
async def test_a_live_record_stays_a_small_hash(gateway: Store, worker: Worker, vandal: Vandal) -> None:
    """A value over 64 bytes turns it into a hashtable of several times the size."""
    job = await submit(gateway, "x" * 500, idempotency_key="k" * 30, expires_in_s=60)
    await worker.lease()
    assert await command(vandal.raw, "OBJECT", "ENCODING", vandal.keys.record(job.job_id)) == "listpack"


@pytest.mark.real_server
async def test_a_finished_job_leaves_few_bytes_beyond_its_result(
    gateway: Store, worker: Worker, vandal: Vandal, server: Server
) -> None:
    job = await submit(gateway)
    await worker.run(text="x" * 111)
    key, plain = vandal.keys.result(job.job_id), f"{vandal.keys.namespace}:plain"
    await vandal.raw.set(plain, "x" * 111, ex=100)
    ours, theirs = [await command(vandal.raw, "MEMORY", "USAGE", name) for name in (key, plain)]
    await vandal.raw.delete(plain)
    assert ours - theirs <= 500


async def test_finished_entries_leave_the_stream(gateway: Store, worker: Worker, vandal: Vandal) -> None:
    for _ in range(5):
        await submit(gateway)
    for lease in await worker.take(5):
        await worker.finish(lease)
    assert await vandal.raw.xlen(vandal.keys.jobs) == 0
    assert (await vandal.raw.xpending(vandal.keys.jobs, GROUP))["pending"] == 0


@pytest.mark.settings(dlq_maxlen=10)
async def test_dead_letters_are_bounded(gateway: Store, worker: Worker) -> None:
    """Approximately: whole blocks of a hundred entries are dropped."""
    for _ in range(250):
        await submit(gateway)
    for lease in await worker.take(250):
        await worker.fail(lease, retry_in=None)
    assert (await gateway.depth()).dead_letters <= 120


async def test_consumers_are_bounded_by_slots(processes: Processes, gateway: Store, vandal: Vandal) -> None:
    """Ten workers after one another under one slot are one consumer."""
    for _ in range(10):
        worker = await processes.hire()
        await submit(gateway)
        await worker.run()
        await worker.store.retire()
    assert len(await vandal.raw.xinfo_consumers(vandal.keys.jobs, GROUP)) <= 1


async def test_a_consumer_with_something_pending_is_not_deleted(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    await submit(gateway)
    await worker.lease()
    await worker.store.retire()
    assert (await vandal.raw.xpending(vandal.keys.jobs, GROUP))["pending"] == 1


async def test_renewing_does_not_raise_the_delivery_count(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    await submit(gateway)
    lease = await worker.lease()
    for _ in range(5):
        await worker.extend(lease)
    (row,) = await vandal.raw.xpending_range(vandal.keys.jobs, GROUP, "-", "+", 10)
    assert row["times_delivered"] == 1


@pytest.mark.vandal
async def test_extending_takes_the_entry_back_from_another_consumer(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    await submit(gateway)
    lease = await worker.lease()
    await vandal.raw.xclaim(vandal.keys.jobs, GROUP, "thief", 0, [lease.receipt], justid=True)
    await worker.extend(lease)
    (row,) = await vandal.raw.xpending_range(vandal.keys.jobs, GROUP, "-", "+", 10)
    assert row["consumer"] == worker.name


@pytest.mark.parametrize("namespace", ["a.b-c_d", "{inference}", "{a}"])
async def test_a_namespace_may_have_a_hash_slot_of_its_own(
    gateway: Store, worker: Worker, raw: Redis, namespace: str
) -> None:
    """Each run of this test uses the same names, so it cleans up behind itself."""
    job = await submit(gateway, stream=True, idempotency_key="k")
    await worker.run(job.job_id)
    keys = await keys_of(raw, namespace)
    assert keys
    await raw.delete(*keys)
