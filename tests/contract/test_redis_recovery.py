"""Recovery: what others delete or add on the server is noticed, removed or repaired, and told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

import pytest
from redis.asyncio import Redis

from common.errors import JobNotFound, SeatLost, StoreError
from common.job import Cause, JobStatus, new_job_id
from common.redis_store.keys import GROUP
from common.store import Claimed, Lease, LeaseState, Settled, Store
from tests.contract.test_events import all_events
from tests.keyspace import command, keys_of
from tests.processes import Processes
from tests.requests import submission, submit
from tests.servers import FAKEREDIS, FakeredisServer, Server, ServerProcess
from tests.vandal import Vandal
from tests.waiting import wait_until
from tests.workers import NOW, Worker, finished

# ---- the group is gone


Damage = Callable[[Vandal], Awaitable[object]]


async def destroy_group(vandal: Vandal) -> None:
    await vandal.raw.xgroup_destroy(vandal.keys.jobs, GROUP)


async def delete_stream(vandal: Vandal) -> None:
    await vandal.raw.delete(vandal.keys.jobs)


async def delete_everything(vandal: Vandal) -> None:
    await vandal.raw.delete(*await keys_of(vandal.raw, vandal.keys.namespace))


DAMAGES = {
    "XGROUP DESTROY": destroy_group,
    "DEL stream": delete_stream,
    "DEL everything": delete_everything,
}
damaged = pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))


@pytest.mark.vandal
@damaged
async def test_a_job_submitted_after_the_damage_runs(
    damage: Damage, gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    await worker.look()
    await damage(vandal)
    job = await submit(gateway)
    await worker.run(job.job_id)


@pytest.mark.vandal
@pytest.mark.real_server
@damaged
async def test_a_worker_that_waits_during_the_damage_gets_the_next_job(
    damage: Damage, gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    waiting = asyncio.create_task(worker.look(wait=timedelta(seconds=1)))
    await command(vandal.raw, "PING")
    await damage(vandal)
    job = await submit(gateway)
    leases: list[Lease] = []
    with suppress(SeatLost):  # The seat may have gone with the rest.
        leases += (await waiting).leases
    leases = leases or await worker.take()
    assert [lease.job_id for lease in leases] == [job.job_id]


@pytest.mark.vandal
@damaged
async def test_every_call_heals_the_group(
    damage: Damage, gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    job = await submit(gateway)
    lease = await worker.lease(job.job_id)
    calls: list[Callable[[], Awaitable[object]]] = [
        gateway.depth,
        gateway.tend,
        gateway.scale,
        lambda: gateway.submit(submission(), max_depth=5),
        lambda: gateway.list_jobs(),
        lambda: worker.store.extend([lease]),
        lambda: worker.store.claim(1, timedelta(0)),
        lambda: worker.store.settle([finished(lease)]),
        worker.store.retire,
    ]
    for call in calls:
        await damage(vandal)
        if worker.seat and call is not calls[-1]:
            await worker.heartbeat()
        await call()


async def test_jobs_that_waited_when_the_group_was_destroyed_still_run(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    jobs = [await submit(gateway) for _ in range(3)]
    await destroy_group(vandal)
    leases = await worker.take(3)
    assert {lease.job_id for lease in leases} == {job.job_id for job in jobs}
    assert await worker.store.settle([finished(lease) for lease in leases]) == [Settled.SUCCEEDED] * 3


async def test_a_recreated_group_does_not_steal_what_is_held(
    processes: Processes, gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    """Recreated at 0, the group delivers held entries again: the record says who holds them."""
    await submit(gateway)
    lease = await worker.lease()
    await destroy_group(vandal)
    other = await processes.hire()
    for _ in range(3):
        assert (await other.look()).leases == ()
    assert await worker.extend(lease) is LeaseState.HELD
    assert await worker.finish(lease) is Settled.SUCCEEDED
    assert await other.look() == Claimed()


@pytest.mark.settings(claim_idle_ms=600)
async def test_a_recreated_group_does_not_steal_what_was_begun_long_ago_and_renewed(
    processes: Processes, gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    await submit(gateway)
    lease = await worker.lease()
    begun_long_ago = time.monotonic() + 1
    while time.monotonic() < begun_long_ago:
        assert await worker.extend(lease) is LeaseState.HELD
        await asyncio.sleep(0.05)
    await destroy_group(vandal)
    other = await processes.hire()
    assert (await other.look()).leases == ()
    assert await worker.finish(lease) is Settled.SUCCEEDED


async def test_a_recreated_group_gives_a_superseded_process_nothing_of_its_successors(
    processes: Processes, gateway: Store, vandal: Vandal
) -> None:
    """Paused, replaced under its own instance, and back: it has the higher epoch, but not the slot."""
    before, after = await processes.hire("pod-a"), await processes.hire("pod-a")
    await submit(gateway)
    lease = await after.lease()
    with pytest.raises(SeatLost):
        await before.store.claim(1, NOW)
    await before.heartbeat()
    assert before.name != after.name
    assert before.seat.epoch > after.seat.epoch
    await destroy_group(vandal)
    assert (await before.look()).leases == ()
    assert await after.finish(lease) is Settled.SUCCEEDED


@pytest.mark.settings(claim_idle_ms=400)
async def test_what_a_crashed_worker_held_is_taken_over_although_the_group_was_destroyed(
    processes: Processes, gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    job = await submit(gateway)
    await worker.lease()
    await destroy_group(vandal)
    other = await processes.hire()
    lease = await other.lease(job.job_id, timeout=10)
    assert lease.reclaimed
    await other.finish(lease)


async def test_what_a_destroyed_group_had_delivered_is_not_lost_without_its_worker(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    """Delivered, not begun, then the group goes: the entry is delivered again."""
    job = await submit(gateway)
    await vandal.deliver("somebody")
    await destroy_group(vandal)
    await worker.run(job.job_id)


async def test_jobs_whose_stream_was_deleted_end_as_lost(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    jobs = [await submit(gateway) for _ in range(3)]
    await delete_stream(vandal)
    lost = 0

    async def all_lost() -> bool:
        nonlocal lost
        lost += (await gateway.tend()).lost
        return lost == 3

    await wait_until(all_lost, timeout=10)
    for job in jobs:
        record = await gateway.get(job.job_id)
        assert record.status is JobStatus.FAILED
        assert record.error
        assert record.error.cause is Cause.LOST
    letters = await gateway.list_dead()
    assert [(letter.cause, letter.request) for letter in letters] == [(Cause.LOST, None)] * 3
    redriven = await gateway.redrive()
    assert (redriven.jobs, len(redriven.unusable)) == ((), 3)


async def test_an_emptied_server_is_used_again(
    server: Server, start_server: Callable[..., ServerProcess], namespace: str
) -> None:
    """FLUSHALL: scripts, group and jobs are gone, and so are all seats."""
    private = FakeredisServer() if server.name == FAKEREDIS else start_server(server.name)
    processes = Processes(private, namespace, {})
    gateway, worker = await processes.open(), await processes.hire()
    raw = private.connect()
    try:
        await submit(gateway)
        await command(raw, "FLUSHALL")
        job = await submit(gateway)
        await worker.run(job.job_id)
        assert (await gateway.get(job.job_id)).status is JobStatus.SUCCEEDED
        await processes.assert_promises_kept()
    finally:
        await raw.aclose()
        await processes.close()


async def test_scripts_that_the_server_forgot_are_loaded_again(
    gateway: Store, worker: Worker, raw: Redis
) -> None:
    job = await submit(gateway)
    await raw.script_flush()
    await worker.run(job.job_id)
    await raw.script_flush()
    answers = await asyncio.gather(*(submit(gateway) for _ in range(20)))
    assert len(answers) == 20


# ---- entries that are no jobs


FOREIGN = {
    "no fields of ours": {"foreign": "entry"},
    "no request": {"job_id": "x"},
    "broken request": {"job_id": "x", "attempt": "1", "request": "{"},
    "request of another shape": {"job_id": "x", "attempt": "1", "request": "[1]"},
    "bytes": {"job_id": b"\xff\xfe", "attempt": "1", "request": '{"prompt":"p"}'},
    "a job never known": {"job_id": new_job_id(), "attempt": "1", "request": '{"prompt":"p"}'},
}


@pytest.mark.vandal
@pytest.mark.parametrize("fields", FOREIGN.values(), ids=list(FOREIGN))
async def test_a_foreign_entry_is_removed_and_counted(
    fields: dict[str, str], gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    before = await submit(gateway)
    await vandal.add_entry(fields)
    after = await submit(gateway)
    claimed = await worker.look()
    assert [lease.job_id for lease in claimed.leases] == [before.job_id, after.job_id]
    assert claimed.discarded == 1
    backlog = await gateway.depth()
    assert (backlog.lag, backlog.pending, backlog.unaccounted) == (0, 2, 0)


async def test_a_second_entry_for_a_live_job_is_dropped(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    """Promise P2: the record names the one live copy."""
    job = await submit(gateway)
    await vandal.copy_entry(job.job_id)
    claimed = await worker.look()
    assert [lease.job_id for lease in claimed.leases] == [job.job_id]
    assert claimed.discarded == 1
    await worker.finish(claimed.leases[0])
    assert await worker.look() == Claimed()


async def test_a_second_entry_for_an_ended_job_is_not_run(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    """BRIEF A3: a delivery of a job that has succeeded is settled without asking the model."""
    job = await submit(gateway)
    lease = await worker.lease()
    await vandal.copy_entry(job.job_id)
    await worker.finish(lease)
    claimed = await worker.look()
    assert (claimed.leases, claimed.short_circuits) == ((), 1)
    assert (await gateway.depth()).lag == 0


async def test_a_deleted_entry_that_was_delivered_does_not_stay_pending(
    processes: Processes, gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    job = await submit(gateway)
    await vandal.deliver(worker.name)
    await vandal.delete_entry(job.job_id)
    assert (await worker.look()).leases == ()

    async def nothing_pending() -> bool:
        await gateway.tend()
        await worker.look()
        backlog = await gateway.depth()
        return (backlog.pending, backlog.unaccounted) == (0, 0)

    await wait_until(nothing_pending, timeout=10)
    assert (await gateway.get(job.job_id)).status is JobStatus.FAILED


# ---- records that somebody broke


@pytest.mark.vandal
async def test_a_record_of_the_wrong_type_takes_no_other_job_with_it(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    broken = await submit(gateway)
    good = await submit(gateway)
    await vandal.make_wrong_type(vandal.keys.record(broken.job_id))
    claimed = await worker.look()
    assert [lease.job_id for lease in claimed.leases] == [good.job_id]
    assert claimed.discarded == 1
    assert await worker.finish(claimed.leases[0]) is Settled.SUCCEEDED
    with pytest.raises((JobNotFound, StoreError)):
        await gateway.get(broken.job_id)
    assert (await gateway.depth()).unaccounted == 1


@pytest.mark.vandal
@pytest.mark.parametrize("field", ["created", "state", "starts", "lease", "deadline"])
async def test_a_record_with_a_broken_field_takes_no_other_job_with_it(
    field: str, gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    broken = await submit(gateway)
    good = await submit(gateway)
    record = vandal.keys.record(broken.job_id)
    await vandal.raw.hset(record, field, "not ours")
    assert good.job_id in [lease.job_id for lease in (await worker.look()).leases]
    assert (await gateway.get(good.job_id)).status is JobStatus.RUNNING
    await gateway.tend()


@pytest.mark.vandal
async def test_a_culprit_fails_alone_and_its_neighbours_settle(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    """Promise P5: after an error the items of a call are sent again one by one."""
    for _ in range(3):
        await submit(gateway, stream=True)
    first, culprit, last = await worker.take(3)
    await vandal.make_wrong_type(vandal.keys.tokens(culprit.job_id))
    with suppress(StoreError):
        await worker.store.settle([finished(lease) for lease in (first, culprit, last)])
    for lease in (first, last):
        assert (await gateway.get(lease.job_id)).status is JobStatus.SUCCEEDED
    await vandal.raw.delete(vandal.keys.tokens(culprit.job_id))
    assert await worker.finish(culprit) is Settled.SUCCEEDED


@pytest.mark.vandal
async def test_a_broken_job_does_not_stop_the_claims_of_others(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    jobs = [await submit(gateway, stream=True) for _ in range(3)]
    await vandal.make_wrong_type(vandal.keys.tokens(jobs[1].job_id))
    good: set[str] = set()

    async def both_claimed() -> bool:
        try:
            good.update(lease.job_id for lease in (await worker.look()).leases)
        except StoreError:
            return False
        return good >= {jobs[0].job_id, jobs[2].job_id}

    await wait_until(both_claimed)


@pytest.mark.vandal
async def test_a_broken_job_does_not_stop_the_clock_for_others(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    broken = await submit(gateway, stream=True, expires_in_s=0.05)
    good = await submit(gateway, expires_in_s=0.06)
    await vandal.make_wrong_type(vandal.keys.tokens(broken.job_id))

    async def expired() -> bool:
        with suppress(StoreError):
            await gateway.tend()
        return (await gateway.get(good.job_id)).status is JobStatus.EXPIRED

    await wait_until(expired)


# ---- the numbers tell


@pytest.mark.vandal
async def test_an_entry_deleted_by_others_shows_as_unaccounted_until_it_is_dealt_with(
    gateway: Store, vandal: Vandal
) -> None:
    job = await submit(gateway)
    await vandal.delete_entry(job.job_id)
    assert (await gateway.depth()).unaccounted == 1
    lost = 0

    async def reconciled() -> bool:
        nonlocal lost
        lost += (await gateway.tend()).lost
        return lost == 1

    await wait_until(reconciled, timeout=10)
    assert (await gateway.depth()).unaccounted == 0


@pytest.mark.vandal
async def test_a_negative_lag_is_unknown(gateway: Store, worker: Worker, vandal: Vandal) -> None:
    """Entries deleted while pending leave more pending than there are entries."""
    for _ in range(2):
        await submit(gateway)
    for lease in await worker.take(2):
        await vandal.delete_entry(lease.job_id)
    backlog = await gateway.depth()
    assert (backlog.lag, backlog.pending) == (None, 2)


async def test_lag_is_right_after_somebody_trimmed_the_queue(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    """The server's own lag stays too high from then on."""
    jobs = [await submit(gateway) for _ in range(4)]
    await vandal.raw.xtrim(vandal.keys.jobs, maxlen=1, approximate=False)
    assert (await gateway.depth()).lag == 1
    lost = 0

    async def told() -> bool:
        nonlocal lost
        lost += (await gateway.tend()).lost
        return lost == 3

    await wait_until(told, timeout=10)
    await worker.run(jobs[3].job_id)
    backlog = await gateway.depth()
    assert (backlog.lag, backlog.pending, backlog.failed) == (0, 0, 3)


