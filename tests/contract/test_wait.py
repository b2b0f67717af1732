"""Wait: the ended job as soon as it has ended, or the job as it stands when the time is up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import count

import pytest

from common.errors import JobExpired, JobNotFound
from common.job import Job, JobStatus, new_job_id
from common.store import Store
from tests.processes import Processes
from tests.requests import submit
from tests.workers import NOW, Worker

LONG = timedelta(seconds=10)
#: What "at once" means on a busy machine; the re-check that backs up a lost message comes after 5 s.
PROMPTLY = 1.0


async def waiting(store: Store, job_id: str, timeout: timedelta = LONG) -> asyncio.Task[Job]:
    """A waiter that has begun to wait."""
    task = asyncio.create_task(store.wait(job_id, timeout))
    await store.ping()
    await asyncio.sleep(0.05)
    assert not task.done()
    return task


async def test_an_ended_job_is_given_at_once(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    await worker.run()
    began = time.monotonic()
    assert (await gateway.wait(job.job_id, LONG)).status is JobStatus.SUCCEEDED
    assert time.monotonic() - began < PROMPTLY


async def test_a_job_that_does_not_end_is_given_as_it_stands(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    assert (await gateway.wait(job.job_id, NOW)).status is JobStatus.QUEUED
    await worker.lease()
    began = time.monotonic()
    assert (await gateway.wait(job.job_id, timedelta(milliseconds=200))).status is JobStatus.RUNNING
    assert 0.15 < time.monotonic() - began < 0.2 + PROMPTLY


async def test_a_job_whose_chunks_keep_coming_is_given_when_the_time_is_up(
    gateway: Store, worker: Worker
) -> None:
    """Each chunk wakes the waiter, and must not give it more time."""
    job = await submit(gateway, stream=True)
    lease = await worker.lease()
    numbers = count(1)

    async def chatter() -> None:
        while True:
            await worker.store.append(lease, next(numbers), "chunk")

    # So many that one has always just come.
    chunks = asyncio.gather(*(chatter() for _ in range(8)))
    try:
        began = time.monotonic()
        async with asyncio.timeout(5):
            assert (await gateway.wait(job.job_id, timedelta(milliseconds=200))).status is JobStatus.RUNNING
        assert 0.15 < time.monotonic() - began < 0.2 + PROMPTLY
        assert not chunks.done()
    finally:
        chunks.cancel()
        await asyncio.wait([chunks])


async def finish(gateway: Store, worker: Worker) -> None:
    await worker.run()


async def fail(gateway: Store, worker: Worker) -> None:
    await worker.fail(await worker.lease(), retry_in=None)


async def cancel(gateway: Store, worker: Worker) -> None:
    await gateway.cancel((await gateway.list_jobs())[0].job_id)


async def expire_with_its_retry(gateway: Store, worker: Worker) -> None:
    await worker.fail(await worker.lease(), retry_in=timedelta(hours=1))


ENDINGS = {
    JobStatus.SUCCEEDED: finish,
    JobStatus.FAILED: fail,
    JobStatus.CANCELLED: cancel,
    JobStatus.EXPIRED: expire_with_its_retry,
}


@pytest.mark.parametrize(("status", "end"), ENDINGS.items(), ids=list(ENDINGS))
async def test_every_ending_wakes_the_waiter_at_once(
    status: JobStatus, end: Callable[[Store, Worker], Awaitable[None]], gateway: Store, worker: Worker
) -> None:
    job = await submit(gateway, expires_in_s=600)
    waiter = await waiting(gateway, job.job_id)
    began = time.monotonic()
    await end(worker.store, worker)
    assert (await waiter).status is status
    assert time.monotonic() - began < PROMPTLY


async def test_the_deadline_wakes_the_waiter(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, expires_in_s=0.3)
    waiter = await waiting(gateway, job.job_id)
    began = time.monotonic()
    while not waiter.done() and time.monotonic() - began < 2:
        await worker.store.tend()
    assert (await waiter).status is JobStatus.EXPIRED
    assert time.monotonic() - began < 0.3 + PROMPTLY


async def test_a_retry_does_not_wake_the_waiter(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    waiter = await waiting(gateway, job.job_id)
    await worker.fail(await worker.lease())
    second = await worker.lease()
    assert not waiter.done()
    await worker.finish(second)
    assert (await waiter).attempt == 2


async def test_everybody_who_waits_is_woken(processes: Processes, worker: Worker) -> None:
    gateways = [await processes.open() for _ in range(3)]
    jobs = [await submit(gateways[0]) for _ in range(10)]
    waiters = [await waiting(gateway, job.job_id) for gateway in gateways for job in jobs[:5]] + [
        asyncio.create_task(gateways[0].wait(job.job_id, LONG)) for job in jobs for _ in range(5)
    ]
    began = time.monotonic()
    for lease in await worker.take(10):
        await worker.finish(lease)
    records = await asyncio.gather(*waiters)
    assert {record.status for record in records} == {JobStatus.SUCCEEDED}
    assert time.monotonic() - began < 2 * PROMPTLY


async def test_a_waiter_that_gives_up_does_not_disturb_the_others(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    stays = await waiting(gateway, job.job_id)
    leaves = await waiting(gateway, job.job_id)
    leaves.cancel()
    assert (await gateway.wait(job.job_id, timedelta(milliseconds=30))).status is JobStatus.QUEUED
    await worker.run()
    assert (await stays).status is JobStatus.SUCCEEDED


async def test_waiting_for_an_unknown_job_fails_at_once(gateway: Store) -> None:
    with pytest.raises(JobNotFound):
        await gateway.wait(new_job_id(), LONG)
    with pytest.raises(JobExpired):
        await gateway.wait(new_job_id(now_ms=1_000_000_000_000), LONG)


@pytest.mark.parametrize("steps", range(6))
async def test_a_wait_that_is_given_up_as_it_is_woken_ends(
    steps: int, gateway: Store, worker: Worker
) -> None:
    """A cancellation that comes together with the news must not be lost: somebody waits for its end."""
    job = await submit(gateway)
    waiting = asyncio.create_task(gateway.wait(job.job_id, timedelta(seconds=60)))
    await worker.run(job.job_id)
    for _ in range(steps):
        await asyncio.sleep(0)
    waiting.cancel()
    done, _ = await asyncio.wait([waiting], timeout=3)
    assert done
