"""Get: what is known of a job, and the difference between never known and long gone."""

from __future__ import annotations

import time

import pytest

from common.errors import JobExpired, JobNotFound
from common.job import JobStatus, new_job_id
from common.store import Store
from tests.requests import submit
from tests.waiting import wait_until
from tests.workers import Worker

YEAR_MS = 365 * 86_400_000


async def test_a_job_never_known_is_not_found(gateway: Store) -> None:
    with pytest.raises(JobNotFound):
        await gateway.get(new_job_id())


async def test_an_id_older_than_any_result_has_expired(gateway: Store) -> None:
    with pytest.raises(JobExpired):
        await gateway.get(new_job_id(now_ms=time.time_ns() // 1_000_000 - YEAR_MS))


@pytest.mark.parametrize("text", ["", "no-such-id", "*", "a:b", "0" * 400, "é\n"])
async def test_what_is_no_id_is_not_found(gateway: Store, text: str) -> None:
    with pytest.raises(JobNotFound):
        await gateway.get(text)


@pytest.mark.settings(result_ttl_s=1, idempotency_ttl_s=1)
async def test_a_result_kept_long_enough_expires(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    await worker.run(job.job_id)
    assert (await gateway.get(job.job_id)).status is JobStatus.SUCCEEDED

    async def expired() -> bool:
        try:
            await gateway.get(job.job_id)
        except JobExpired:
            return True
        except JobNotFound:
            pytest.fail("an ended job must not turn into one that was never known")
        return False

    await wait_until(expired)


@pytest.mark.settings(result_ttl_s=1, idempotency_ttl_s=1)
async def test_a_job_that_waits_longer_than_results_are_kept_is_still_known(
    gateway: Store, worker: Worker
) -> None:
    waiting = await submit(gateway)
    running = await submit(gateway)
    first = await worker.lease(waiting.job_id)
    older_than_a_result = time.monotonic() + 1.3
    await wait_until(lambda: time.monotonic() > older_than_a_result)
    assert (await gateway.get(running.job_id)).status is JobStatus.QUEUED
    assert (await gateway.get(waiting.job_id)).status is JobStatus.RUNNING
    await worker.finish(first)


async def test_every_process_reads_the_same_record(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    await worker.run(job.job_id)
    assert await gateway.get(job.job_id) == await worker.store.get(job.job_id)
