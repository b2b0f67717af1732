"""Eight worker processes whose published count goes 1, 8, 0 and 3 under load: who begins jobs then."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from common.fleet import Decision, Reason
from common.job import Job, JobStatus, Outcome
from common.store import Store
from tests.requests import submit
from tests.waiting import wait_until
from tests.worker.children import Child

pytestmark = [
    pytest.mark.real_server,
    # The only scaler is the test, which does not publish again and again.
    pytest.mark.settings(max_queue_depth=0, scale_stale_ms=60_000),
]

WORKERS, SLOTS, LATENCY_MS = 8, 2, 150
CLIENTS, PAUSE_S = 3, 0.1
#: Accepted while nobody reads.
UNREAD = 30


@dataclass(frozen=True)
class Step:
    """A count, and the time, on the server's clock, in which every worker knew of it and of no other."""

    desired: int
    settled: datetime
    over: datetime


class Load:
    """Clients that submit all the while, their records, and what was unaccounted for at each look."""

    def __init__(self, gateway: Store) -> None:
        self._gateway = gateway
        self._over = False
        self._ended: dict[str, Job] = {}
        self.ids: list[str] = []
        self.unaccounted: list[int] = []

    @asynccontextmanager
    async def flowing(self) -> AsyncGenerator[None]:
        async with asyncio.TaskGroup() as tasks:
            for work in (self._look_on(), *map(self._client, range(CLIENTS))):
                tasks.create_task(work)
            yield
            self._over = True

    async def records(self) -> list[Job]:
        """All of them as they are; those that have ended are not read again."""
        living = [job_id for job_id in self.ids if job_id not in self._ended]
        read = await asyncio.gather(*map(self._gateway.get, living))
        self._ended |= {job.job_id: job for job in read if job.status.terminal}
        return [*self._ended.values(), *(job for job in read if not job.status.terminal)]

    async def begun_by(self, since: datetime, until: datetime | None = None) -> set[str]:
        """Workers that began a job in that time."""
        attempts = [attempt for job in await self.records() for attempt in job.attempts]
        return {
            attempt.worker
            for attempt in attempts
            if since <= attempt.started_at and (until is None or attempt.started_at < until)
        }

    async def _client(self, client: int) -> None:
        for number in itertools.count():
            if self._over:
                return
            params = {"mock": {"latency_ms": LATENCY_MS}}
            self.ids.append((await submit(self._gateway, f"{client}.{number}", params=params)).job_id)
            await asyncio.sleep(PAUSE_S)

    async def _look_on(self) -> None:
        while not self._over:
            self.unaccounted.append((await self._gateway.depth()).unaccounted)
            await asyncio.sleep(0.02)


class Fleet:
    """Workers that live all the while, and the test as their scaler."""

    def __init__(self, gateway: Store, load: Load) -> None:
        self._gateway = gateway
        self._load = load

    async def whole(self) -> bool:
        """Whether all of them are seated and ready."""
        return {each.worker for each in (await self._gateway.scale()).workers if each.ready} == names(WORKERS)

    async def publish(self, desired: int) -> None:
        term = await self._gateway.lead("test", timedelta(minutes=5))
        assert term is not None
        backlog = await self._gateway.depth()
        decision = Decision(
            desired=desired,
            reason=Reason.STEADY,
            lag=backlog.lag,
            pending=backlog.pending,
            retrying=backlog.retrying,
            min=0,
            max=WORKERS,
        )
        await self._gateway.publish_scale(decision, term)

    async def step(self, desired: int) -> Step:
        """Publishes a count, and returns when it has shown its effect."""
        await self.publish(desired)
        # The second heartbeat is sent by who has acted on the answer to the first.
        for _ in range(2):
            await self._all_heard_since(await self._now())
        settled = await self._now()
        if desired:
            await wait_until(lambda: self._all_begin(desired, settled), timeout=15, every=0.1)
        else:
            await self._rest()
        return Step(desired, settled, await self._now())

    async def _all_begin(self, desired: int, since: datetime) -> bool:
        return await self._load.begun_by(since) >= names(desired)

    async def _rest(self) -> None:
        async def nothing_runs() -> bool:
            return not (await self._gateway.depth()).running

        await wait_until(nothing_runs)
        accepted = len(self._load.ids) + UNREAD
        await wait_until(lambda: len(self._load.ids) >= accepted, timeout=15)
        backlog = await self._gateway.depth()
        assert (backlog.running, backlog.pending) == (0, 0)
        assert backlog.queued >= UNREAD

    async def _all_heard_since(self, moment: datetime) -> None:
        async def heard() -> bool:
            workers = (await self._gateway.scale()).workers
            return len(workers) == WORKERS and all(worker.seen_at > moment for worker in workers)

        await wait_until(heard, timeout=15)

    async def _now(self) -> datetime:
        return (await self._gateway.depth()).at


def names(count: int) -> set[str]:
    return {f"worker-{number}" for number in range(1, count + 1)}


@pytest.mark.timeout(120)
async def test_a_published_count_of_1_8_0_and_3_says_who_begins_jobs_and_costs_no_start(
    spawn: Callable[..., Child], gateway: Store
) -> None:
    load = Load(gateway)
    fleet = Fleet(gateway, load)
    await fleet.publish(1)
    children = [
        spawn(worker_concurrency=SLOTS, heartbeat_ms=500, scale_stale_ms=60_000) for _ in range(WORKERS)
    ]
    await wait_until(fleet.whole, timeout=60)
    async with load.flowing():
        steps = [await fleet.step(desired) for desired in (1, 8, 0, 3)]

    async def drained() -> bool:
        return not (await gateway.depth()).unfinished

    await wait_until(drained, timeout=30)
    for step in steps:
        assert await load.begun_by(step.settled, step.over) == names(step.desired), step
    jobs = await load.records()
    assert (await gateway.depth()).submitted == len(jobs) == len(load.ids)
    assert {job.status for job in jobs} == {JobStatus.SUCCEEDED}
    assert {tuple(attempt.outcome for attempt in job.attempts) for job in jobs} == {(Outcome.SUCCEEDED,)}
    assert set(load.unaccounted) == {0}
    assert [change.desired for change in (await gateway.scale()).history] == [3, 0, 8, 1]
    assert [child.process.poll() for child in children] == [None] * WORKERS
