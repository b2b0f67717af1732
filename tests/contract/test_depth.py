"""Depth: every job is in exactly one of the counts, read in one instant."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from common.store import Store
from tests.requests import submit
from tests.workers import Worker


async def test_an_empty_store_counts_nothing(gateway: Store) -> None:
    backlog = await gateway.depth()
    assert (backlog.submitted, backlog.unfinished, backlog.ended, backlog.dead_letters) == (0, 0, 0, 0)
    assert (backlog.lag, backlog.pending, backlog.unaccounted) == (0, 0, 0)
    assert abs(backlog.at - datetime.now(UTC)) < timedelta(seconds=30)


async def test_every_state_has_its_count(gateway: Store, worker: Worker) -> None:
    for _ in range(8):
        await submit(gateway, expires_in_s=3600)
    succeeds, fails, is_cancelled, expires, retries, goes_on = await worker.take(6)
    await worker.finish(succeeds)
    await worker.fail(fails, retry_in=None)
    await gateway.cancel(is_cancelled.job_id)
    await worker.fail(expires, retry_in=timedelta(hours=2))
    await worker.fail(retries, retry_in=timedelta(minutes=1))
    backlog = await gateway.depth()
    assert (backlog.submitted, backlog.queued, backlog.running, backlog.retrying) == (8, 2, 1, 1)
    assert (backlog.succeeded, backlog.failed, backlog.cancelled, backlog.expired) == (1, 1, 1, 1)
    assert (backlog.awaiting_upload, backlog.dead_letters) == (0, 1)
    assert (backlog.lag, backlog.pending) == (2, 1)
    assert (backlog.unfinished, backlog.ended, backlog.unaccounted) == (4, 4, 0)
    await worker.finish(goes_on)


async def test_lag_stays_exact_whatever_leaves_the_queue(gateway: Store, worker: Worker) -> None:
    """The server's own lag turns unknown when an undelivered entry is deleted; this one must not."""
    jobs = [await submit(gateway) for _ in range(6)]
    await gateway.cancel(jobs[5].job_id)
    await gateway.cancel(jobs[0].job_id)
    assert (await gateway.depth()).lag == 4
    first, second = await worker.take(2)
    await worker.finish(second)
    await gateway.cancel(jobs[3].job_id)
    await worker.fail(first)
    backlog = await gateway.depth()
    assert (backlog.lag, backlog.pending, backlog.queued) == (2, 0, 2)


async def test_lag_is_known_before_the_first_worker_came(gateway: Store) -> None:
    await submit(gateway)
    backlog = await gateway.depth()
    assert (backlog.lag, backlog.pending) == (1, 0)


async def test_ended_jobs_stay_in_the_counts(gateway: Store, worker: Worker) -> None:
    for _ in range(10):
        await submit(gateway)
    for lease in await worker.take(10):
        await worker.finish(lease)
    backlog = await gateway.depth()
    assert (backlog.submitted, backlog.succeeded, backlog.unfinished) == (10, 10, 0)
