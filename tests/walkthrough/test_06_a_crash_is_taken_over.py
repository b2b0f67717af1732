"""6. A worker dies in the middle of a job. When its lease has run out, another worker begins it again."""

from __future__ import annotations

import pytest

from common.job import JobStatus, Outcome
from common.store import Store
from tests.processes import Processes
from tests.requests import submit


@pytest.mark.settings(claim_idle_ms=400)
async def test_a_crash_is_taken_over(gateway: Store, processes: Processes) -> None:
    job = await submit(gateway)

    # This one claims the job and is never heard of again: no heartbeat renews its lease.
    crashed = await processes.hire()
    await crashed.lease(job.job_id)

    survivor = await processes.hire()
    lease = await survivor.lease(job.job_id)
    assert lease.reclaimed
    await survivor.finish(lease)

    job = await gateway.get(job.job_id)
    assert job.status is JobStatus.SUCCEEDED
    assert [(line.worker, line.outcome) for line in job.attempts] == [
        (crashed.name, Outcome.CRASH),
        (survivor.name, Outcome.SUCCEEDED),
    ]
