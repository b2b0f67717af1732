"""Listing: recent jobs, newest first, in pages, by status."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from dataclasses import replace
from datetime import timedelta

import pytest

from common.job import Job, JobStatus
from common.store import Store
from tests.requests import submit
from tests.waiting import wait_until
from tests.workers import Worker


def ids(jobs: list[Job]) -> list[str]:
    return [job.job_id for job in jobs]


async def submit_in_order(store: Store, count: int) -> list[str]:
    """Jobs accepted in different milliseconds, so that their order is not a matter of taste."""
    jobs: list[str] = []
    for _ in range(count):
        jobs.append((await submit(store)).job_id)
        born = time.time_ns() // 1_000_000
        await wait_until(lambda: time.time_ns() // 1_000_000 > born, every=0.0005)  # noqa: B023
    return jobs


async def test_recent_jobs_are_listed_newest_first(gateway: Store) -> None:
    jobs = await submit_in_order(gateway, 5)
    assert ids(await gateway.list_jobs()) == jobs[::-1]
    assert ids(await gateway.list_jobs(limit=2)) == [jobs[4], jobs[3]]


async def test_pages_go_on_before_a_job(gateway: Store) -> None:
    jobs = await submit_in_order(gateway, 5)
    assert ids(await gateway.list_jobs(limit=2, before=jobs[3])) == [jobs[2], jobs[1]]
    assert ids(await gateway.list_jobs(limit=2, before=jobs[1])) == [jobs[0]]
    assert await gateway.list_jobs(before=jobs[0]) == []


async def test_jobs_of_one_instant_are_all_on_some_page(gateway: Store) -> None:
    """Pages must neither skip nor repeat jobs that were accepted together."""
    jobs = await asyncio.gather(*(submit(gateway) for _ in range(20)))
    seen: list[str] = []
    page = await gateway.list_jobs(limit=3)
    while page:
        seen += ids(page)
        assert len(seen) <= 20
        page = await gateway.list_jobs(limit=3, before=seen[-1])
    assert sorted(seen) == sorted(job.job_id for job in jobs)


async def test_a_listed_job_is_the_record_itself(gateway: Store, worker: Worker) -> None:
    await submit(gateway, model="m", metadata={"a": 1})
    await worker.run()
    (listed,) = await gateway.list_jobs()
    assert listed == await gateway.get(listed.job_id)


async def test_jobs_are_listed_by_status(gateway: Store, worker: Worker) -> None:
    jobs = [(await submit(gateway, expires_in_s=3600)).job_id for _ in range(6)]
    leases = {lease.job_id: lease for lease in await worker.take(5)}
    await worker.finish(leases[jobs[0]])
    await worker.fail(leases[jobs[1]], retry_in=None)
    await gateway.cancel(jobs[2])
    await worker.fail(leases[jobs[3]], retry_in=timedelta(hours=2))
    by_status = {status: ids(await gateway.list_jobs(status=status)) for status in JobStatus}
    assert by_status == {
        JobStatus.AWAITING_UPLOAD: [],
        JobStatus.SUCCEEDED: [jobs[0]],
        JobStatus.FAILED: [jobs[1]],
        JobStatus.CANCELLED: [jobs[2]],
        JobStatus.EXPIRED: [jobs[3]],
        JobStatus.RUNNING: [jobs[4]],
        JobStatus.QUEUED: [jobs[5]],
    }


async def test_a_status_is_found_however_far_back(gateway: Store, worker: Worker) -> None:
    first = await submit(gateway)
    await worker.run()
    await submit_in_order(gateway, 30)
    assert ids(await gateway.list_jobs(status=JobStatus.SUCCEEDED, limit=2)) == [first.job_id]


@pytest.mark.settings(recent_max=3)
async def test_only_so_many_are_kept(gateway: Store) -> None:
    jobs = await submit_in_order(gateway, 5)
    assert ids(await gateway.list_jobs()) == jobs[:1:-1]


@pytest.mark.settings(recent_max=0)
async def test_the_listing_can_be_switched_off(gateway: Store) -> None:
    await submit(gateway)
    assert await gateway.list_jobs() == []


@pytest.mark.settings(result_ttl_s=1, idempotency_ttl_s=1)
async def test_expired_results_leave_the_listing(gateway: Store, worker: Worker) -> None:
    await submit(gateway)
    waiting = await submit(gateway)
    await worker.run()

    async def one_left() -> bool:
        return ids(await gateway.list_jobs()) == [waiting.job_id]

    await wait_until(one_left)


async def test_an_unknown_job_to_go_on_from_is_no_error(gateway: Store) -> None:
    await submit(gateway)
    await gateway.list_jobs(before="no-such-job")


async def test_a_list_leaves_long_results_out(gateway: Store, worker: Worker) -> None:
    for text in ("short", "x" * 100_000):
        job = await submit(gateway)
        await worker.run(job.job_id, text)
    long, short = await gateway.list_jobs(limit=2)
    assert (long.status, long.result) == (JobStatus.SUCCEEDED, None)
    assert short.result is not None
    whole = (await gateway.get(long.job_id)).result
    assert whole is not None
    assert len(whole.text) == 100_000


async def test_a_long_result_is_cut_off_where_it_begins(gateway: Store, worker: Worker) -> None:
    """Whatever looks like it before, and in it."""
    looks = {"a": 1, "result": ',"result":{}}', "size": 9, "more": {"x": 1, "result": {"text": "no"}}}
    job = await submit(gateway, "x", metadata=looks)
    text = ',"result":{"text":"no"}}' * 2_000
    await worker.run(job.job_id, text)
    [listed] = await gateway.list_jobs()
    whole = await gateway.get(job.job_id)
    assert whole.result is not None
    assert whole.result.text == text
    assert listed == replace(whole, result=None)


@pytest.mark.real_server
async def test_a_list_of_huge_results_is_no_burden(gateway: Store, worker: Worker) -> None:
    size, count = 2_000_000, 40
    for _ in range(count):
        job = await submit(gateway)
        await worker.run(job.job_id, "x" * size)
    tracemalloc.start()
    try:
        jobs = await gateway.list_jobs()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(jobs) == count
    assert peak < size


@pytest.mark.real_server
async def test_huge_results_are_read_few_at_a_time(gateway: Store, worker: Worker) -> None:
    size, count = 1_000_000, 160
    job = await submit(gateway)
    await worker.run(job.job_id, "x" * size)

    async def length() -> int:
        result = (await gateway.get(job.job_id)).result
        return len(result.text) if result else 0

    tracemalloc.start()
    try:
        lengths = await asyncio.gather(*(length() for _ in range(count)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert lengths == [size] * count
    assert peak < count * size / 2
