"""Takeover: what a lost worker held is begun again, once, and the lost worker can no longer write."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from common.errors import SeatLost
from common.job import Cause, JobStatus, Outcome
from common.store import Lease, LeaseState, Released, Settled, Store
from tests.processes import Processes
from tests.requests import submit
from tests.workers import NOW, SOON, Worker, failed, finished, outlive

pytestmark = pytest.mark.settings(claim_idle_ms=400)

#: Longer than any test: only what does not wait for it can happen.
HOUR_MS = 3_600_000


async def test_a_crashed_workers_job_is_begun_again(
    processes: Processes, gateway: Store, worker: Worker
) -> None:
    job = await submit(gateway, "hi", params={"n": 1})
    first = await worker.lease()
    other = await processes.hire()
    second = await other.lease(job.job_id)
    assert (second.attempt, second.reclaimed, second.queued_for) == (2, True, None)
    assert second.request == first.request
    record = await gateway.get(job.job_id)
    assert (record.status, record.attempt, record.worker) == (JobStatus.RUNNING, 2, other.name)
    assert [(line.n, line.worker, line.outcome) for line in record.attempts] == [
        (1, worker.name, Outcome.CRASH),
        (2, other.name, None),
    ]
    assert record.attempts[0].ended_at is not None
    await other.finish(second)


async def test_a_takeover_does_not_come_before_the_lease_has_run_out(
    processes: Processes, gateway: Store, worker: Worker
) -> None:
    await submit(gateway)
    other = await processes.hire()
    began = time.monotonic()
    await worker.lease()
    taken = await other.lease()
    assert 0.39 < time.monotonic() - began < 2.5
    await other.finish(taken)


async def test_all_that_a_crashed_worker_held_is_taken_over_together(
    processes: Processes, gateway: Store, worker: Worker
) -> None:
    jobs = [await submit(gateway) for _ in range(30)]
    await worker.take(30)
    other = await processes.hire()
    taken = await other.take(30)
    assert {lease.job_id for lease in taken} == {job.job_id for job in jobs}
    assert await other.store.settle([finished(lease) for lease in taken]) == [Settled.SUCCEEDED] * 30


async def test_two_workers_do_not_take_over_the_same_job(processes: Processes, gateway: Store) -> None:
    for _ in range(10):
        await submit(gateway)
    crashed = await processes.hire()
    await crashed.take(10)
    one, two = await processes.hire(), await processes.hire()
    leases: list[Lease] = []
    async with asyncio.timeout(10):
        while len(leases) < 10:
            looks = await asyncio.gather(one.look(3), two.look(3))
            leases += [lease for look in looks for lease in look.leases]
            await one.store.extend(leases)
    assert sorted(lease.attempt for lease in leases) == [2] * 10
    assert len({lease.job_id for lease in leases}) == 10


async def test_a_worker_that_comes_back_late_writes_nothing(
    processes: Processes, gateway: Store, worker: Worker
) -> None:
    job = await submit(gateway, stream=True)
    old = await worker.lease()
    other = await processes.hire()
    current = await other.lease()
    record, backlog = await gateway.get(job.job_id), await gateway.depth()
    late = [finished(old, "late"), failed(old), failed(old, retry_in=None), Released(lease=old)]
    assert await worker.store.settle(late) == [Settled.LOST] * 4
    assert await worker.extend(old) is LeaseState.TAKEN
    assert await worker.store.append(old, 1, "late") is False
    assert await gateway.get(job.job_id) == record
    assert replace(await gateway.depth(), at=backlog.at) == backlog
    assert await other.finish(current, "right") is Settled.SUCCEEDED
    assert await worker.store.settle(late) == [Settled.LOST] * 4
    ended = await gateway.get(job.job_id)
    assert ended.result
    assert ended.result.text == "right"


@pytest.mark.settings(claim_idle_ms=400, max_attempts=2)
async def test_a_job_that_crashes_every_worker_ends_in_the_dead_letters(
    processes: Processes, gateway: Store
) -> None:
    job = await submit(gateway, "poison")
    names: list[str] = []
    for _ in range(2):
        crashing = await processes.hire()
        await crashing.lease(job.job_id)
        names.append(crashing.name)
    survivor = await processes.hire()
    claimed = await survivor.look()
    async with asyncio.timeout(10):
        while not claimed.crashed_out:
            assert claimed.leases == ()
            claimed = await survivor.look(wait=NOW)
    record = await gateway.get(job.job_id)
    assert record.status is JobStatus.FAILED
    assert record.error
    assert record.error.cause is Cause.CRASH
    assert record.finished_at
    assert [(line.n, line.worker, line.outcome) for line in record.attempts] == [
        (1, names[0], Outcome.CRASH),
        (2, names[1], Outcome.CRASH),
    ]
    (letter,) = await gateway.list_dead()
    assert (letter.job_id, letter.cause, letter.attempts) == (job.job_id, Cause.CRASH, 2)
    assert letter.request
    assert letter.request.prompt == "poison"


@pytest.mark.settings(claim_idle_ms=400, max_attempts=2)
async def test_crashes_and_errors_share_one_budget(processes: Processes, gateway: Store) -> None:
    await submit(gateway)
    crashing = await processes.hire()
    await crashing.lease()
    other = await processes.hire()
    assert await other.fail(await other.lease()) is Settled.FAILED


@pytest.mark.settings(claim_idle_ms=HOUR_MS, heartbeat_ms=1000)
async def test_a_restart_under_the_same_instance_takes_its_own_jobs_back_at_once(
    processes: Processes, gateway: Store
) -> None:
    jobs = [await submit(gateway) for _ in range(3)]
    before = await processes.hire("pod-a")
    old = await before.take(3)
    after = await processes.hire("pod-a")
    assert after.name == before.name
    assert after.seat.epoch > before.seat.epoch
    began = time.monotonic()
    new = await after.take(3, fresh=False)
    assert time.monotonic() - began < 2
    assert {lease.job_id for lease in new} == {job.job_id for job in jobs}
    assert [(lease.attempt, lease.reclaimed) for lease in new] == [(2, True)] * 3
    assert await before.store.extend(old) == [LeaseState.TAKEN] * 3
    assert await before.store.settle([finished(lease) for lease in old]) == [Settled.LOST] * 3
    assert await after.store.settle([finished(lease) for lease in new]) == [Settled.SUCCEEDED] * 3


@pytest.mark.settings(claim_idle_ms=HOUR_MS, heartbeat_ms=1000)
async def test_another_instance_cannot_take_a_lease_that_has_not_run_out(
    processes: Processes, gateway: Store
) -> None:
    await submit(gateway)
    one = await processes.hire("pod-a")
    lease = await one.lease()
    other = await processes.hire("pod-b")
    for _ in range(5):
        assert (await other.look()).leases == ()
    assert await one.finish(lease) is Settled.SUCCEEDED


@pytest.mark.settings(claim_idle_ms=HOUR_MS, heartbeat_ms=50)
async def test_another_instance_on_the_same_slot_cannot_take_a_lease_that_has_not_run_out(
    processes: Processes, gateway: Store
) -> None:
    """The worker's name is not the fence: the slot ran out, the lease did not."""
    await submit(gateway)
    one = await processes.hire("pod-a")
    lease = await one.lease()
    await outlive(one)
    other = await processes.hire("pod-b")
    assert other.name == one.name
    for _ in range(5):
        assert (await other.look()).leases == ()
    assert await one.extend(lease) is LeaseState.HELD
    assert await one.finish(lease) is Settled.SUCCEEDED


