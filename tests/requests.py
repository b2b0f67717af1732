"""Requests and submissions that tests send."""

from __future__ import annotations

from typing import Any

from common.job import Job, JobRequest, Submission, new_job_id
from common.store import GatewayStore


def request(prompt: str = "hello", **fields: Any) -> JobRequest:
    return JobRequest(prompt=prompt, **fields)


def submission(
    prompt: str = "hello",
    *,
    owner: str = "",
    idempotency_key: str | None = None,
    job_id: str | None = None,
    **fields: Any,
) -> Submission:
    return Submission(
        job_id=job_id or new_job_id(),
        request=request(prompt, **fields),
        owner=owner,
        idempotency_key=idempotency_key,
    )


async def submit(store: GatewayStore, prompt: str = "hello", **fields: Any) -> Job:
    """Submits a job and returns its record."""
    return (await store.submit(submission(prompt, **fields))).job
