"""Delayed retries: not before they are due, then once, by whoever keeps the time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from common.fleet import Tended
from common.job import JobStatus, Outcome
from common.store import Claimed, Settled, Store
from tests.processes import Processes
from tests.requests import submit
from tests.waiting import wait_until
from tests.workers import Worker

SHORT = timedelta(milliseconds=150)


async def test_a_delayed_retry_waits_outside_the_queue(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    lease = await worker.lease()
    assert await worker.fail(lease, retry_in=timedelta(hours=1)) is Settled.RETRYING
    assert (await gateway.get(job.job_id)).status is JobStatus.QUEUED
    backlog = await gateway.depth()
    assert (backlog.retrying, backlog.queued, backlog.running) == (1, 0, 0)
    assert (backlog.lag, backlog.pending) == (0, 0)
    assert await worker.look() == Claimed()


async def test_next_in_tells_when_the_retry_is_due(gateway: Store, worker: Worker) -> None:
    await submit(gateway)
    await worker.fail(await worker.lease(), retry_in=timedelta(seconds=30))
    next_in = (await gateway.tend()).next_in
    assert next_in is not None
    assert timedelta(seconds=25) < next_in <= timedelta(seconds=30)


async def test_next_in_tells_the_earliest_of_retries_and_deadlines(gateway: Store, worker: Worker) -> None:
    await submit(gateway)
    await worker.fail(await worker.lease(), retry_in=timedelta(seconds=60))
    await submit(gateway, expires_in_s=20)
    next_in = (await gateway.tend()).next_in
    assert next_in is not None
    assert timedelta(seconds=15) < next_in <= timedelta(seconds=20)


async def test_nothing_is_due_when_nothing_waits(gateway: Store, worker: Worker) -> None:
    assert await gateway.tend() == Tended(next_in=None)
    await submit(gateway)
    await worker.lease()
    assert await gateway.tend() == Tended(next_in=None)


async def test_a_retry_is_queued_again_when_due_and_not_before(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, "hi", params={"n": 1})
    first = await worker.lease()
    await worker.fail(first, retry_in=SHORT)
    failed_at = (await gateway.get(job.job_id)).attempts[0].ended_at
    assert (await gateway.tend()).promoted == 0

    async def promoted() -> bool:
        return (await gateway.tend()).promoted == 1

    await wait_until(promoted)
    second = await worker.lease(job.job_id)
    assert (second.attempt, second.request) == (2, first.request)
    record = await gateway.get(job.job_id)
    assert failed_at
    assert record.attempts[1].started_at - failed_at >= SHORT
    await worker.finish(second)
    assert [line.outcome for line in (await gateway.get(job.job_id)).attempts] == [
        Outcome.ERROR,
        Outcome.SUCCEEDED,
    ]


async def test_many_time_keepers_queue_a_retry_once(processes: Processes, gateway: Store) -> None:
    worker = await processes.hire()
    for _ in range(20):
        await submit(gateway)
    for lease in await worker.take(20):
        await worker.fail(lease, retry_in=SHORT)
    keepers = [await processes.open() for _ in range(3)]
    promoted = 0

    async def all_promoted() -> bool:
        nonlocal promoted
        promoted += sum(tended.promoted for tended in await asyncio.gather(*(k.tend() for k in keepers)))
        return promoted >= 20

    await wait_until(all_promoted)
    assert promoted == 20
    backlog = await gateway.depth()
    assert (backlog.queued, backlog.lag, backlog.retrying) == (20, 20, 0)
    assert len(await worker.take(20)) == 20


async def test_a_promoted_retry_wakes_a_waiting_worker(gateway: Store, worker: Worker) -> None:
    await submit(gateway)
    await worker.fail(await worker.lease(), retry_in=SHORT)
    waiting = asyncio.create_task(worker.look(wait=timedelta(seconds=2)))

    async def claimed() -> bool:
        await gateway.tend()
        return waiting.done()

    await wait_until(claimed, timeout=1.5)
    assert len((await waiting).leases) == 1


async def test_a_delayed_retry_may_be_delayed_again(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    for attempt in (1, 2):
        lease = await worker.lease(job.job_id)
        assert lease.attempt == attempt
        await worker.fail(lease, retry_in=timedelta(milliseconds=20))

        async def promoted() -> bool:
            return (await gateway.tend()).promoted == 1

        await wait_until(promoted)
    await worker.run(job.job_id)
