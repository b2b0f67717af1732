"""4. A job that fails every time is not tried for ever: it ends failed and leaves a dead letter."""

from __future__ import annotations

import pytest

from common.job import Cause, JobStatus
from common.store import Settled, Store
from tests.requests import submit
from tests.workers import Worker


@pytest.mark.settings(max_attempts=3)
async def test_the_budget_ends_in_a_dead_letter(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, "the model chokes on this")

    answers = [await worker.fail(await worker.lease(job.job_id)) for _ in range(3)]
    assert answers == [Settled.RETRYING, Settled.RETRYING, Settled.FAILED]

    job = await gateway.get(job.job_id)
    assert job.status is JobStatus.FAILED
    assert job.error
    assert job.error.cause is Cause.ERROR

    (letter,) = await gateway.list_dead()
    assert (letter.job_id, letter.attempts) == (job.job_id, 3)
    assert letter.request
    assert letter.request.prompt == "the model chokes on this"
