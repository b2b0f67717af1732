"""2. A worker takes a seat, claims the job, and hands in the result."""

from __future__ import annotations

from datetime import timedelta

from common.fleet import Presence
from common.job import JobStatus, Result
from common.store import Finished, Settled, Store
from tests.processes import Processes
from tests.requests import submit


async def test_a_worker_claims_and_finishes(gateway: Store, processes: Processes) -> None:
    job = await submit(gateway, "Name three rivers.")

    worker = await processes.open(instance="pod-a")
    seat = await worker.announce(Presence(instance="pod-a"))
    assert seat.worker == "worker-1"

    # A lease is the right to run one attempt. Its token is what every later call must show.
    claimed = await worker.claim(1, timedelta(seconds=1))
    (lease,) = claimed.leases
    assert lease.request.prompt == "Name three rivers."
    assert (await gateway.get(job.job_id)).status is JobStatus.RUNNING

    result = Result(text="Rhine, Danube, Elbe", finish_reason="stop")
    assert await worker.settle([Finished(lease=lease, result=result)]) == [Settled.SUCCEEDED]

    job = await gateway.get(job.job_id)
    assert job.status is JobStatus.SUCCEEDED
    assert job.result == result
