"""What happens to a reply that is lost on the way, and to a listener that hears nonsense."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from redis.asyncio import Redis

from common.errors import StoreUnavailable
from common.fleet import Presence
from common.job import JobStatus
from common.redis_store.loader import load
from common.redis_store.store import RedisStore
from common.settings import Settings
from common.store import Store
from tests.keyspace import command
from tests.processes import Processes
from tests.relay import Relay, relayed
from tests.requests import submission, submit
from tests.servers import Server, ServerProcess
from tests.vandal import Vandal
from tests.waiting import wait_until
from tests.workers import NOW, Worker

pytestmark = [pytest.mark.server, pytest.mark.real_server]

HOUR_MS = 3_600_000


@pytest.fixture
async def relay(server: Server) -> AsyncIterator[Relay]:
    assert isinstance(server, ServerProcess)
    async with relayed(server.port) as relay:
        yield relay


@pytest.fixture
async def remote(relay: Relay, namespace: str) -> AsyncIterator[Store]:
    """A store whose replies can be lost. Nothing of it is swept: the idle time is an hour."""
    store = RedisStore(Settings(redis_url=relay.url, namespace=namespace, claim_idle_ms=HOUR_MS))
    await store.start()
    yield store
    await store.aclose()


@pytest.mark.settings(claim_idle_ms=HOUR_MS)
async def test_a_delivery_whose_reply_was_lost_is_recovered_at_once(
    relay: Relay, remote: Store, gateway: Store
) -> None:
    worker = await Worker.seated(remote, Presence(instance="pod-a"))
    await worker.look()
    job = await submit(gateway)
    relay.lose_reply_with(job.job_id.encode())
    with pytest.raises(StoreUnavailable):
        await worker.take()
    assert relay.struck.is_set()
    lease = await worker.lease(job.job_id)
    assert lease.attempt == 1
    await worker.finish(lease)


@pytest.mark.settings(claim_idle_ms=HOUR_MS)
async def test_a_begin_whose_reply_was_lost_is_not_a_second_start(
    relay: Relay, remote: Store, gateway: Store
) -> None:
    worker = await Worker.seated(remote, Presence(instance="pod-a"))
    await worker.look()
    job = await submit(gateway)
    relay.lose_reply_with(b"$3\r\nrun\r\n")
    lease = await worker.lease(job.job_id)
    assert relay.struck.is_set()
    assert lease.attempt == 1
    assert len((await gateway.get(job.job_id)).attempts) == 1
    await worker.finish(lease)


@pytest.mark.vandal
@pytest.mark.settings(claim_idle_ms=HOUR_MS)
async def test_nothing_read_together_with_an_unreadable_job_is_lost_when_that_cannot_be_given_up(
    relay: Relay, remote: Store, gateway: Store, vandal: Vandal
) -> None:
    """Else it would count as held by a worker that does not run it."""
    sound, unreadable = await submit(gateway), await submit(gateway)
    await vandal.make_unreadable(unreadable.job_id)
    worker = await Worker.seated(remote, Presence(instance="pod-a"))

    async def cut_fail(data: bytes) -> None:
        if load("fail").sha.encode() in data:
            raise ConnectionResetError

    relay.before_passing = cut_fail
    with pytest.raises(StoreUnavailable):
        await remote.claim(2, NOW)
    relay.before_passing = None
    lease = await worker.lease(sound.job_id)
    assert lease.attempt == 1
    await worker.finish(lease)
    await worker.look()
    assert (await gateway.get(unreadable.job_id)).status is JobStatus.FAILED


async def test_a_submit_whose_reply_was_lost_is_one_job(relay: Relay, remote: Store, gateway: Store) -> None:
    relay.lose_reply_with(b"accepted")
    submitted = await remote.submit(submission())
    assert relay.struck.is_set()
    assert not submitted.replayed
    assert (await gateway.depth()).submitted == 1


async def connections(raw: Redis) -> int:
    return len(str(await command(raw, "CLIENT", "LIST")).splitlines())


async def test_however_many_wait_and_submit_a_process_has_a_handful_of_connections(
    gateway: Store, worker: Worker, raw: Redis
) -> None:
    """More than the library's pool would take; it raises at once when it is empty."""
    job = await submit(gateway)
    before = await connections(raw)
    waiting = [asyncio.create_task(gateway.wait(job.job_id, timedelta(seconds=20))) for _ in range(150)]
    claiming = asyncio.create_task(worker.look(wait=timedelta(seconds=1), fresh=False))
    sent = await asyncio.gather(*(submit(gateway) for _ in range(150)))
    assert await connections(raw) - before <= 2
    await claiming
    for lease in await worker.take(len(sent) + 1):
        await worker.finish(lease)
    assert {ended.status for ended in await asyncio.gather(*waiting)} == {JobStatus.SUCCEEDED}


