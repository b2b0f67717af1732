"""Suspects: a job on its last start after a crash runs alone, so that the innocent do not end with it."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from common.job import Cause, JobStatus
from common.store import Lease, Released, Settled, Store
from tests.processes import Processes
from tests.requests import submit
from tests.waiting import wait_until
from tests.workers import Worker

pytestmark = pytest.mark.settings(claim_idle_ms=400, max_attempts=2)


async def crash_with(processes: Processes, gateway: Store, count: int) -> list[str]:
    """Jobs that a worker held when it crashed, their leases run out."""
    jobs = [(await submit(gateway)).job_id for _ in range(count)]
    crashed = await processes.hire()
    await crashed.take(count)
    ran_out = time.monotonic() + 0.45
    await wait_until(lambda: time.monotonic() > ran_out)
    return jobs


async def busy_worker(processes: Processes, gateway: Store) -> tuple[Worker, Lease, asyncio.Task[None]]:
    """With the one job that it holds, and the task that keeps extending its lease."""
    worker = await processes.hire()
    lease = await worker.lease((await submit(gateway)).job_id)

    async def beat() -> None:
        while True:
            await worker.extend(lease)
            await asyncio.sleep(0.1)

    return worker, lease, asyncio.create_task(beat())


async def test_suspects_run_one_at_a_time_on_a_worker(processes: Processes, gateway: Store) -> None:
    jobs = await crash_with(processes, gateway, 3)
    worker = await processes.hire()
    done: set[str] = set()
    for _ in range(3):
        lease = await worker.lease()
        assert (lease.alone, lease.attempt) == (True, 2)
        assert (await worker.look()).leases == ()
        assert await worker.finish(lease) is Settled.SUCCEEDED
        done.add(lease.job_id)
    assert done == set(jobs)


async def test_nothing_fresh_runs_beside_a_suspect(processes: Processes, gateway: Store) -> None:
    await crash_with(processes, gateway, 1)
    worker = await processes.hire()
    suspect = await worker.lease()
    assert suspect.alone
    fresh = await submit(gateway)
    assert (await worker.look()).leases == ()
    await worker.finish(suspect)
    await worker.run(fresh.job_id)


async def test_a_suspect_waits_until_its_worker_holds_nothing_else(
    processes: Processes, gateway: Store
) -> None:
    worker = await processes.hire()
    await submit(gateway)
    fresh = await worker.lease()
    await crash_with(processes, gateway, 1)
    await worker.extend(fresh)
    assert (await worker.look(fresh=False)).leases == ()
    await worker.finish(fresh)
    assert (await worker.lease()).alone


async def test_only_the_poison_ends(processes: Processes, gateway: Store) -> None:
    """One of three jobs kills its worker each time; the other two must succeed."""
    jobs = await crash_with(processes, gateway, 3)
    poison = jobs[1]
    worker = await processes.hire()
    async with asyncio.timeout(10):
        while not (await gateway.get(poison)).status.terminal:
            for lease in (await worker.look()).leases:
                if lease.job_id == poison:
                    worker = await processes.hire()
                    break  # Whatever else it held went with it.
                await worker.finish(lease)
    for job_id in jobs:
        if not (await gateway.get(job_id)).status.terminal:
            await worker.run()
    records = [await gateway.get(job_id) for job_id in jobs]
    assert [record.status for record in records] == [
        JobStatus.SUCCEEDED,
        JobStatus.FAILED,
        JobStatus.SUCCEEDED,
    ]
    assert records[1].error
    assert records[1].error.cause is Cause.CRASH


async def test_suspects_run_on_several_workers_at_once(processes: Processes, gateway: Store) -> None:
    await crash_with(processes, gateway, 4)
    workers = [await processes.hire() for _ in range(2)]
    done: set[str] = set()
    async with asyncio.timeout(10):
        while len(done) < 4:
            looks = await asyncio.gather(*(worker.look() for worker in workers))
            for worker, look in zip(workers, looks, strict=True):
                assert len(look.leases) <= 1
                for lease in look.leases:
                    assert lease.alone
                    await worker.finish(lease)
                    done.add(lease.job_id)


@pytest.mark.settings(claim_idle_ms=400, max_attempts=3)
async def test_with_budget_left_takeovers_run_in_parallel(processes: Processes, gateway: Store) -> None:
    await crash_with(processes, gateway, 3)
    worker = await processes.hire()
    leases = await worker.take(3)
    assert [lease.alone for lease in leases] == [False] * 3


async def test_a_last_start_after_an_error_is_no_suspect(gateway: Store, worker: Worker) -> None:
    for _ in range(2):
        await submit(gateway)
    for lease in await worker.take(2):
        await worker.fail(lease)
    leases = (await worker.look()).leases
    assert [(lease.attempt, lease.alone) for lease in leases] == [(2, False)] * 2


async def test_waiting_beside_a_suspect_uses_up_no_start(processes: Processes, gateway: Store) -> None:
    await crash_with(processes, gateway, 2)
    worker = await processes.hire()
    first = await worker.lease()
    for _ in range(5):
        assert (await worker.look()).leases == ()
    await worker.finish(first)
    second = await worker.lease()
    assert second.attempt == 2
    await worker.finish(second)


@pytest.mark.settings(max_attempts=3, retry_backoff_ms=0)
async def test_a_job_that_crashed_before_its_last_start_is_a_suspect_from_the_queue_as_well(
    processes: Processes, gateway: Store
) -> None:
    """Crash, then error, then the last start: what a requeued job did before is not forgotten."""
    await crash_with(processes, gateway, 1)
    worker = await processes.hire()
    assert await worker.fail(await worker.lease(), retry_in=timedelta(0)) is Settled.RETRYING
    last = await worker.lease()
    assert (last.attempt, last.alone) == (3, True)
    await worker.finish(last)


async def test_a_suspect_given_back_is_still_one(processes: Processes, gateway: Store) -> None:
    await crash_with(processes, gateway, 1)
    worker = await processes.hire()
    assert await worker.settle(Released(lease=await worker.lease())) is Settled.RELEASED
    again = await worker.lease()
    assert again.alone
    await worker.finish(again)


async def test_a_busy_worker_leaves_a_suspect_to_an_idle_one(processes: Processes, gateway: Store) -> None:
    busy, lease, beating = await busy_worker(processes, gateway)
    (suspect,) = await crash_with(processes, gateway, 1)
    assert (await busy.look()).leases == ()
    idle = await processes.hire()
    taken = await idle.lease(suspect, timeout=3)
    assert taken.alone
    await idle.finish(taken)
    more = await submit(gateway)
    await busy.run(more.job_id)
    beating.cancel()
    await busy.finish(lease)


async def test_who_made_room_for_a_suspect_reads_again_while_somebody_else_sweeps(
    processes: Processes, gateway: Store
) -> None:
    busy, lease, beating = await busy_worker(processes, gateway)
    (suspect,) = await crash_with(processes, gateway, 1)
    assert (await busy.look()).leases == ()
    idle = await processes.hire()
    await idle.finish(await idle.lease(suspect, timeout=3))

    async def sweep() -> None:
        while True:
            await idle.look(fresh=False)
            await asyncio.sleep(0.05)

    sweeping = asyncio.create_task(sweep())
    more = await submit(gateway)
    await busy.run(more.job_id)
    for task in (beating, sweeping):
        task.cancel()
    await busy.finish(lease)


async def test_a_suspect_does_not_wait_for_the_jobs_of_the_one_that_sweeps(
    processes: Processes, gateway: Store
) -> None:
    busy = await processes.hire()
    fresh = await submit(gateway)
    lease = await busy.lease(fresh.job_id)
    (suspect,) = await crash_with(processes, gateway, 1)

    async def sweep() -> None:
        while True:
            await busy.extend(lease)
            await busy.look(fresh=False)
            await asyncio.sleep(0.05)

    sweeping = asyncio.create_task(sweep())
    idle = await processes.hire()
    taken = await idle.lease(suspect, timeout=3)
    sweeping.cancel()
    await idle.finish(taken)
    await busy.finish(lease)


@pytest.mark.sent_twice
async def test_a_begin_sent_twice_starts_one_suspect(processes: Processes, gateway: Store) -> None:
    await crash_with(processes, gateway, 3)
    worker = await processes.hire()
    for _ in range(3):
        (lease,) = await worker.take()
        assert lease.alone
        assert (await worker.look()).leases == ()
        await worker.finish(lease)
