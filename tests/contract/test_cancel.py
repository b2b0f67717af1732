"""Cancel: a job that has not ended ends here; one that has stays as it is."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from common.errors import JobEnded, JobExpired, JobNotFound
from common.job import JobStatus, Outcome, new_job_id
from common.store import Claimed, LeaseState, Settled, Store
from tests.requests import submit
from tests.waiting import wait_until
from tests.workers import Worker


async def test_a_cancelled_queued_job_never_runs(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    cancelled = await gateway.cancel(job.job_id)
    assert cancelled.status is JobStatus.CANCELLED
    assert cancelled.finished_at
    assert (cancelled.attempts, cancelled.result, cancelled.error) == ((), None, None)
    assert await gateway.get(job.job_id) == cancelled
    assert await worker.look() == Claimed()


async def test_a_cancelled_running_job_loses_its_lease(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, stream=True)
    lease = await worker.lease()
    cancelled = await gateway.cancel(job.job_id)
    assert [(line.n, line.outcome) for line in cancelled.attempts] == [(1, Outcome.CANCELLED)]
    assert cancelled.attempts[0].ended_at == cancelled.finished_at
    assert await worker.extend(lease) is LeaseState.CANCELLED
    assert await worker.store.append(lease, 1, "late") is False
    assert await worker.finish(lease) is Settled.LOST
    assert await worker.fail(lease) is Settled.LOST
    assert await worker.release(lease) is Settled.LOST
    assert await gateway.get(job.job_id) == cancelled


async def test_a_cancelled_waiting_retry_is_not_tried_again(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    await worker.fail(await worker.lease(), retry_in=timedelta(milliseconds=50))
    cancelled = await gateway.cancel(job.job_id)
    assert [line.outcome for line in cancelled.attempts] == [Outcome.ERROR]
    due = time.monotonic() + 0.1
    await wait_until(lambda: time.monotonic() > due)
    assert (await gateway.tend()).promoted == 0
    assert await worker.look() == Claimed()
    backlog = await gateway.depth()
    assert (backlog.retrying, backlog.cancelled) == (0, 1)


async def test_cancelling_twice_answers_cancelled_twice(gateway: Store) -> None:
    job = await submit(gateway)
    assert await gateway.cancel(job.job_id) == await gateway.cancel(job.job_id)
    assert (await gateway.depth()).cancelled == 1


async def test_a_succeeded_job_cannot_be_cancelled(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    await worker.run()
    record = await gateway.get(job.job_id)
    with pytest.raises(JobEnded) as ended:
        await gateway.cancel(job.job_id)
    assert ended.value.status == JobStatus.SUCCEEDED
    assert await gateway.get(job.job_id) == record


async def test_a_failed_job_cannot_be_cancelled(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    await worker.fail(await worker.lease(), retry_in=None)
    with pytest.raises(JobEnded, match="failed"):
        await gateway.cancel(job.job_id)


async def test_an_expired_job_cannot_be_cancelled(gateway: Store) -> None:
    job = await submit(gateway, expires_in_s=0.05)

    async def expired() -> bool:
        return bool((await gateway.tend()).expired)

    await wait_until(expired)
    with pytest.raises(JobEnded, match="expired"):
        await gateway.cancel(job.job_id)


async def test_an_unknown_job_cannot_be_cancelled(gateway: Store) -> None:
    with pytest.raises(JobNotFound):
        await gateway.cancel(new_job_id())
    with pytest.raises(JobExpired):
        await gateway.cancel(new_job_id(now_ms=1_000_000_000_000))


async def test_a_cancelled_job_is_no_dead_letter(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    await worker.lease()
    await gateway.cancel(job.job_id)
    assert await gateway.list_dead() == []
