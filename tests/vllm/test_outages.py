"""An engine that dies, comes late or hangs: what ran loses one attempt, what waits loses none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from common.job import JobStatus, Outcome
from tests.e2e.labs import RunningLab
from tests.vllm.engine import Engine
from tests.vllm.trial import SLOTS, Trial, counted, tokens, trial_in
from tests.waiting import wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]


async def test_an_engine_killed_in_the_middle_costs_each_running_job_one_attempt(
    breakable: Engine, trial: Trial
) -> None:
    running = [await trial.submit(params=tokens(3000)) for _ in range(SLOTS)]
    waiting = [await trial.submit(params=tokens(50)) for _ in range(SLOTS)]
    # Nothing comes between this and the kill: on a busy machine the jobs would end in the meantime.
    await trial.engine.until_running(SLOTS)
    await breakable.kill()
    await trial.until_ready(False)
    await trial.until(lambda stats: not stats.running)
    late = [await trial.submit(params=tokens(50)) for _ in range(SLOTS)]
    begun = sum(len(job.attempts) for job in await trial.jobs([*running, *waiting]))
    await breakable.start()
    await trial.nothing_is_read_until_it_is_up(3 * SLOTS)
    for job in await trial.all_ended(running):
        assert counted(job) == [Outcome.ERROR, Outcome.SUCCEEDED], job
    for job in await trial.all_ended(waiting):
        assert counted(job) == [Outcome.SUCCEEDED], job
    for job in await trial.all_ended(late):
        assert [attempt.outcome for attempt in job.attempts] == [Outcome.SUCCEEDED], job
    ended = sum(len(job.attempts) for job in await trial.jobs([*running, *waiting]))
    assert ended == begun + len(running) + len(waiting), "attempts were begun while nobody was there"


async def test_before_the_engine_is_up_jobs_wait_and_lose_nothing(
    breakable: Engine, start_lab: Callable[[Engine], RunningLab]
) -> None:
    await breakable.kill()
    async with trial_in(start_lab(breakable), breakable) as trial:
        ids = [await trial.submit(params=tokens(20)) for _ in range(2 * SLOTS)]
        await trial.until_ready(False)
        await breakable.start()
        await trial.nothing_is_read_until_it_is_up(len(ids))
        for job in await trial.all_ended(ids):
            assert [attempt.outcome for attempt in job.attempts] == [Outcome.SUCCEEDED], job


async def test_a_hung_engine_costs_one_attempt_at_its_time_limit_and_is_used_again_once_it_answers(
    breakable: Engine, trial: Trial
) -> None:
    # Longer than both workers take to find the probe unanswered: whoever reads the retry must know.
    job_id = await trial.submit(params=tokens(1000), timeout_s=12)
    await trial.engine.until_running(1)
    await breakable.pause()
    await trial.until_ready(False)
    late = [await trial.submit(params=tokens(20)) for _ in range(SLOTS)]

    async def tried() -> bool:
        return Outcome.TIMEOUT in [attempt.outcome for attempt in (await trial.job(job_id)).attempts]

    await wait_until(tried, timeout=20)
    waiting = await trial.jobs(late)
    assert {(job.status, job.attempt) for job in waiting} == {(JobStatus.QUEUED, 0)}
    await breakable.resume()
    job = await trial.ended(job_id)
    # An attempt that was given back before, since the engine did not answer the probe, is no matter here.
    assert "The attempt took longer than 12 s." in [attempt.error for attempt in job.attempts]
    assert counted(job) == [Outcome.TIMEOUT, Outcome.SUCCEEDED], job
    for job in await trial.all_ended(late):
        assert [attempt.outcome for attempt in job.attempts] == [Outcome.SUCCEEDED], job
