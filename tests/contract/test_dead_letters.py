"""Dead letters: every failed job leaves one, and it can be sent again as a new job."""

from __future__ import annotations

import asyncio
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from common.job import Cause, JobStatus
from common.store import DeadLetter, Settled, Store
from tests.requests import submission, submit
from tests.waiting import wait_until
from tests.workers import Worker


async def kill(
    store: Store, worker: Worker, prompt: str = "hello", cause: Cause = Cause.PERMANENT, **fields: object
) -> str:
    """A job that has failed for good."""
    job = await submit(store, prompt, **fields)
    await worker.fail(await worker.lease(job.job_id), cause, f"{prompt} broke", retry_in=None)
    return job.job_id


def ids(letters: list[DeadLetter]) -> list[str]:
    return [letter.job_id for letter in letters]


async def test_a_dead_letter_tells_what_died_and_why(gateway: Store, worker: Worker) -> None:
    sent = submission("hi", owner="ann", model="m", metadata={"a": 1}, params={"b": [2]})
    await gateway.submit(sent)
    await worker.fail(await worker.lease(), Cause.ERROR, "once")
    await worker.fail(await worker.lease(), Cause.PERMANENT, 'no "such" model', retry_in=None)
    (letter,) = await gateway.list_dead()
    assert (letter.job_id, letter.owner, letter.request) == (sent.job_id, "ann", sent.request)
    assert (letter.cause, letter.error, letter.attempts) == (Cause.PERMANENT, 'no "such" model', 2)
    assert abs(letter.died_at - datetime.now(UTC)) < timedelta(seconds=30)
    assert letter.died_at - timedelta(seconds=1) < (await gateway.get(sent.job_id)).finished_at  # pyright: ignore[reportOperatorIssue]


async def test_dead_letters_are_listed_newest_first_in_pages(gateway: Store, worker: Worker) -> None:
    dead = [await kill(gateway, worker) for _ in range(5)]
    assert ids(await gateway.list_dead()) == dead[::-1]
    page = await gateway.list_dead(limit=2)
    assert ids(page) == [dead[4], dead[3]]
    page = await gateway.list_dead(limit=2, before=page[-1].cursor)
    assert ids(page) == [dead[2], dead[1]]
    page = await gateway.list_dead(limit=2, before=page[-1].cursor)
    assert ids(page) == [dead[0]]
    assert await gateway.list_dead(before=page[-1].cursor) == []


