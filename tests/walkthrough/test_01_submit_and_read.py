"""1. A client submits a job and reads it back. Nobody works yet, so it stays queued."""

from __future__ import annotations

from common.job import JobRequest, JobStatus, Submission, new_job_id
from common.store import Store


async def test_submit_and_read(gateway: Store) -> None:
    request = JobRequest(prompt="Name three rivers.", metadata={"ticket": 42})

    # The id is the caller's own: a submit that is sent again finds the job it made before.
    submitted = await gateway.submit(Submission(job_id=new_job_id(), request=request))
    assert submitted.position == 0

    job = await gateway.get(submitted.job.job_id)
    assert job.status is JobStatus.QUEUED
    assert job.attempt == 0
    assert job.metadata == {"ticket": 42}
