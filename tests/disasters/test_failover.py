"""A replica takes over: what it had not received is lost, and everything else goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.errors import NotDurable, StoreUnavailable
from common.job import Outcome
from common.redis_store import store as redis_store
from common.store import Store
from tests.disasters.history import Forgetting
from tests.disasters.pair import Pair
from tests.disasters.system import running
from tests.processes import Processes
from tests.requests import submission
from tests.waiting import wait_until
from tests.worker.backends import echoing
from tests.worker.running import Crew, ended

pytestmark = pytest.mark.real_server


@pytest.fixture
async def crew(behind: Processes) -> AsyncIterator[Crew]:
    started = Crew(behind)
    yield started
    await started.leave()


async def test_a_failover_takes_back_what_had_not_reached_the_replica(pair: Pair, behind: Processes) -> None:
    story = Forgetting(await behind.open(), await behind.hire("pod"))
    await story.until_the_moment()
    await pair.in_step(pair.primary)
    pair.part()
    await story.after_the_moment()
    await pair.fail_over()
    await story.is_over(behind)


async def test_with_durability_replica_a_failover_takes_no_accepted_job(
    pair: Pair, behind: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "DURABLE_WITHIN_MS", 300)
    gateway = await behind.open(durability="replica")
    accepted: list[str] = []

    async def submit_on() -> None:
        while True:
            sent = submission()
            await gateway.submit(sent)
            accepted.append(sent.job_id)

    clients = [asyncio.create_task(submit_on()) for _ in range(4)]
    await wait_until(lambda: len(accepted) > 100)
    pair.part()
    # Well over what a submit waits: without an end, clients that wait for nothing would go on for ever.
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*clients, return_exceptions=True)
    assert {type(answer) for answer in answers} == {NotDurable}
    await pair.fail_over()
    # Nobody follows the new primary: queued, but not safe.
    sent = submission(idempotency_key="key")
    with pytest.raises(NotDurable):
        await gateway.submit(sent)
    for job_id in (sent.job_id, *accepted):
        assert (await gateway.get(job_id)).job_id == job_id
    pair.primary.start()
    await pair.follow(pair.replica, pair.replica.port, pair.primary)
    assert (await gateway.submit(submission(idempotency_key="key"))).job.job_id == sent.job_id


@pytest.mark.parametrize("durability", ["server", "replica"])
@pytest.mark.parametrize("cut", [True, False], ids=["cut", "left open"])
async def test_a_planned_failover_costs_no_job_and_no_attempt(
    cut: bool, durability: str, pair: Pair, behind: Processes, crew: Crew
) -> None:
    """Connections that are left open lead to the old primary, which answers and refuses to write."""
    gateway = await behind.open(durability=durability)
    await crew.start(echoing())
    job_ids: list[str] = []
    refused: list[StoreUnavailable] = []

    async def submit_on() -> None:
        while True:
            job_ids.append(await accepted(gateway, refused))

    async with asyncio.TaskGroup() as tasks:
        clients = [tasks.create_task(submit_on()) for _ in range(4)]
        await wait_until(lambda: len(job_ids) > 50)
        await pair.swap()
        await wait_until(lambda: refused)
        before = len(job_ids)
        pair.front.lead_to(pair.replica.port)
        if cut:
            pair.front.cut()
        await wait_until(lambda: len(job_ids) > before + 50)
        for client in clients:
            client.cancel()
    for job_id in job_ids:
        attempts = (await ended(gateway, job_id)).attempts
        assert [attempt.outcome for attempt in attempts] == [Outcome.SUCCEEDED]


async def accepted(gateway: Store, refused: list[StoreUnavailable]) -> str:
    """Submits a job until it is accepted."""
    sent = submission()
    while True:
        try:
            return (await gateway.submit(sent)).job.job_id
        except StoreUnavailable as error:
            refused.append(error)
            await asyncio.sleep(0.01)


async def test_after_the_death_of_a_primary_that_was_parted_the_system_goes_on(
    pair: Pair, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A client that submits again what is lost, under the same key, has everything in the end."""
    figures: list[tuple[str, object]] = request.node.user_properties
    services = ("api", "scaler", "worker-1", "worker-2")
    async with running(pair.front.url, tmp_path, *services, claim_idle_ms="2000") as system:
        client = system.client
        async with client.busy():
            await client.has(50)
            pair.part()
            await client.has(50)
            pair.primary.kill()
            await client.is_refused(1)
            promoted_at = time.monotonic()
            await pair.promote()
            pair.front.lead_to(pair.replica.port)
            before = len(client.accepted)
            await client.has(1)
            figures.append(("promotion to first 202, s", client.accepted[before].answered_at - promoted_at))
            await client.has(100)
        lost = [each for each in client.accepted if await client.end(each.job_id) is None]
        assert lost
        assert not [each for each in lost if each.sent_at > promoted_at]
        again = [await client.submit(each.key) for each in lost]
        ends = [await client.end(each.job_id) for each in client.accepted if each not in lost]
        figures.append(("promotion to all ended, s", time.monotonic() - promoted_at))
        figures.append(("lost, and accepted again", len(lost)))
        assert {job["status"] for job in ends if job} == {"succeeded"}
        assert not {each.job_id for each in again} & {each.job_id for each in lost}
        stats = await client.stats()
        assert stats["unaccounted"] == 0
        assert stats["succeeded"] == stats["submitted"] == len({each.key for each in client.accepted})
        assert set(client.refused) == {503}
        assert time.monotonic() - promoted_at < 20
