"""Claim: work goes to one worker, oldest first, at once, and no more than was asked for."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from redis.asyncio import Redis

from common.errors import SeatLost
from common.job import JobStatus
from common.store import Claimed, Store
from tests.keyspace import command
from tests.processes import Processes
from tests.requests import submit
from tests.workers import NOW, Worker


async def test_a_claimed_job_runs(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, "hi")
    lease = await worker.lease()
    assert (lease.job_id, lease.attempt, lease.request.prompt) == (job.job_id, 1, "hi")
    assert (lease.reclaimed, lease.alone) == (False, False)
    record = await gateway.get(job.job_id)
    assert (record.status, record.attempt, record.worker) == (JobStatus.RUNNING, 1, worker.name)
    (attempt,) = record.attempts
    assert (attempt.n, attempt.worker, attempt.ended_at, attempt.outcome) == (1, worker.name, None, None)
    assert record.started_at == attempt.started_at
    assert abs(attempt.started_at - datetime.now(UTC)) < timedelta(seconds=30)


async def test_queued_for_is_told_on_the_first_start_only(gateway: Store, worker: Worker) -> None:
    await submit(gateway)
    first = await worker.lease()
    assert first.queued_for is not None
    assert timedelta(0) <= first.queued_for < timedelta(seconds=5)
    await worker.fail(first)
    assert (await worker.lease()).queued_for is None


async def test_the_oldest_job_comes_first(gateway: Store, worker: Worker) -> None:
    jobs = [await submit(gateway) for _ in range(5)]
    leases = await worker.take(3) + await worker.take(2)
    assert [lease.job_id for lease in leases] == [job.job_id for job in jobs]


async def test_no_more_is_claimed_than_asked_for(gateway: Store, worker: Worker) -> None:
    for _ in range(5):
        await submit(gateway)
    assert len((await worker.look(2)).leases) == 2
    backlog = await gateway.depth()
    assert (backlog.queued, backlog.running, backlog.lag, backlog.pending) == (3, 2, 3, 2)


async def test_hundreds_are_claimed_in_one_call(gateway: Store, worker: Worker) -> None:
    await asyncio.gather(*(submit(gateway) for _ in range(300)))
    leases = await worker.take(300)
    assert len({lease.token for lease in leases}) == 300
    assert len({lease.job_id for lease in leases}) == 300


async def test_a_job_is_claimed_by_one_worker(processes: Processes, gateway: Store) -> None:
    for _ in range(40):
        await submit(gateway)
    workers = [await processes.hire() for _ in range(4)]
    claims = await asyncio.gather(*(worker.take(10) for worker in workers))
    assert len({lease.job_id for leases in claims for lease in leases}) == 40


async def test_a_claim_on_an_empty_queue_waits_no_longer_than_asked(worker: Worker) -> None:
    began = time.monotonic()
    assert await worker.look(wait=NOW) == Claimed()
    assert time.monotonic() - began < 0.5
    began = time.monotonic()
    assert await worker.look(wait=timedelta(milliseconds=200)) == Claimed()
    assert 0.15 < time.monotonic() - began < 1.0


async def test_a_waiting_claim_gets_a_new_job_at_once(gateway: Store, worker: Worker) -> None:
    waiting = asyncio.create_task(worker.look(wait=timedelta(seconds=2)))
    await worker.store.ping()
    began = time.monotonic()
    await submit(gateway)
    assert len((await waiting).leases) == 1
    assert time.monotonic() - began < 0.5


async def test_interrupt_ends_a_waiting_claim_at_once(gateway: Store, worker: Worker) -> None:
    waiting = asyncio.create_task(worker.look(wait=timedelta(seconds=2)))
    began = time.monotonic()
    while not waiting.done() and time.monotonic() - began < 1:
        await worker.store.interrupt()
        await asyncio.wait([waiting], timeout=0.02)
    assert (await waiting) == Claimed()
    assert time.monotonic() - began < 1
    await submit(gateway)
    assert len((await worker.look()).leases) == 1


async def test_interrupt_without_a_waiting_claim_does_nothing(gateway: Store, worker: Worker) -> None:
    await worker.store.interrupt()
    await submit(gateway)
    await worker.run()


@pytest.mark.real_server
async def test_interrupt_does_no_harm_while_the_server_holds_writes_back(
    gateway: Store, worker: Worker, raw: Redis
) -> None:
    """As in a failover. Redis 7.0 panics when a read that waits for its end is unblocked."""
    await worker.look()
    await submit(gateway)
    await command(raw, "CLIENT", "PAUSE", 500, "WRITE")
    claiming = asyncio.create_task(worker.store.claim(1, timedelta(seconds=2)))
    await asyncio.sleep(0.1)
    await worker.store.interrupt()
    assert len((await claiming).leases) == 1


async def test_a_claim_needs_a_seat(gateway: Store) -> None:
    await submit(gateway)
    with pytest.raises(SeatLost):
        await gateway.claim(1, NOW)
    assert (await gateway.depth()).running == 0


async def test_a_claim_that_wants_nothing_fresh_leaves_new_jobs_alone(gateway: Store, worker: Worker) -> None:
    await submit(gateway)
    assert await worker.look(fresh=False) == Claimed()
    assert (await gateway.depth()).lag == 1
    await worker.run()


async def test_jobs_that_are_held_are_not_claimed_again(gateway: Store, worker: Worker) -> None:
    await submit(gateway)
    lease = await worker.lease()
    assert await worker.look() == Claimed()
    assert await worker.look(fresh=False) == Claimed()
    await worker.finish(lease)
    assert await worker.look() == Claimed()


async def test_a_job_submitted_before_the_first_worker_came_is_not_lost(
    processes: Processes, gateway: Store
) -> None:
    job = await submit(gateway)
    late = await processes.hire()
    await late.run(job.job_id)