async def test_nonsense_on_the_channel_does_not_stop_waiting(
    gateway: Store, worker: Worker, raw: Redis, namespace: str
) -> None:
    first = await submit(gateway)
    waiting = asyncio.create_task(gateway.wait(first.job_id, timedelta(seconds=20)))
    pattern = f"{namespace}:gateway:*"
    await wait_until(lambda: command(raw, "PUBSUB", "CHANNELS", pattern))
    for channel in await command(raw, "PUBSUB", "CHANNELS", pattern):
        await command(raw, "PUBLISH", channel, b"\xff\xfe")
    before = time.monotonic()
    await worker.run(first.job_id)
    assert (await waiting).status is JobStatus.SUCCEEDED
    assert time.monotonic() - before < 3


@pytest.mark.vandal
async def test_keys_that_are_no_jobs_do_not_stop_time_keeping(
    gateway: Store, worker: Worker, raw: Redis, namespace: str
) -> None:
    for name in (b"\xff", b"not-a-job", b""):
        await command(raw, "SET", namespace.encode() + b":job:" + name, b"x")
    job = await submit(gateway)
    await gateway.tend()
    assert await command(raw, "EXISTS", f"{namespace}:job:not-a-job") == 1
    # Left there, it would trip the cleaning up after the test, which reads names as text.
    await command(raw, "DEL", namespace.encode() + b":job:\xff")
    await worker.run(job.job_id)


@pytest.mark.vandal
async def test_a_foreign_dead_letter_hides_no_other(
    gateway: Store, worker: Worker, raw: Redis, namespace: str
) -> None:
    job = await submit(gateway)
    await command(raw, "XADD", f"{namespace}:dlq", "*", "what", "is this")
    await worker.fail(await worker.lease(job.job_id), retry_in=None)
    await command(raw, "XADD", f"{namespace}:dlq", "*", "job_id", "x", "cause", "nonsense")
    assert [letter.job_id for letter in await gateway.list_dead()] == [job.job_id]
    assert len((await gateway.redrive()).jobs) == 1


@pytest.mark.settings(claim_idle_ms=1000)
async def test_a_takeover_whose_reply_was_lost_is_not_put_off(
    relay: Relay, namespace: str, processes: Processes, gateway: Store
) -> None:
    job = await submit(gateway)
    crashed = await processes.hire()
    await crashed.lease()
    store = RedisStore(Settings(redis_url=relay.url, namespace=namespace, claim_idle_ms=1000))
    await store.start()
    worker = await Worker.seated(store, Presence(instance="pod-z"))
    began = time.monotonic()
    relay.lose_reply_with(job.job_id.encode())
    with pytest.raises(StoreUnavailable):
        await worker.take()
    lease = await worker.lease(job.job_id)
    assert (lease.attempt, relay.struck.is_set()) == (2, True)
    # Idle, a sweep lock of the worker that is gone, a margin: less than twice the idle time.
    assert time.monotonic() - began < 1.9
    await worker.finish(lease)
    await store.aclose()


@pytest.mark.vandal
async def test_a_lost_registration_does_not_hide_what_a_job_says(
    gateway: Store, worker: Worker, raw: Redis, namespace: str
) -> None:
    """Pub/sub may drop: whoever watches looks again by himself."""
    job = await submit(gateway, stream=True)
    lease = await worker.lease(job.job_id)
    heard: list[str] = []

    async def listen() -> None:
        async for event in gateway.events(job.job_id):
            heard.append(event.text or "")

    listening = asyncio.create_task(listen())
    record = f"{namespace}:job:{job.job_id}"
    await wait_until(lambda: command(raw, "HEXISTS", record, "watch"))
    await command(raw, "HDEL", record, "watch")
    await worker.store.append(lease, 1, "unheard")
    await wait_until(lambda: "unheard" in heard, timeout=8)
    await worker.finish(lease)
    await asyncio.wait_for(listening, 8)


async def test_a_store_that_is_used_while_it_starts_crosses_no_replies(
    processes: Processes, gateway: Store
) -> None:
    """As a gateway's is, which answers from its first moment."""
    job_ids = [(await submit(gateway, f"job {number}")).job_id for number in range(8)]
    for _ in range(20):
        store = RedisStore(processes.settings(), connect=processes.connect)
        _, *jobs = await asyncio.gather(store.start(), *map(store.get, job_ids))
        jobs += [await store.get(job_id) for job_id in job_ids]
        await store.aclose()
        assert [job.job_id for job in jobs if job] == 2 * job_ids
