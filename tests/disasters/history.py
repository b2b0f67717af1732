"""A little history of a system, and what clients could know at each step of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest

from common.errors import JobNotFound
from common.fleet import Backlog
from common.job import Job, JobStatus, Outcome
from common.store import DeadLetter, LeaseState, Settled, Store
from tests.disasters.machine import Machine
from tests.processes import Processes
from tests.requests import submission, submit
from tests.waiting import wait_until
from tests.workers import Worker

NEVER = datetime(1970, 1, 1, tzinfo=UTC)
DELAY = timedelta(milliseconds=20)

#: Jobs submitted with an idempotency key, which is the prompt as well.
KEYED = ("finished", "dies", "waiting")


@dataclass(frozen=True)
class View:
    """All that clients can read at one moment."""

    jobs: list[Job]
    dead: list[DeadLetter]
    backlog: Backlog

    @classmethod
    async def of(cls, store: Store) -> View:
        jobs, dead = await store.list_jobs(limit=100), await store.list_dead(limit=100)
        return cls(jobs, dead, replace(await store.depth(), at=NEVER))


@dataclass(frozen=True)
class Chapter:
    """What was true once the log was `written` so far."""

    written: int
    view: View


async def chronicle(machine: Machine, gateway: Store, worker: Worker) -> list[Chapter]:
    """Lives through the history and writes down what was true after each step."""
    chapters = [Chapter(machine.written, await View.of(gateway))]
    async for _ in _steps(gateway, worker):
        chapters.append(Chapter(machine.written, await View.of(gateway)))
    return chapters


async def _steps(gateway: Store, worker: Worker) -> AsyncGenerator[None]:
    """Every kind of transition, one at a time."""
    for key in KEYED:
        await gateway.submit(submission(key, idempotency_key=key, owner="somebody"))
        yield
    finished = await worker.lease()
    yield
    dies = await worker.lease()
    yield
    await worker.finish(finished)
    yield
    await worker.fail(dies, retry_in=None)
    yield
    await gateway.redrive()
    yield
    streamed = await submit(gateway, "streamed", stream=True)
    yield
    waiting = await worker.lease()
    yield
    redriven = await worker.lease()
    yield
    lease = await worker.lease(streamed.job_id)
    yield
    await worker.store.append(lease, 1, "a word")
    yield
    await worker.extend(lease)
    yield
    await worker.fail(lease)
    yield
    await worker.fail(waiting, retry_in=DELAY)
    yield
    await worker.release(redriven)
    yield

    async def promoted() -> bool:
        return (await gateway.tend()).promoted == 1

    await wait_until(promoted)
    yield
    await gateway.cancel(streamed.job_id)
    yield
    expiring = await submit(gateway, "expiring", expires_in_s=0.03, owner="another")
    yield

    async def expired() -> bool:
        return (await gateway.tend()).expired == 1

    await wait_until(expired)
    yield
    assert (await gateway.get(expiring.job_id)).status.terminal
    last = await worker.lease()
    yield
    await gateway.cancel(last.job_id)
    yield
    assert await worker.finish(last) is Settled.LOST
    await worker.lease()
    yield


async def drain(gateway: Store, worker: Worker, timeout: float = 10.0) -> None:
    """Runs everything to its end."""

    async def all_ended() -> bool:
        await gateway.tend()
        for lease in (await worker.look()).leases:
            await worker.finish(lease)
        return (await gateway.depth()).unfinished == 0

    await wait_until(all_ended, timeout)


class Forgetting:
    """Jobs at both sides of the last moment that a server will remember, and what becomes of each."""

    def __init__(self, gateway: Store, worker: Worker) -> None:
        self._gateway = gateway
        self._worker = worker

    async def until_the_moment(self) -> None:
        jobs = [await submit(self._gateway, name) for name in ("done", "held", "repeated", "unstarted")]
        self._done, self._held, self._repeated = [await self._worker.lease(job.job_id) for job in jobs[:3]]
        self._unstarted = jobs[3]
        await self._worker.finish(self._done)

    async def after_the_moment(self) -> None:
        await self._worker.finish(self._repeated)
        started = await self._worker.lease(self._unstarted.job_id)
        late = await submit(self._gateway, "late", idempotency_key="late")
        self._waiting = asyncio.create_task(self._gateway.wait(late.job_id, timedelta(seconds=20)))
        self._forgotten = [started, await self._worker.lease()]

    async def is_over(self, here: Processes) -> None:
        """Nothing is lost but what came after the moment, and that is known to all who ask."""
        gateway, worker = self._gateway, self._worker
        with pytest.raises(JobNotFound):
            await gateway.get(self._forgotten[1].job_id)
        with pytest.raises(JobNotFound):
            await self._waiting
        for lease in self._forgotten:
            assert await worker.extend(lease) is LeaseState.TAKEN
            assert await worker.finish(lease) is Settled.LOST
        assert await worker.extend(self._held) is LeaseState.HELD
        assert await worker.finish(self._held) is Settled.SUCCEEDED
        # Its worker was told that it has ended, and let go of it: another start.
        assert (await gateway.get(self._repeated.job_id)).status is JobStatus.RUNNING
        again = await gateway.submit(submission("late", idempotency_key="late"))
        assert not again.replayed
        await drain(gateway, await here.hire(worker.presence.instance))
        succeeded = [Outcome.SUCCEEDED]
        assert await self._outcomes(self._done.job_id) == succeeded
        assert await self._outcomes(self._held.job_id) == succeeded
        assert await self._outcomes(self._repeated.job_id) == [Outcome.CRASH, *succeeded]
        assert await self._outcomes(self._unstarted.job_id) == succeeded
        assert await self._outcomes(again.job.job_id) == succeeded
        assert (await gateway.depth()).submitted == 5

    async def _outcomes(self, job_id: str) -> list[Outcome | None]:
        return [attempt.outcome for attempt in (await self._gateway.get(job_id)).attempts]
