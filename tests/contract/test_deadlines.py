"""Deadlines: a job whose time is over ends expired, wherever it is, and does not run."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from common.fleet import Tended
from common.job import JobStatus, Outcome
from common.store import Claimed, LeaseState, Settled, Store
from tests.processes import Processes
from tests.requests import submit
from tests.waiting import wait_until
from tests.workers import Worker

SOON_S = 0.1


async def tend_until_expired(store: Store, count: int = 1) -> None:
    expired = 0

    async def all_expired() -> bool:
        nonlocal expired
        expired += (await store.tend()).expired
        return expired >= count

    await wait_until(all_expired)
    assert expired == count


async def past(seconds: float) -> None:
    due = time.monotonic() + seconds
    await wait_until(lambda: time.monotonic() > due)


async def test_a_queued_job_expires(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, expires_in_s=SOON_S)
    await tend_until_expired(gateway)
    record = await gateway.get(job.job_id)
    assert (record.status, record.attempts, record.error) == (JobStatus.EXPIRED, (), None)
    assert record.finished_at
    assert record.deadline_at
    assert record.finished_at >= record.deadline_at
    assert await worker.look() == Claimed()


async def test_an_overdue_job_expires_at_the_claim_when_nobody_tended(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, expires_in_s=SOON_S)
    await past(SOON_S + 0.05)
    claimed = await worker.look()
    assert (claimed.leases, claimed.expired) == ((), 1)
    assert (await gateway.get(job.job_id)).status is JobStatus.EXPIRED
    assert (await gateway.tend()).expired == 0


async def test_a_running_job_expires_and_loses_its_lease(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, expires_in_s=0.3, stream=True)
    lease = await worker.lease()
    await tend_until_expired(gateway)
    record = await gateway.get(job.job_id)
    assert record.status is JobStatus.EXPIRED
    assert [line.outcome for line in record.attempts] == [Outcome.EXPIRED]
    assert await worker.extend(lease) is LeaseState.EXPIRED
    assert await worker.store.append(lease, 1, "late") is False
    assert await worker.finish(lease) is Settled.LOST
    assert await gateway.get(job.job_id) == record


async def test_a_waiting_retry_expires_at_the_deadline(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, expires_in_s=0.6)
    lease = await worker.lease()
    assert await worker.fail(lease, retry_in=timedelta(seconds=0.2)) is Settled.RETRYING
    await past(0.7)
    tended = await gateway.tend()
    assert (tended.promoted, tended.expired) == (0, 1)
    record = await gateway.get(job.job_id)
    assert record.status is JobStatus.EXPIRED
    assert [line.outcome for line in record.attempts] == [Outcome.ERROR]
    assert (await gateway.depth()).retrying == 0


async def test_a_retry_due_after_the_deadline_expires_at_once(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, expires_in_s=60)
    lease = await worker.lease()
    settled = await worker.fail(lease, message="busy", retry_in=timedelta(seconds=61))
    assert settled is Settled.EXPIRED
    record = await gateway.get(job.job_id)
    assert record.status is JobStatus.EXPIRED
    assert [(line.outcome, line.error) for line in record.attempts] == [(Outcome.ERROR, "busy")]
    assert await worker.fail(lease, message="busy", retry_in=timedelta(seconds=61)) is Settled.EXPIRED
    assert (await gateway.depth()).expired == 1


async def test_a_retry_due_before_the_deadline_is_kept(gateway: Store, worker: Worker) -> None:
    await submit(gateway, expires_in_s=60)
    lease = await worker.lease()
    assert await worker.fail(lease, retry_in=timedelta(seconds=5)) is Settled.RETRYING


@pytest.mark.settings(claim_idle_ms=400)
async def test_an_overdue_job_of_a_crashed_worker_expires_instead_of_starting_again(
    processes: Processes, gateway: Store, worker: Worker
) -> None:
    job = await submit(gateway, expires_in_s=0.3)
    await worker.lease()
    other = await processes.hire()

    async def ended() -> bool:
        claimed = await other.look()
        assert claimed.leases == ()
        return (await gateway.get(job.job_id)).status.terminal

    await wait_until(ended)
    assert (await gateway.get(job.job_id)).status is JobStatus.EXPIRED


async def test_a_job_that_ends_in_time_does_not_expire_later(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, expires_in_s=0.3)
    await worker.run()
    await past(0.35)
    assert await gateway.tend() == Tended(next_in=None)
    assert (await gateway.get(job.job_id)).status is JobStatus.SUCCEEDED


async def test_many_overdue_jobs_expire(gateway: Store, worker: Worker) -> None:
    for _ in range(30):
        await submit(gateway, expires_in_s=1)
    await worker.take(5)
    await tend_until_expired(gateway, 30)
    backlog = await gateway.depth()
    assert (backlog.expired, backlog.queued, backlog.running, backlog.lag, backlog.pending) == (
        30,
        0,
        0,
        0,
        0,
    )


async def test_an_expired_job_is_no_dead_letter(gateway: Store) -> None:
    await submit(gateway, expires_in_s=SOON_S)
    await tend_until_expired(gateway)
    assert await gateway.list_dead() == []
