"""Outages: while the server is away every call says so, and afterwards everything goes on where it was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from os import urandom

import pytest
from redis.asyncio import Redis

from common.errors import StoreUnavailable
from common.fleet import Presence
from common.job import JobStatus
from common.redis_store import gateway, wire
from common.redis_store.calls import MAX_BATCH
from common.redis_store.store import RedisStore
from common.store import LeaseState, Settled, Store
from tests.contract.test_events import Reader
from tests.keyspace import command
from tests.processes import Processes
from tests.relay import relayed
from tests.requests import submission, submit
from tests.servers import ServerProcess
from tests.waiting import wait_until
from tests.workers import NOW, Worker, finished

pytestmark = pytest.mark.server


@pytest.fixture
async def here(private_server: ServerProcess, namespace: str) -> AsyncGenerator[Processes]:
    """Processes on a server of their own, which writes every change to disk before it answers."""
    raw = private_server.connect()
    await command(raw, "CONFIG", "SET", "appendfsync", "always")
    await raw.aclose()
    processes = Processes(private_server, namespace, {"claim_idle_ms": 60_000, "heartbeat_ms": 1000})
    yield processes
    await processes.assert_promises_kept()
    await processes.close()


async def test_every_call_says_that_the_store_is_away_and_works_again_afterwards(
    here: Processes, private_server: ServerProcess
) -> None:
    store, worker = await here.open(), await here.hire()
    job = await submit(store)
    lease = await worker.lease()
    presence = Presence(instance=worker.presence.instance)
    calls: list[Callable[[], Awaitable[object]]] = [
        store.ping,
        store.depth,
        store.tend,
        store.scale,
        store.list_jobs,
        store.list_dead,
        store.redrive,
        lambda: store.get(job.job_id),
        lambda: store.wait(job.job_id, NOW),
        lambda: store.submit(submission()),
        lambda: store.lead("scaler", timedelta(minutes=1)),
        lambda: worker.store.claim(1, NOW),
        lambda: worker.store.extend([lease]),
        lambda: worker.store.announce(presence),
    ]
    private_server.kill()
    for call in calls:
        with pytest.raises(StoreUnavailable):
            await call()
    private_server.start()
    for call in calls:
        await call()
    assert await worker.finish(lease) is Settled.SUCCEEDED


async def test_accepted_jobs_survive_a_killed_server(here: Processes, private_server: ServerProcess) -> None:
    store, worker = await here.open(), await here.hire()
    jobs = [await submit(store) for _ in range(20)]
    first = await worker.lease()
    private_server.restart()
    assert (await store.depth()).unfinished == 20
    assert await worker.extend(first) is LeaseState.HELD
    leases = [first]
    for _ in range(2):  # Its reader finds the connection broken once.
        with suppress(StoreUnavailable):
            leases += await worker.take(20 - len(leases))
    assert {lease.job_id for lease in leases} == {job.job_id for job in jobs}
    assert await worker.store.settle([finished(lease) for lease in leases]) == [Settled.SUCCEEDED] * 20


async def test_a_waiting_claim_outlives_a_restart(here: Processes, private_server: ServerProcess) -> None:
    store, worker = await here.open(), await here.hire()
    waiting = asyncio.create_task(worker.look(wait=timedelta(seconds=1)))
    await store.ping()
    private_server.restart()
    with suppress(StoreUnavailable):
        await waiting
    job = await submit(store)
    await worker.run(job.job_id)


async def test_a_waiting_client_outlives_a_restart(here: Processes, private_server: ServerProcess) -> None:
    """Its registration may be lost with the connection; the watch is made again."""
    store, worker = await here.open(), await here.hire()
    job = await submit(store)
    waiting = asyncio.create_task(store.wait(job.job_id, timedelta(seconds=20)))
    await store.ping()
    private_server.restart()
    await worker.run(job.job_id)
    async with asyncio.timeout(7):
        assert (await waiting).status is JobStatus.SUCCEEDED


async def test_a_reader_of_events_outlives_a_restart(here: Processes, private_server: ServerProcess) -> None:
    store, worker = await here.open(), await here.hire()
    job = await submit(store, stream=True)
    reader = Reader(store.events(job.job_id))
    await wait_until(lambda: reader.seen)
    private_server.restart()
    lease = await worker.lease()
    await worker.store.append(lease, 1, "after")
    await worker.finish(lease)
    async with asyncio.timeout(8):
        await reader.task
    assert [event.text for event in reader.seen if event.text] == ["after"]
    assert reader.seen[-1].status is JobStatus.SUCCEEDED


async def test_a_server_that_hangs_counts_as_away_and_mixes_up_no_answers(
    here: Processes, private_server: ServerProcess
) -> None:
    store = await here.open()
    jobs = [await submit(store, metadata={"n": n}) for n in range(10)]
    private_server.pause()
    try:
        answers = await asyncio.gather(*(store.get(job.job_id) for job in jobs), return_exceptions=True)
    finally:
        private_server.resume()
    assert {type(answer) for answer in answers} == {StoreUnavailable}
    # In another order: answers that were left on the wire would come in the old one.
    again = await asyncio.gather(*(store.get(job.job_id) for job in reversed(jobs)))
    assert [job.metadata for job in again] == [job.metadata for job in reversed(jobs)]


@pytest.mark.parametrize("read", [True, False], ids=["reads", "other calls"])
async def test_a_server_that_hangs_is_away_for_all_at_the_same_time(
    here: Processes, private_server: ServerProcess, monkeypatch: pytest.MonkeyPatch, *, read: bool
) -> None:
    """However many call: none waits for one that waits in vain."""
    monkeypatch.setattr(wire, "PATIENCE_S", 0.5)
    monkeypatch.setattr(gateway, "TURN_WITHIN_S", 0.5)
    store = await here.open()
    job = await submit(store)
    private_server.pause()
    began = time.monotonic()
    try:
        calls = [store.get(job.job_id) if read else store.depth() for _ in range(6 * MAX_BATCH)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
    finally:
        private_server.resume()
    assert {type(answer) for answer in answers} == {StoreUnavailable}
    assert time.monotonic() - began < 2
    assert await store.get(job.job_id) == job


async def test_a_caller_that_gives_up_leaves_no_answer_behind_for_the_next(
    here: Processes, private_server: ServerProcess
) -> None:
    store = await here.open()
    one, other = await submit(store), await submit(store, metadata={"which": "other"})
    private_server.pause()
    gives_up = asyncio.create_task(store.get(one.job_id))
    await asyncio.wait([gives_up], timeout=0.05)
    gives_up.cancel()
    private_server.resume()
    for _ in range(3):
        assert await store.get(other.job_id) == other


@pytest.mark.parametrize("stale_reads", ["yes", "no"])
async def test_a_server_that_became_a_replica_counts_as_away(
    here: Processes, private_server: ServerProcess, stale_reads: str
) -> None:
    """After a failover the old address may go on answering, and refuses every write: READONLY, MASTERDOWN."""
    store, worker = await here.open(), await here.hire()
    await submit(store)
    lease = await worker.lease()
    calls: list[Callable[[], Awaitable[object]]] = [
        worker.store.interrupt,
        store.tend,
        lambda: store.submit(submission()),
        lambda: store.cancel(lease.job_id),
        lambda: worker.store.claim(1, NOW),
        lambda: worker.store.extend([lease]),
        lambda: worker.store.settle([finished(lease)]),
        worker.heartbeat,
        here.open,
    ]
    raw = private_server.connect()
    await command(raw, "CONFIG", "SET", "replica-serve-stale-data", stale_reads)
    await command(raw, "REPLICAOF", "127.0.0.1", 1)
    for call in calls:
        with pytest.raises(StoreUnavailable):
            await call()
    await command(raw, "REPLICAOF", "NO", "ONE")
    await raw.aclose()
    assert await worker.finish(lease) is Settled.SUCCEEDED
    await submit(store)
    await worker.run()


async def test_a_server_that_loads_its_data_counts_as_away(
    here: Processes, private_server: ServerProcess
) -> None:
    """After a restart it says LOADING to every call, for as long as that takes."""
    store, worker = await here.open(), await here.hire()
    await submit(store)
    lease = await worker.lease()
    calls: list[Callable[[], Awaitable[object]]] = [
        store.ping,
        store.depth,
        store.tend,
        lambda: store.submit(submission()),
        lambda: store.wait(lease.job_id, NOW),
        lambda: worker.store.claim(1, NOW),
        lambda: worker.store.extend([lease]),
        lambda: worker.store.settle([finished(lease)]),
        worker.heartbeat,
        here.open,
    ]
    async with private_server.connect() as raw:
        await holds_much(raw)
        private_server.kill()
        for _ in range(2):  # A sweep, when one is due, and then its reader find their connections broken.
            with pytest.raises(StoreUnavailable):
                await worker.store.claim(1, NOW)
        private_server.start(loading=True)
        for call in calls:
            with pytest.raises(StoreUnavailable, match="is loading"):
                await call()
        await command(raw, "CONFIG", "SET", "key-load-delay", 0)
        await has(raw, "loading", 0)
    assert await worker.finish(lease) is Settled.SUCCEEDED
    await submit(store)
    await worker.run()


async def holds_much(raw: Redis) -> None:
    """As a snapshot: the delay in loading is one for each of its keys."""
    await command(raw, "EVAL", "for i = 1, 5000 do redis.call('SET', i, ARGV[1]) end", 0, urandom(1000))
    await command(raw, "BGREWRITEAOF")
    await has(raw, "aof_rewrite_in_progress", 0)


async def has(raw: Redis, name: str, value: object) -> None:
    async def so() -> bool:
        return (await command(raw, "INFO", "persistence"))[name] == value

    await wait_until(so)


async def test_a_store_that_is_away_at_the_start_says_so(
    here: Processes, private_server: ServerProcess
) -> None:
    private_server.kill()
    with pytest.raises(StoreUnavailable):
        await here.open()
    private_server.start()
    store: Store = await here.open()
    await store.ping()


async def test_a_worker_keeps_its_seat_over_a_restart(here: Processes, private_server: ServerProcess) -> None:
    worker: Worker = await here.hire()
    seat = worker.seat
    private_server.restart()
    assert await worker.heartbeat() == seat


async def test_rights_that_are_taken_away_for_a_while_lose_no_outcome(
    here: Processes, private_server: ServerProcess
) -> None:
    store, worker = await here.open(), await here.hire()
    await submit(store)
    lease = await worker.lease()
    raw = private_server.connect()
    await command(raw, "ACL", "SETUSER", "default", "-evalsha")
    for call in (store.tend, here.open, lambda: worker.store.settle([finished(lease)])):
        with pytest.raises(StoreUnavailable):
            await call()
    await command(raw, "ACL", "SETUSER", "default", "+evalsha")
    await raw.aclose()
    assert await worker.finish(lease) is Settled.SUCCEEDED


async def test_scripts_that_are_flushed_as_fast_as_they_are_loaded_count_as_away(
    here: Processes, private_server: ServerProcess
) -> None:
    """Not as damage, after which a worker gives its outcome up."""
    raw = private_server.connect()
    async with relayed(private_server.port) as relay:
        store = RedisStore(here.settings(redis_url=relay.url))
        await store.start()
        relay.before_passing = lambda _: command(raw, "SCRIPT", "FLUSH")
        with pytest.raises(StoreUnavailable):
            await store.tend()
        relay.before_passing = None
        await store.tend()
        await store.aclose()
    await raw.aclose()
