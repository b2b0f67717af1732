"""Lifecycle: every transition of the state machine happens as listed, and nothing leaves a terminal state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from common.errors import JobEnded, JobNotFound
from common.job import TERMINAL, TRANSITIONS, Event, JobStatus
from common.store import Lease, Released, Store
from tests.processes import Processes
from tests.requests import submission, submit
from tests.vandal import Vandal
from tests.waiting import wait_until
from tests.workers import Worker, failed, finished

pytestmark = pytest.mark.settings(claim_idle_ms=400, max_attempts=2)


@dataclass(frozen=True)
class Stage:
    processes: Processes
    gateway: Store
    worker: Worker
    vandal: Vandal

    async def running(self, **fields: Any) -> Lease:
        job = await submit(self.gateway, **fields)
        return await self.worker.lease(job.job_id)

    async def tended(self, what: str) -> None:
        """Tends until one job has been dealt with so."""

        async def done() -> bool:
            return getattr(await self.gateway.tend(), what) == 1

        await wait_until(done, timeout=10)


#: Yields the job's id when the job is in its first state, then makes the event happen.
Scenario = Callable[[Stage], AsyncIterator[str]]


async def submitting(stage: Stage) -> AsyncIterator[str]:
    sent = submission()
    yield sent.job_id
    await stage.gateway.submit(sent)


async def beginning(stage: Stage) -> AsyncIterator[str]:
    yield (await submit(stage.gateway)).job_id
    await stage.worker.lease()


async def finishing(stage: Stage) -> AsyncIterator[str]:
    lease = await stage.running()
    yield lease.job_id
    await stage.worker.finish(lease)


async def retrying(stage: Stage) -> AsyncIterator[str]:
    lease = await stage.running()
    yield lease.job_id
    await stage.worker.fail(lease)


async def failing(stage: Stage) -> AsyncIterator[str]:
    await stage.worker.fail(await stage.running())
    lease = await stage.worker.lease()
    yield lease.job_id
    await stage.worker.fail(lease)


async def releasing(stage: Stage) -> AsyncIterator[str]:
    lease = await stage.running()
    yield lease.job_id
    await stage.worker.release(lease)


async def taking_over(stage: Stage) -> AsyncIterator[str]:
    yield (await stage.running()).job_id
    other = await stage.processes.hire()
    assert (await other.lease()).attempt == 2


async def crashing_out(stage: Stage) -> AsyncIterator[str]:
    await stage.worker.fail(await stage.running())
    lease = await stage.worker.lease()
    yield lease.job_id
    other = await stage.processes.hire()

    async def ended() -> bool:
        return (await other.look()).crashed_out == 1

    await wait_until(ended)


async def cancelling_queued(stage: Stage) -> AsyncIterator[str]:
    job = await submit(stage.gateway)
    yield job.job_id
    await stage.gateway.cancel(job.job_id)


async def cancelling_running(stage: Stage) -> AsyncIterator[str]:
    lease = await stage.running()
    yield lease.job_id
    await stage.gateway.cancel(lease.job_id)


async def expiring_queued(stage: Stage) -> AsyncIterator[str]:
    yield (await submit(stage.gateway, expires_in_s=0.3)).job_id
    await stage.tended("expired")


async def expiring_running(stage: Stage) -> AsyncIterator[str]:
    yield (await stage.running(expires_in_s=0.5)).job_id
    await stage.tended("expired")


async def requeueing_queued(stage: Stage) -> AsyncIterator[str]:
    job = await submit(stage.gateway)
    await stage.vandal.pass_over_what_waits()
    yield job.job_id
    await stage.tended("requeued")


async def requeueing_running(stage: Stage) -> AsyncIterator[str]:
    lease = await stage.running()
    await stage.vandal.acknowledge(lease.job_id)
    yield lease.job_id
    await stage.tended("requeued")


async def losing_queued(stage: Stage) -> AsyncIterator[str]:
    job = await submit(stage.gateway)
    await stage.vandal.delete_entry(job.job_id)
    yield job.job_id
    await stage.tended("lost")


async def losing_running(stage: Stage) -> AsyncIterator[str]:
    lease = await stage.running()
    await stage.vandal.delete_entry(lease.job_id)
    yield lease.job_id
    await stage.tended("lost")


SCENARIOS: dict[tuple[JobStatus | None, Event], Scenario] = {
    (None, Event.SUBMIT): submitting,
    (JobStatus.QUEUED, Event.BEGIN): beginning,
    (JobStatus.RUNNING, Event.FINISH): finishing,
    (JobStatus.RUNNING, Event.RETRY): retrying,
    (JobStatus.RUNNING, Event.FAIL): failing,
    (JobStatus.RUNNING, Event.TAKEOVER): taking_over,
    (JobStatus.RUNNING, Event.CRASH_OUT): crashing_out,
    (JobStatus.RUNNING, Event.RELEASE): releasing,
    (JobStatus.RUNNING, Event.REQUEUE): requeueing_running,
    (JobStatus.QUEUED, Event.REQUEUE): requeueing_queued,
    (JobStatus.QUEUED, Event.LOSE): losing_queued,
    (JobStatus.RUNNING, Event.LOSE): losing_running,
    (JobStatus.QUEUED, Event.CANCEL): cancelling_queued,
    (JobStatus.RUNNING, Event.CANCEL): cancelling_running,
    (JobStatus.QUEUED, Event.EXPIRE): expiring_queued,
    (JobStatus.RUNNING, Event.EXPIRE): expiring_running,
}


@pytest.fixture
def stage(processes: Processes, gateway: Store, worker: Worker, vandal: Vandal) -> Stage:
    return Stage(processes, gateway, worker, vandal)


def test_every_transition_is_covered() -> None:
    assert set(SCENARIOS) == set(TRANSITIONS)


async def status_of(store: Store, job_id: str) -> JobStatus | None:
    try:
        return (await store.get(job_id)).status
    except JobNotFound:
        return None


@pytest.mark.parametrize(
    ("before", "event"), TRANSITIONS, ids=[f"{before}-{event.name}" for before, event in TRANSITIONS]
)
async def test_the_event_leads_where_the_table_says(
    before: JobStatus | None, event: Event, stage: Stage
) -> None:
    scenario = SCENARIOS[before, event](stage)
    job_id = await anext(scenario)
    assert await status_of(stage.gateway, job_id) == before
    async for _ in scenario:
        pass
    assert await status_of(stage.gateway, job_id) == TRANSITIONS[before, event]


async def end(stage: Stage, lease: Lease, status: JobStatus) -> None:
    match status:
        case JobStatus.SUCCEEDED:
            await stage.worker.finish(lease)
        case JobStatus.FAILED:
            await stage.worker.fail(lease, retry_in=None)
        case JobStatus.CANCELLED:
            await stage.gateway.cancel(lease.job_id)
        case _:
            await stage.worker.fail(lease, retry_in=timedelta(hours=2))


@pytest.mark.parametrize("status", sorted(TERMINAL))
async def test_nothing_leaves_a_terminal_state(status: JobStatus, stage: Stage) -> None:
    sent = submission(expires_in_s=3600, idempotency_key="k")
    await stage.gateway.submit(sent)
    lease = await stage.worker.lease()
    await end(stage, lease, status)
    record, backlog = await stage.gateway.get(sent.job_id), await stage.gateway.depth()
    assert record.status is status

    other = replace(lease, token="not-the-token")
    for held in (lease, other):
        await stage.worker.store.settle(
            [finished(held, "late"), failed(held), failed(held, retry_in=None), Released(lease=held)]
        )
        await stage.worker.extend(held)
        assert await stage.worker.store.append(held, 1, "late") is False
    with suppress(JobEnded):
        await stage.gateway.cancel(sent.job_id)
    assert (await stage.gateway.submit(sent)).job == record
    await stage.gateway.tend()
    assert (await stage.worker.look()).leases == ()

    assert await stage.gateway.get(sent.job_id) == record
    assert replace(await stage.gateway.depth(), at=backlog.at) == backlog