async def test_finishing_works_although_somebody_deleted_the_entry(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    job = await submit(gateway)
    lease = await worker.lease()
    await vandal.delete_entry(job.job_id)
    assert await worker.extend(lease) is LeaseState.HELD
    assert await worker.finish(lease) is Settled.SUCCEEDED


async def test_a_retry_without_its_request_ends_as_lost(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    """The request travels in the entry; the lease still has it, the store does not."""
    job = await submit(gateway)
    lease = await worker.lease()
    await vandal.delete_entry(job.job_id)
    assert await worker.fail(lease) is Settled.FAILED
    record = await gateway.get(job.job_id)
    assert record.error
    assert record.error.cause is Cause.LOST


async def test_a_live_lease_is_left_alone_by_the_reconciler(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    job = await submit(gateway)
    lease = await worker.lease()
    await vandal.acknowledge(job.job_id)
    for _ in range(5):
        tended = await gateway.tend()
        assert (tended.requeued, tended.lost) == (0, 0)
    assert await worker.finish(lease) is Settled.SUCCEEDED


async def test_a_due_time_that_somebody_deleted_comes_back(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    await submit(gateway)
    await worker.fail(await worker.lease(), retry_in=timedelta(milliseconds=50))
    expiring = await submit(gateway, expires_in_s=0.1)
    await vandal.raw.delete(f"{vandal.keys.namespace}:retries", f"{vandal.keys.namespace}:deadlines")

    async def dealt_with() -> bool:
        await gateway.tend()
        backlog = await gateway.depth()
        return (backlog.expired, backlog.queued, backlog.retrying) == (1, 1, 0)

    await wait_until(dealt_with, timeout=10)
    assert (await gateway.get(expiring.job_id)).status is JobStatus.EXPIRED


async def test_events_of_a_job_whose_log_was_deleted_still_end(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    job = await submit(gateway, stream=True)
    await worker.run()
    await vandal.raw.delete(vandal.keys.tokens(job.job_id))
    assert (await all_events(gateway, job.job_id))[-1].status is JobStatus.SUCCEEDED


@pytest.mark.vandal
async def test_one_broken_delayed_retry_does_not_stop_the_others(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    broken, whole = [await submit(gateway) for _ in range(2)]
    for lease in await worker.take(2):
        await worker.fail(lease, retry_in=timedelta(milliseconds=1))
    await vandal.raw.hdel(vandal.keys.record(broken.job_id), "request")  # pyright: ignore[reportGeneralTypeIssues]

    async def done() -> bool:
        await gateway.tend()
        return (await gateway.get(broken.job_id)).status is JobStatus.FAILED

    await wait_until(done)
    error = (await gateway.get(broken.job_id)).error
    assert error is not None
    assert error.cause is Cause.LOST
    await worker.run(whole.job_id)


@pytest.mark.vandal
async def test_a_request_that_cannot_be_read_ends_its_job_in_sight(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    job = await submit(gateway)
    await vandal.make_unreadable(job.job_id)
    await worker.look()
    ended = await gateway.get(job.job_id)
    assert ended.error is not None
    assert (ended.status, ended.error.cause) == (JobStatus.FAILED, Cause.PERMANENT)
