"""Idempotency keys: one key, one job, for as long as the key is remembered."""

from __future__ import annotations

import asyncio

import pytest

from common.errors import IdempotencyConflict
from common.job import JobStatus
from common.store import Store
from tests.processes import Processes
from tests.requests import submission
from tests.waiting import wait_until
from tests.workers import Worker


async def test_the_same_key_gives_the_same_job_and_no_second_entry(gateway: Store) -> None:
    first = await gateway.submit(submission(idempotency_key="k"))
    again = await gateway.submit(submission(idempotency_key="k"))
    assert (first.replayed, again.replayed) == (False, True)
    assert again.job == first.job
    backlog = await gateway.depth()
    assert (backlog.submitted, backlog.lag) == (1, 1)


@pytest.mark.parametrize("change", [{"prompt": "other"}, {"model": "m"}, {"metadata": {"a": 1}}])
async def test_the_same_key_with_another_body_is_a_conflict(gateway: Store, change: dict[str, str]) -> None:
    await gateway.submit(submission(idempotency_key="k"))
    with pytest.raises(IdempotencyConflict):
        await gateway.submit(submission(idempotency_key="k", **change))
    assert (await gateway.depth()).submitted == 1


async def test_keys_belong_to_their_owner(gateway: Store) -> None:
    ann = await gateway.submit(submission(idempotency_key="k", owner="ann"))
    bob = await gateway.submit(submission("other", idempotency_key="k", owner="bob"))
    nobody = await gateway.submit(submission(idempotency_key="k"))
    assert len({answer.job.job_id for answer in (ann, bob, nobody)}) == 3


async def test_owner_and_key_do_not_run_into_each_other(gateway: Store) -> None:
    one = await gateway.submit(submission(idempotency_key="b:c", owner="a"))
    other = await gateway.submit(submission(idempotency_key="c", owner="a:b"))
    assert one.job.job_id != other.job.job_id


@pytest.mark.parametrize("key", ["x" * 255, "späte ☃", "a b*?[c]", "{tag}", "a\nb"])
async def test_any_text_is_a_key(gateway: Store, key: str) -> None:
    first = await gateway.submit(submission(idempotency_key=key))
    assert (await gateway.submit(submission(idempotency_key=key))).job == first.job


async def test_a_replay_after_the_end_shows_the_ended_job(gateway: Store, worker: Worker) -> None:
    await gateway.submit(submission(idempotency_key="k"))
    lease = await worker.run(text="the answer")
    again = await gateway.submit(submission(idempotency_key="k"))
    assert again.replayed
    assert (again.job.job_id, again.job.status) == (lease.job_id, JobStatus.SUCCEEDED)
    assert again.job.result
    assert again.job.result.text == "the answer"


async def test_a_conflict_is_still_one_after_the_end(gateway: Store, worker: Worker) -> None:
    await gateway.submit(submission(idempotency_key="k"))
    await worker.run()
    with pytest.raises(IdempotencyConflict):
        await gateway.submit(submission("other", idempotency_key="k"))


@pytest.mark.settings(idempotency_ttl_s=1, result_ttl_s=1)
async def test_a_key_is_free_again_when_its_time_after_the_end_is_over(
    gateway: Store, worker: Worker
) -> None:
    first = await gateway.submit(submission(idempotency_key="k"))
    await worker.run()

    async def accepted_anew() -> bool:
        return not (await gateway.submit(submission(idempotency_key="k"))).replayed

    await wait_until(accepted_anew)
    second = await gateway.submit(submission(idempotency_key="k"))
    assert second.job.job_id != first.job.job_id


async def test_submits_racing_with_one_key_make_one_job(processes: Processes) -> None:
    gateways = [await processes.open() for _ in range(3)]
    answers = await asyncio.gather(
        *(gateway.submit(submission(idempotency_key="k")) for gateway in gateways for _ in range(10))
    )
    assert len({answer.job.job_id for answer in answers}) == 1
    assert sum(not answer.replayed for answer in answers) == 1
    assert (await gateways[0].depth()).submitted == 1
