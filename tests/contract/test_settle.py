"""Settle: an attempt ends once, and only its holder can end it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from common.job import Cause, JobStatus, Outcome, Result, Usage
from common.store import Finished, LeaseState, Released, Settled, Settlement, Store
from tests.requests import submit
from tests.waiting import wait_until
from tests.workers import NOW, Worker, failed, finished


async def test_a_finished_job_has_succeeded(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, metadata={"a": 1}, model="m")
    lease = await worker.lease(job.job_id)
    assert await worker.finish(lease, "the answer") is Settled.SUCCEEDED
    record = await gateway.get(job.job_id)
    assert record.status is JobStatus.SUCCEEDED
    assert record.result == finished(lease, "the answer").result
    assert (record.error, record.metadata, record.model) == (None, {"a": 1}, "m")
    assert (record.created_at, record.attempt, record.worker) == (job.created_at, 1, worker.name)
    assert record.started_at
    assert record.finished_at
    assert record.created_at <= record.started_at <= record.finished_at
    (attempt,) = record.attempts
    assert (attempt.n, attempt.outcome, attempt.error) == (1, Outcome.SUCCEEDED, None)
    assert (attempt.started_at, attempt.ended_at) == (record.started_at, record.finished_at)


RESULTS = [
    Result(text=""),
    Result(text='snow ☃ nul \0 quote " back \\ slash', finish_reason="length"),
    Result(text="x" * 1_500_000, usage=Usage(prompt_tokens=10**9, completion_tokens=0)),
]


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: f"{len(result.text)}-characters")
async def test_the_client_reads_the_result_as_the_model_gave_it(
    result: Result, gateway: Store, worker: Worker
) -> None:
    job = await submit(gateway)
    await worker.settle(Finished(lease=await worker.lease(), result=result))
    assert (await gateway.get(job.job_id)).result == result


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause not in (Cause.CRASH, Cause.LOST)])
async def test_an_error_without_a_retry_fails_the_job_with_its_cause(
    cause: Cause, gateway: Store, worker: Worker
) -> None:
    job = await submit(gateway)
    lease = await worker.lease()
    assert await worker.fail(lease, cause, "no such model ☃", retry_in=None) is Settled.FAILED
    record = await gateway.get(job.job_id)
    assert record.status is JobStatus.FAILED
    assert record.error
    assert (record.error.cause, record.error.message) == (cause, "no such model ☃")
    assert record.attempts[0].outcome == Outcome(cause)
    assert record.attempts[0].error == "no such model ☃"
    (letter,) = await gateway.list_dead()
    assert (letter.job_id, letter.cause) == (job.job_id, cause)


async def test_an_error_with_budget_left_queues_the_job_again(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, "hi", params={"n": 1})
    first = await worker.lease()
    assert await worker.fail(first, Cause.TIMEOUT, "slow") is Settled.RETRYING
    assert (await gateway.get(job.job_id)).status is JobStatus.QUEUED
    second = await worker.lease(job.job_id)
    assert (second.attempt, second.request) == (2, first.request)
    assert (second.reclaimed, second.alone) == (False, False)
    assert second.token != first.token
    ledger = (await gateway.get(job.job_id)).attempts
    assert [(line.n, line.outcome, line.error) for line in ledger] == [
        (1, Outcome.TIMEOUT, "slow"),
        (2, None, None),
    ]


@pytest.mark.settings(max_attempts=2)
async def test_an_error_on_the_last_start_fails_the_job(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    assert await worker.fail(await worker.lease(), message="one") is Settled.RETRYING
    assert await worker.fail(await worker.lease(), message="two") is Settled.FAILED
    record = await gateway.get(job.job_id)
    assert record.status is JobStatus.FAILED
    assert record.error
    assert (record.error.cause, record.error.message) == (Cause.ERROR, "two")
    assert [line.error for line in record.attempts] == ["one", "two"]
    assert (await worker.look()).leases == ()


@pytest.mark.parametrize("kind", ["finish", "retry", "delayed retry", "fail", "release"])
async def test_settling_twice_gives_the_same_answer_and_one_effect(
    kind: str, gateway: Store, worker: Worker
) -> None:
    job = await submit(gateway)
    lease = await worker.lease()
    settlement: Settlement = {
        "finish": finished(lease),
        "retry": failed(lease),
        "delayed retry": failed(lease, retry_in=timedelta(hours=1)),
        "fail": failed(lease, retry_in=None),
        "release": Released(lease=lease),
    }[kind]
    first = await worker.settle(settlement)
    record, backlog = await gateway.get(job.job_id), await gateway.depth()
    assert await worker.settle(settlement) is first
    assert await gateway.get(job.job_id) == record
    assert replace(await gateway.depth(), at=backlog.at) == backlog


async def test_settling_twice_in_one_call_is_once(gateway: Store, worker: Worker) -> None:
    await submit(gateway)
    lease = await worker.lease()
    assert await worker.store.settle([finished(lease), finished(lease)]) == [Settled.SUCCEEDED] * 2
    assert (await gateway.depth()).succeeded == 1


async def test_what_is_settled_stays_settled(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    lease = await worker.lease()
    await worker.finish(lease, "first")
    record = await gateway.get(job.job_id)
    for other in (
        finished(lease, "second"),
        failed(lease),
        failed(lease, retry_in=None),
        Released(lease=lease),
    ):
        await worker.settle(other)
        assert await gateway.get(job.job_id) == record
    assert (await gateway.depth()).dead_letters == 0


async def test_a_retry_settled_again_after_the_next_start_does_not_touch_it(
    gateway: Store, worker: Worker
) -> None:
    job = await submit(gateway)
    first = await worker.lease()
    await worker.fail(first)
    second = await worker.lease()
    assert await worker.fail(first) in (Settled.RETRYING, Settled.LOST)
    assert (await gateway.get(job.job_id)).status is JobStatus.RUNNING
    assert await worker.extend(second) is LeaseState.HELD
    assert await worker.finish(second) is Settled.SUCCEEDED


async def test_answers_come_in_the_order_asked_whatever_the_kinds(gateway: Store, worker: Worker) -> None:
    for _ in range(5):
        await submit(gateway)
    a, b, c, d, e = await worker.take(5)
    forged = replace(e, token="not-the-token")
    answers = await worker.store.settle(
        [finished(a), failed(b), finished(forged), Released(lease=c), failed(d, retry_in=None), finished(e)]
    )
    assert answers == [
        Settled.SUCCEEDED,
        Settled.RETRYING,
        Settled.LOST,
        Settled.RELEASED,
        Settled.FAILED,
        Settled.SUCCEEDED,
    ]


async def test_hundreds_settle_in_one_call(gateway: Store, worker: Worker) -> None:
    await asyncio.gather(*(submit(gateway) for _ in range(300)))
    leases = await worker.take(300)
    answers = await worker.store.settle([finished(lease, f"r{lease.job_id}") for lease in leases])
    assert answers == [Settled.SUCCEEDED] * 300
    assert (await gateway.depth()).succeeded == 300
    last = await gateway.get(leases[-1].job_id)
    assert last.result
    assert last.result.text == f"r{last.job_id}"


async def test_many_large_results_settle_in_one_call(gateway: Store, worker: Worker) -> None:
    for _ in range(5):
        await submit(gateway)
    leases = await worker.take(5)
    answers = await worker.store.settle([finished(lease, "x" * 600_000) for lease in leases])
    assert answers == [Settled.SUCCEEDED] * 5


async def test_settling_nothing_is_allowed(worker: Worker) -> None:
    assert await worker.store.settle([]) == []


async def test_a_forged_token_ends_nothing(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    lease = await worker.lease()
    record = await gateway.get(job.job_id)
    forged = replace(lease, token="not-the-token")
    for settlement in (finished(forged), failed(forged), Released(lease=forged)):
        assert await worker.settle(settlement) is Settled.LOST
    assert await gateway.get(job.job_id) == record
    assert await worker.finish(lease) is Settled.SUCCEEDED


async def test_another_process_settles_with_the_token_alone(gateway: Store, worker: Worker) -> None:
    """The fence is the token, not the connection: a flusher may be elsewhere."""
    await submit(gateway)
    lease = await worker.lease()
    assert await gateway.settle([finished(lease)]) == [Settled.SUCCEEDED]


@pytest.mark.settings(claim_idle_ms=200)
async def test_a_late_holder_settles_when_nobody_took_over(gateway: Store, worker: Worker) -> None:
    await submit(gateway)
    lease = await worker.lease()
    ran_out = time.monotonic() + 0.25
    await wait_until(lambda: time.monotonic() > ran_out)
    assert await worker.finish(lease) is Settled.SUCCEEDED


async def test_a_released_job_is_queued_again_and_its_start_given_back(
    gateway: Store, worker: Worker
) -> None:
    job = await submit(gateway, "hi")
    first = await worker.lease()
    assert await worker.release(first) is Settled.RELEASED
    assert (await gateway.get(job.job_id)).status is JobStatus.QUEUED
    second = await worker.lease()
    assert (second.attempt, second.request.prompt) == (2, "hi")
    ledger = (await gateway.get(job.job_id)).attempts
    assert [(line.n, line.outcome) for line in ledger] == [(1, Outcome.RELEASED), (2, None)]


@pytest.mark.settings(max_attempts=1)
async def test_a_released_start_does_not_count(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    for _ in range(10):
        assert await worker.release(await worker.lease(job.job_id)) is Settled.RELEASED
    await worker.run(job.job_id)
    assert (await gateway.get(job.job_id)).attempt == 11


@pytest.mark.settings(max_attempts=2)
async def test_released_starts_leave_the_budget_whole(gateway: Store, worker: Worker) -> None:
    await submit(gateway)
    for _ in range(3):
        assert await worker.release(await worker.lease()) is Settled.RELEASED
    assert await worker.fail(await worker.lease()) is Settled.RETRYING
    assert await worker.fail(await worker.lease()) is Settled.FAILED


@pytest.mark.settings(max_attempts=2)
async def test_refunds_are_bounded(gateway: Store, worker: Worker) -> None:
    """Ten are given back; from then on a release counts as a start."""
    job = await submit(gateway)
    starts = 0
    async with asyncio.timeout(10):
        while not (await gateway.get(job.job_id)).status.terminal:
            for lease in (await worker.look()).leases:
                starts += 1
                assert starts <= 12
                await worker.release(lease)
    assert starts == 12
    assert (await gateway.get(job.job_id)).status is JobStatus.FAILED
    assert len(await gateway.list_dead()) == 1


@pytest.mark.settings(max_attempts=2)
async def test_a_refund_does_not_give_back_an_error(gateway: Store, worker: Worker) -> None:
    await submit(gateway)
    assert await worker.fail(await worker.lease()) is Settled.RETRYING
    assert await worker.release(await worker.lease()) is Settled.RELEASED
    assert await worker.fail(await worker.lease()) is Settled.FAILED


async def test_a_retry_goes_behind_what_already_waits(gateway: Store, worker: Worker) -> None:
    first = await submit(gateway)
    second = await submit(gateway)
    await worker.fail(await worker.lease(first.job_id), retry_in=NOW)
    assert [lease.job_id for lease in await worker.take(2)] == [second.job_id, first.job_id]
