"""A job that ends early ends in the engine, too: no tokens are computed for nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from common.job import JobStatus, Outcome
from lab.records import JobRecord
from tests.vllm.trial import SLOTS, Trial, tokens

pytestmark = pytest.mark.vllm

#: Many times longer than what these tests take.
LONG = tokens(8000)
#: A renewal of the lease, which brings the news, and the engine's next steps.
ABORTED_WITHIN_S = 2.0
#: An engine that has taken every core may hold up everybody else for seconds; without the abort it would
#: write for more than twenty.
TRIES = 4

Ending = Callable[[str], Awaitable[JobRecord]]


async def seconds_to_abort(trial: Trial, ending: Ending, **body: object) -> float:
    """From the end of a job to the end of its tokens; of a few tries the first that is soon enough."""
    late = float("inf")
    for _ in range(TRIES):
        job_id = await trial.submit(params=LONG, **body)
        await trial.engine.until_running(1)
        job = await ending(job_id)
        assert job.finished_at
        await trial.engine.until_running(0)
        # Job records have the time of the server, which runs on this machine.
        late = time.time() - job.finished_at.timestamp()
        if late <= ABORTED_WITHIN_S:
            break
    return late


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_job_leaves_the_engine_within_two_seconds(trial: Trial, stream: bool) -> None:
    async def cancelled(job_id: str) -> JobRecord:
        return (await trial.api.cancel(job_id)).value

    assert await seconds_to_abort(trial, cancelled, stream=stream) <= ABORTED_WITHIN_S
    assert (await trial.stats()).cancelled >= 1


async def test_a_cancelled_job_takes_no_other_along(trial: Trial) -> None:
    # Long enough for all of them to be seen at work at once, however busy the machine is.
    orders = [LONG, *[tokens(2500)] * (SLOTS - 1)]
    ids = await asyncio.gather(*(trial.submit(params=params) for params in orders))
    await trial.engine.until_running(SLOTS)
    await trial.api.cancel(ids[0])
    others = await trial.all_ended(ids[1:])
    assert all(job.succeeded and len(job.attempts) == 1 for job in others)


async def test_a_deadline_that_passes_ends_the_call_within_two_seconds(trial: Trial) -> None:
    async def expired(job_id: str) -> JobRecord:
        job = await trial.ended(job_id)
        assert job.status is JobStatus.EXPIRED
        assert [attempt.outcome for attempt in job.attempts] == [Outcome.EXPIRED]
        return job

    assert await seconds_to_abort(trial, expired, expires_in_s=3) <= ABORTED_WITHIN_S


async def test_an_attempt_that_takes_too_long_leaves_the_engine(trial: Trial) -> None:
    async def timed_out(job_id: str) -> JobRecord:
        job = await trial.ended(job_id)
        assert job.status is JobStatus.FAILED
        assert {attempt.outcome for attempt in job.attempts} == {Outcome.TIMEOUT}
        return job

    assert await seconds_to_abort(trial, timed_out, timeout_s=2) <= ABORTED_WITHIN_S
