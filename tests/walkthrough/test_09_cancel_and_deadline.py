"""9. A job that nobody wants any more is cancelled; one that comes too late expires by itself."""

from __future__ import annotations

from datetime import timedelta

from common.job import JobStatus
from common.store import LeaseState, Store
from tests.requests import submit
from tests.waiting import wait_until
from tests.workers import Worker


async def test_cancel(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    lease = await worker.lease()

    assert (await gateway.cancel(job.job_id)).status is JobStatus.CANCELLED

    # The worker learns so at its next heartbeat and closes the model call.
    assert await worker.extend(lease) is LeaseState.CANCELLED


async def test_deadline(gateway: Store) -> None:
    job = await submit(gateway, expires_in_s=0.05)

    async def expired() -> bool:
        return (await gateway.tend()).expired == 1

    await wait_until(expired)
    job = await gateway.wait(job.job_id, timedelta(seconds=1))
    assert job.status is JobStatus.EXPIRED