async def test_a_failed_job_leaves_one_dead_letter(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    lease = await worker.lease(job.job_id)
    for _ in range(3):
        assert await worker.fail(lease, retry_in=None) is Settled.FAILED
    assert ids(await gateway.list_dead()) == [job.job_id]
    assert (await gateway.depth()).dead_letters == 1


async def test_a_redriven_job_is_a_new_job_with_a_new_budget(gateway: Store, worker: Worker) -> None:
    sent = submission("hi", owner="ann", model="m", metadata={"a": 1}, params={"b": [2]}, stream=True)
    await gateway.submit(sent)
    await worker.fail(await worker.lease(), retry_in=None)
    ended = await gateway.get(sent.job_id)
    redriven = await gateway.redrive()
    ((old, new),) = redriven.jobs
    assert (old, redriven.unusable) == (sent.job_id, ())
    job = await gateway.get(new)
    assert (job.status, job.attempt, job.redrive_of) == (JobStatus.QUEUED, 0, sent.job_id)
    assert (job.owner, job.model, job.metadata) == ("ann", "m", {"a": 1})
    assert await gateway.get(sent.job_id) == ended
    assert await worker.fail(await worker.lease(new)) is Settled.RETRYING
    lease = await worker.lease(new)
    assert (lease.attempt, lease.request) == (2, sent.request)
    await worker.finish(lease)
    assert (await gateway.get(new)).redrive_of == sent.job_id


async def test_a_redriven_job_gets_its_whole_time_again(gateway: Store, worker: Worker) -> None:
    await kill(gateway, worker, expires_in_s=60)
    ((_, new),) = (await gateway.redrive()).jobs
    job = await gateway.get(new)
    assert job.deadline_at == job.created_at + timedelta(seconds=60)


async def test_a_redrive_counts_as_a_submit_and_empties_the_queue_of_the_dead(
    gateway: Store, worker: Worker
) -> None:
    await kill(gateway, worker)
    await gateway.redrive()
    backlog = await gateway.depth()
    assert (backlog.submitted, backlog.queued, backlog.failed, backlog.dead_letters) == (2, 1, 1, 0)
    assert (await gateway.redrive()).jobs == ()


async def test_a_redrive_begins_with_the_oldest_and_keeps_to_its_limit(
    gateway: Store, worker: Worker
) -> None:
    dead = [await kill(gateway, worker) for _ in range(4)]
    assert [old for old, _ in (await gateway.redrive(limit=2)).jobs] == dead[:2]
    assert ids(await gateway.list_dead()) == [dead[3], dead[2]]
    assert [old for old, _ in (await gateway.redrive(limit=2)).jobs] == dead[2:]


async def test_a_redrive_by_id_takes_those_alone(gateway: Store, worker: Worker) -> None:
    dead = [await kill(gateway, worker) for _ in range(4)]
    redriven = await gateway.redrive(ids=[dead[3], dead[1], "unknown"])
    assert [old for old, _ in redriven.jobs] == [dead[1], dead[3]]
    assert ids(await gateway.list_dead()) == [dead[2], dead[0]]
    assert (await gateway.redrive(ids=[])).jobs == ()


async def test_a_redrive_by_id_that_is_repeated_tells_the_same_new_jobs(
    gateway: Store, worker: Worker
) -> None:
    """P4: a client that lost the answer asks again, whatever has become of the new jobs meanwhile."""
    dead = [await kill(gateway, worker) for _ in range(4)]
    first = await gateway.redrive(ids=[dead[2], dead[0], dead[3]], limit=2)
    assert sorted(old for old, _ in first.jobs) == [dead[0], dead[2]]
    new = dict(first.jobs)
    assert dict((await gateway.redrive(ids=[dead[2], dead[0], dead[3]], limit=2)).jobs) == new
    await worker.run(new[dead[0]])
    await worker.fail(await worker.lease(new[dead[2]]), retry_in=None)
    again = await gateway.redrive(ids=[dead[1], dead[2], dead[0]])
    assert again.jobs[0][0] == dead[1]
    assert dict(again.jobs[1:]) == new
    assert (await gateway.depth()).submitted == 4 + 3
    assert (await gateway.redrive(ids=[dead[0], dead[3]], dry_run=True)).jobs == ((dead[3], ""),)


async def test_a_redrive_without_ids_that_is_repeated_takes_the_next_ones(
    gateway: Store, worker: Worker
) -> None:
    """It names no jobs, so it cannot know which it had: the first ones are found by where they came from."""
    dead = [await kill(gateway, worker) for _ in range(4)]
    first = await gateway.redrive(limit=2, cause=Cause.PERMANENT)
    again = await gateway.redrive(limit=2, cause=Cause.PERMANENT)
    assert [old for old, _ in (*first.jobs, *again.jobs)] == dead
    assert (await gateway.redrive()).jobs == ()
    listed = {job.redrive_of: job.job_id for job in await gateway.list_jobs() if job.redrive_of}
    assert listed == dict((*first.jobs, *again.jobs))


async def test_two_redrives_of_one_dead_job_at_once_make_one_new_job(gateway: Store, worker: Worker) -> None:
    dead = await kill(gateway, worker)
    reports = await asyncio.gather(*(gateway.redrive(ids=[dead]) for _ in range(8)))
    assert len({report.jobs for report in reports}) == 1
    assert (await gateway.depth()).submitted == 2


@pytest.mark.vandal
async def test_a_second_letter_of_one_dead_job_makes_no_second_new_job(
    gateway: Store, worker: Worker, raw: Redis, namespace: str
) -> None:
    dead = await kill(gateway, worker)
    ((_, fields),) = cast(list[Any], await raw.xrange(f"{namespace}:dlq"))
    await raw.xadd(f"{namespace}:dlq", fields)
    ((_, new), (_, same)) = (await gateway.redrive()).jobs
    assert new == same
    assert (await gateway.depth()).submitted == 2
    assert dead not in ids(await gateway.list_dead())


@pytest.mark.settings(result_ttl_s=1, idempotency_ttl_s=1)
async def test_what_was_redriven_is_known_for_as_long_as_results_are_kept(
    gateway: Store, worker: Worker
) -> None:
    dead = await kill(gateway, worker)
    assert len((await gateway.redrive(ids=[dead])).jobs) == 1

    async def forgotten() -> bool:
        return not (await gateway.redrive(ids=[dead])).jobs

    await wait_until(forgotten)


async def test_a_redrive_by_cause_takes_those_alone(gateway: Store, worker: Worker) -> None:
    dead = [await kill(gateway, worker, cause=cause) for cause in (Cause.TIMEOUT, Cause.ERROR, Cause.TIMEOUT)]
    redriven = await gateway.redrive(cause=Cause.TIMEOUT, limit=1)
    assert [old for old, _ in redriven.jobs] == [dead[0]]
    redriven = await gateway.redrive(cause=Cause.TIMEOUT)
    assert [old for old, _ in redriven.jobs] == [dead[2]]
    assert ids(await gateway.list_dead()) == [dead[1]]


async def test_a_dry_run_tells_what_would_go_and_changes_nothing(gateway: Store, worker: Worker) -> None:
    dead = [await kill(gateway, worker) for _ in range(3)]
    letters, backlog = await gateway.list_dead(), await gateway.depth()
    redriven = await gateway.redrive(limit=2, dry_run=True)
    assert redriven.jobs == ((dead[0], ""), (dead[1], ""))
    assert await gateway.list_dead() == letters
    assert replace(await gateway.depth(), at=backlog.at) == backlog


async def test_a_redrive_finds_letters_beyond_the_first_page(gateway: Store, worker: Worker) -> None:
    oldest = await kill(gateway, worker, cause=Cause.TIMEOUT)
    for _ in range(120):
        await submit(gateway)
    for lease in await worker.take(120):
        await worker.fail(lease, Cause.PERMANENT, retry_in=None)
    newest = await kill(gateway, worker, cause=Cause.TIMEOUT)
    assert len((await gateway.redrive()).jobs) == 100
    assert [old for old, _ in (await gateway.redrive(cause=Cause.TIMEOUT)).jobs] == [newest]
    assert oldest not in ids(await gateway.list_dead())


async def test_a_redriven_job_does_not_answer_to_the_old_idempotency_key(
    gateway: Store, worker: Worker
) -> None:
    first = submission(idempotency_key="k")
    await gateway.submit(first)
    await worker.fail(await worker.lease(), retry_in=None)
    await gateway.redrive()
    again = await gateway.submit(submission(idempotency_key="k"))
    assert (again.replayed, again.job.job_id) == (True, first.job_id)


@pytest.mark.settings(result_ttl_s=1, idempotency_ttl_s=1)
async def test_a_letter_can_be_redriven_after_its_record_has_expired(gateway: Store, worker: Worker) -> None:
    job_id = await kill(gateway, worker)
    ((old, new),) = (await gateway.redrive()).jobs
    assert old == job_id
    await worker.run(new)


@pytest.mark.real_server
async def test_a_redrive_of_large_requests_holds_few_of_them_at_a_time(
    gateway: Store, worker: Worker
) -> None:
    size, count = 500_000, 200
    dead = [await kill(gateway, worker, "x" * size) for _ in range(count)]
    tracemalloc.start()
    try:
        redriven = await gateway.redrive(limit=count)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [old for old, _ in redriven.jobs] == dead
    assert peak < count * size / 2
