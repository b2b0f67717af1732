"""3. An attempt fails with an error that may pass. The job waits a little and is tried again."""

from __future__ import annotations

from datetime import timedelta

from common.job import Cause, JobStatus, Outcome
from common.store import Settled, Store
from tests.requests import submit
from tests.waiting import wait_until
from tests.workers import Worker


async def test_an_error_is_retried(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)

    first = await worker.lease()
    backoff = timedelta(milliseconds=50)
    assert await worker.fail(first, Cause.TIMEOUT, "no answer", retry_in=backoff) is Settled.RETRYING
    assert (await gateway.depth()).retrying == 1

    # Anybody may keep the time; workers and the scaler do.
    async def due() -> bool:
        return (await gateway.tend()).promoted == 1

    await wait_until(due)
    second = await worker.lease(job.job_id)
    await worker.finish(second)

    job = await gateway.get(job.job_id)
    assert job.status is JobStatus.SUCCEEDED
    assert [line.outcome for line in job.attempts] == [Outcome.TIMEOUT, Outcome.SUCCEEDED]
