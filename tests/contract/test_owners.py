"""Owners: to each, the jobs of others do not exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from common.errors import JobExpired, JobNotFound
from common.job import Job, JobStatus, new_job_id
from common.store import GatewayStore, JobEvent, Store
from tests.requests import submission, submit
from tests.workers import Worker

#: Everything that can be asked of one job, as one owner.
Ask = Callable[[GatewayStore, str, str], Awaitable[object]]


async def follow(store: GatewayStore, job_id: str, owner: str) -> list[JobEvent]:
    return [event async for event in store.events(job_id, owner=owner)]


ASK: dict[str, Ask] = {
    "get": lambda store, job_id, owner: store.get(job_id, owner=owner),
    "wait": lambda store, job_id, owner: store.wait(job_id, timedelta(seconds=5), owner=owner),
    "cancel": lambda store, job_id, owner: store.cancel(job_id, owner=owner),
    "events": follow,
}


@pytest.mark.parametrize("ask", ASK.values(), ids=ASK.keys())
async def test_the_job_of_another_does_not_exist(gateway: Store, worker: Worker, ask: Ask) -> None:
    """Alive or ended, owned or not; and asking leaves it as it was."""
    ended = await submit(gateway, owner="ann")
    await worker.run()
    for job in (ended, await submit(gateway, owner="ann"), await submit(gateway)):
        before = await gateway.get(job.job_id)
        with pytest.raises(JobNotFound):
            await ask(gateway, job.job_id, "ben")
        assert await gateway.get(job.job_id) == before


@pytest.mark.parametrize("ask", ASK.values(), ids=ASK.keys())
async def test_an_old_job_of_another_answers_as_an_old_job_that_never_was(gateway: Store, ask: Ask) -> None:
    """Or the answer would tell that it is there."""
    old = new_job_id(1_600_000_000_000)
    await gateway.submit(submission(owner="ann", job_id=old))
    for job_id in (old, new_job_id(1_600_000_000_000)):
        with pytest.raises(JobExpired):
            await ask(gateway, job_id, "ben")


async def test_an_owner_may_do_everything_with_its_own(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, owner="ann")
    assert (await gateway.get(job.job_id, owner="ann")).owner == "ann"
    assert (await gateway.cancel(job.job_id, owner="ann")).status is JobStatus.CANCELLED
    assert await follow(gateway, job.job_id, "ann")
    other = await submit(gateway, owner="ann")
    await worker.run()
    assert (await gateway.wait(other.job_id, timedelta(seconds=5), owner="ann")).status.terminal


# ---- lists


def ids(jobs: list[Job]) -> list[str]:
    return [job.job_id for job in jobs]


async def test_a_list_holds_ones_own_jobs_however_many_others_there_are(gateway: Store) -> None:
    mine: list[str] = []
    for number in range(60):
        job = await submit(gateway, owner="ann" if number % 20 == 0 else "ben")
        mine += [job.job_id] if number % 20 == 0 else []
    assert sorted(ids(await gateway.list_jobs(owner="ann"))) == sorted(mine)
    first = ids(await gateway.list_jobs(owner="ann", limit=2))
    rest = ids(await gateway.list_jobs(owner="ann", before=first[-1]))
    assert sorted(first + rest) == sorted(mine)
    assert await gateway.list_jobs(owner="nobody") == []
    assert len(await gateway.list_jobs(limit=100)) == 60


async def test_a_list_does_not_tell_whether_the_job_of_another_exists(gateway: Store) -> None:
    await submit(gateway, owner="ben")
    theirs = await submit(gateway, owner="ann")
    assert await gateway.list_jobs(owner="ben", before=theirs.job_id) == []
    assert await gateway.list_jobs(owner="ben", before=new_job_id()) == []


async def bury(store: Store, worker: Worker, owner: str) -> str:
    job = await submit(store, owner=owner)
    await worker.fail(await worker.lease(job.job_id), retry_in=None)
    return job.job_id


async def test_dead_letters_are_listed_to_their_owner_in_pages(gateway: Store, worker: Worker) -> None:
    mine: list[str] = []
    for number in range(50):
        owner = "ann" if number % 24 == 0 else "ben"
        dead = await bury(gateway, worker, owner)
        mine += [dead] if owner == "ann" else []
    assert [letter.job_id for letter in await gateway.list_dead(owner="ann")] == mine[::-1]
    page = await gateway.list_dead(owner="ann", limit=2)
    page += await gateway.list_dead(owner="ann", limit=2, before=page[-1].cursor)
    assert [letter.job_id for letter in page] == mine[::-1]
    assert await gateway.list_dead(owner="ann", before=page[-1].cursor) == []


async def test_a_redrive_takes_ones_own_alone(gateway: Store, worker: Worker) -> None:
    mine, theirs = await bury(gateway, worker, "ann"), await bury(gateway, worker, "ben")
    assert (await gateway.redrive(owner="ann", ids=[theirs])).jobs == ()
    assert [old for old, _ in (await gateway.redrive(owner="ann", dry_run=True)).jobs] == [mine]
    assert [old for old, _ in (await gateway.redrive(owner="ann")).jobs] == [mine]
    assert [letter.job_id for letter in await gateway.list_dead()] == [theirs]
