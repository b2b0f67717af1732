"""5. The model is repaired. Dead jobs are sent again as new jobs, linked to the old ones."""

from __future__ import annotations

from common.job import JobStatus
from common.store import Store
from tests.requests import submit
from tests.workers import Worker


async def test_redrive(gateway: Store, worker: Worker) -> None:
    dead = await submit(gateway, "try me later")
    await worker.fail(await worker.lease(), retry_in=None)

    # Look first: a dry run tells what would go.
    assert (await gateway.redrive(dry_run=True)).jobs == ((dead.job_id, ""),)

    ((old_id, new_id),) = (await gateway.redrive()).jobs
    assert old_id == dead.job_id
    assert await gateway.list_dead() == []

    await worker.run(new_id, "better now")
    job = await gateway.get(new_id)
    assert job.status is JobStatus.SUCCEEDED
    assert job.redrive_of == dead.job_id

    # What has ended never changes: the old job stays failed.
    assert (await gateway.get(dead.job_id)).status is JobStatus.FAILED
