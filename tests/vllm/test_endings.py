"""A job that ends early ends in the engine, too: no tokens are computed for nobody."""

from __future__ import annotations

import asyncio

import pytest

from common.job import JobStatus, Outcome
from tests.vllm.trial import SLOTS, Trial, tokens

pytestmark = pytest.mark.vllm

#: Many times longer than what these tests take.
LONG = tokens(8000)
#: A renewal of the lease, which brings the news, and the engine's next steps.
ABORTED_WITHIN_S = 2.0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_job_leaves_the_engine_within_two_seconds(trial: Trial, stream: bool) -> None:
    job_id = await trial.submit(stream=stream, params=LONG)
    await trial.engine.until_running(1)
    await trial.api.cancel(job_id)
    await trial.engine.until_running(0, ABORTED_WITHIN_S)
    assert (await trial.ended(job_id)).status is JobStatus.CANCELLED


async def test_a_cancelled_job_takes_no_other_along(trial: Trial) -> None:
    ids = [await trial.submit(params=LONG if n == 0 else tokens(700)) for n in range(SLOTS)]
    await trial.engine.until_running(SLOTS)
    await trial.api.cancel(ids[0])
    others = await trial.all_ended(ids[1:])
    assert all(job.succeeded and len(job.attempts) == 1 for job in others)


async def test_a_deadline_that_passes_ends_the_call_within_two_seconds(trial: Trial) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 2
    job_id = await trial.submit(params=LONG, expires_in_s=2)
    await trial.engine.until_running(1, deadline - loop.time())
    await trial.engine.until_running(0, deadline + ABORTED_WITHIN_S - loop.time())
    job = await trial.ended(job_id)
    assert job.status is JobStatus.EXPIRED
    assert [attempt.outcome for attempt in job.attempts] == [Outcome.EXPIRED]


async def test_an_attempt_that_takes_too_long_leaves_the_engine(trial: Trial) -> None:
    job_id = await trial.submit(params=LONG, timeout_s=1)
    await trial.engine.until_running(1)
    job = await trial.ended(job_id)
    await trial.engine.until_running(0, ABORTED_WITHIN_S)
    assert job.status is JobStatus.FAILED
    assert {attempt.outcome for attempt in job.attempts} == {Outcome.TIMEOUT}