async def test_a_superseded_process_claims_nothing(processes: Processes, gateway: Store) -> None:
    before = await processes.hire("pod-a")
    after = await processes.hire("pod-a")
    await submit(gateway)
    with pytest.raises(SeatLost):
        await before.store.claim(1, NOW)
    await after.run()


async def test_start_numbers_are_never_used_twice(processes: Processes, gateway: Store) -> None:
    job = await submit(gateway)
    first = await processes.hire()
    await first.release(await first.lease())
    await first.lease()
    second = await processes.hire()
    await second.fail(await second.lease())
    await second.run()
    record = await gateway.get(job.job_id)
    assert [line.n for line in record.attempts] == [1, 2, 3, 4]
    assert [line.outcome for line in record.attempts] == [
        Outcome.RELEASED,
        Outcome.CRASH,
        Outcome.ERROR,
        Outcome.SUCCEEDED,
    ]


@pytest.mark.settings(claim_idle_ms=1500)
async def test_looking_at_a_live_lease_does_not_put_its_takeover_off(
    processes: Processes, gateway: Store, worker: Worker
) -> None:
    """Reads make an entry look fresh in the group; idle is how long its worker has really been silent."""
    await submit(gateway)
    other = await processes.hire()
    began = time.monotonic()
    lease = await worker.lease()
    same_slot = await processes.hire("pod-x", worker_id=None)
    while time.monotonic() - began < 1.4:
        assert (await other.look(wait=SOON, fresh=False)).leases == ()
        assert (await same_slot.look(wait=SOON, fresh=False)).leases == ()
    taken = await other.lease(timeout=1.5)
    assert (taken.job_id, taken.attempt) == (lease.job_id, 2)
    assert time.monotonic() - began < 2.6  # idle, one sweep lock of a worker that is not there, a margin
    await other.finish(taken)
