"""Submit: a job is accepted once, whole and in order, or not at all."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from common.errors import JobNotFound, QueueFull
from common.job import JobRequest, JobStatus, Submission, new_job_id
from common.store import Settled, Store
from tests.requests import submission, submit
from tests.workers import Worker


async def test_a_submitted_job_is_queued_and_can_be_read(gateway: Store) -> None:
    sent = submission("hi", owner="ann", model="tiny", metadata={"ticket": 7})
    job = (await gateway.submit(sent)).job
    assert job == await gateway.get(sent.job_id)
    assert (job.job_id, job.status, job.attempt, job.attempts) == (sent.job_id, JobStatus.QUEUED, 0, ())
    assert (job.owner, job.model, job.metadata) == ("ann", "tiny", {"ticket": 7})
    assert (job.worker, job.started_at, job.finished_at, job.result, job.error) == (None,) * 5
    assert abs(job.created_at - datetime.now(UTC)) < timedelta(seconds=30)


async def test_the_deadline_counts_from_acceptance(gateway: Store) -> None:
    job = await submit(gateway, expires_in_s=90.5)
    assert job.deadline_at == job.created_at + timedelta(seconds=90.5)
    assert (await submit(gateway)).deadline_at is None


async def test_position_is_the_number_of_jobs_queued_ahead(gateway: Store, worker: Worker) -> None:
    positions = [(await gateway.submit(submission())).position for _ in range(3)]
    assert positions == [0, 1, 2]
    await worker.run()
    assert (await gateway.submit(submission())).position == 2


REQUESTS = [
    JobRequest(prompt=""),
    JobRequest(prompt='snow ☃ nul \0 quote " back \\ line \r\n end'),
    JobRequest(messages=({"role": "user", "content": [{"type": "text", "text": "hi"}]},)),
    JobRequest(prompt="p", params={"temperature": 0.1, "n": 1, "stop": None, "deep": {"list": [1, 2.5]}}),
    JobRequest(prompt="p", params={"big": 2**53 + 1, "empty": {}, "none": []}, metadata={"empty": []}),
    JobRequest(prompt="x" * 300_000, model="m", timeout_s=1.5, expires_in_s=3600, stream=True),
]


@pytest.mark.parametrize("sent", REQUESTS, ids=lambda sent: f"{len(str(sent))}-characters")
async def test_the_worker_gets_the_request_as_it_was_sent(
    sent: JobRequest, gateway: Store, worker: Worker
) -> None:
    await gateway.submit(Submission(job_id=new_job_id(), request=sent))
    assert (await worker.lease()).request == sent


async def test_a_submit_sent_again_finds_itself(gateway: Store) -> None:
    sent = submission()
    first = await gateway.submit(sent)
    again = await gateway.submit(sent)
    assert not first.replayed
    assert first.job == again.job
    backlog = await gateway.depth()
    assert (backlog.submitted, backlog.queued, backlog.lag) == (1, 1, 1)


async def test_a_submit_sent_again_after_the_end_finds_the_ended_job(gateway: Store, worker: Worker) -> None:
    sent = submission()
    await gateway.submit(sent)
    await worker.run(sent.job_id)
    again = await gateway.submit(sent)
    assert again.replayed
    assert again.job.status is JobStatus.SUCCEEDED
    assert (await gateway.depth()).submitted == 1


async def test_a_submit_sent_again_while_it_runs_does_not_run_twice(gateway: Store, worker: Worker) -> None:
    sent = submission()
    first = await gateway.submit(sent)
    lease = await worker.lease(sent.job_id)
    again = await gateway.submit(sent)
    assert (await worker.look()).leases == ()
    assert await worker.finish(lease) is Settled.SUCCEEDED
    assert not again.replayed
    assert again.job.created_at == first.job.created_at
    assert again.position is not None
    assert again.position >= 0


async def test_a_full_queue_refuses_and_changes_nothing(gateway: Store) -> None:
    await submit(gateway)
    await submit(gateway)
    refused = submission(idempotency_key="k")
    with pytest.raises(QueueFull) as full:
        await gateway.submit(refused, max_depth=2)
    assert (full.value.depth, full.value.limit) == (2, 2)
    with pytest.raises(JobNotFound):
        await gateway.get(refused.job_id)
    assert (await gateway.depth()).submitted == 2
    assert not (await gateway.submit(refused, max_depth=3)).replayed


async def test_the_limit_counts_queued_running_and_retrying_jobs(gateway: Store, worker: Worker) -> None:
    for _ in range(3):
        await submit(gateway)
    running, retrying = await worker.take(2)
    await worker.fail(retrying, retry_in=timedelta(hours=1))
    with pytest.raises(QueueFull):
        await gateway.submit(submission(), max_depth=3)
    await worker.finish(running)
    await gateway.submit(submission(), max_depth=3)


async def test_no_limit_accepts_at_any_depth(gateway: Store) -> None:
    for _ in range(5):
        await gateway.submit(submission(), max_depth=0)
    assert (await gateway.depth()).queued == 5


async def test_a_replay_is_answered_even_when_the_queue_is_full(gateway: Store) -> None:
    sent = submission(idempotency_key="k")
    await gateway.submit(sent)
    assert (await gateway.submit(sent, max_depth=1)).job.job_id == sent.job_id
    same_key = submission(idempotency_key="k")
    assert (await gateway.submit(same_key, max_depth=1)).job.job_id == sent.job_id


async def test_submits_issued_together_are_all_accepted(gateway: Store) -> None:
    sent = [submission(f"prompt {n}") for n in range(300)]
    answers = await asyncio.gather(*(gateway.submit(one) for one in sent))
    assert [answer.job.job_id for answer in answers] == [one.job_id for one in sent]
    assert (await gateway.depth()).queued == 300


async def test_a_refused_submit_does_not_take_its_neighbours_with_it(gateway: Store) -> None:
    await gateway.submit(submission("one", idempotency_key="k"))
    good, clash, full = await asyncio.gather(
        gateway.submit(submission()),
        gateway.submit(submission("two", idempotency_key="k")),
        gateway.submit(submission(), max_depth=1),
        return_exceptions=True,
    )
    assert not isinstance(good, BaseException)
    assert [type(error).__name__ for error in (clash, full)] == ["IdempotencyConflict", "QueueFull"]
    assert (await gateway.depth()).submitted == 2
