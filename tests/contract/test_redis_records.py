"""Damage to a job: what somebody put in the place of a record, a result or a key costs that job alone."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest

from common.errors import JobEnded, JobNotFound, StoreCorrupt
from common.job import JobStatus
from common.store import Lease, Settled, Store
from tests.keyspace import command
from tests.requests import submission, submit
from tests.vandal import Vandal
from tests.workers import Worker

pytestmark = pytest.mark.vandal

# ---- under an idempotency key

NOT_OURS = {
    "garbage": ("SET", "garbage"),
    "nothing": ("SET", ""),
    "no token": ("SET", '{"status":"succeeded"}'),
    "no such status": ("SET", '{"status":"lost","token":"t"}'),
    "only a head": ("SET", '{"status":"succeeded","token":"t"}'),
    "a list": ("RPUSH", "garbage"),
}
not_ours = pytest.mark.parametrize("put", NOT_OURS.values(), ids=list(NOT_OURS))


async def replace(vandal: Vandal, key: str, put: tuple[str, str]) -> None:
    await vandal.raw.delete(key)
    await command(vandal.raw, put[0], key, put[1])


@not_ours
@pytest.mark.parametrize("ended", [True, False])
async def test_a_job_that_somebody_replaced_is_damage_to_all_who_ask_for_it(
    put: tuple[str, str], ended: bool, gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    job = await submit(gateway, idempotency_key="k")
    if ended:
        await worker.run()
    keys = vandal.keys
    await replace(vandal, keys.result(job.job_id) if ended else keys.record(job.job_id), put)
    with pytest.raises(StoreCorrupt):
        await gateway.submit(submission(idempotency_key="k"))
    with pytest.raises(StoreCorrupt):
        await gateway.get(job.job_id)
    with pytest.raises((StoreCorrupt, JobEnded)):
        await gateway.cancel(job.job_id)
    assert await gateway.list_jobs() == []


@pytest.mark.parametrize("put", [("SET", "x"), ("SET", ""), ("SET", "a b c"), ("RPUSH", "x")])
async def test_an_idempotency_key_that_somebody_replaced_does_not_make_a_second_job(
    put: tuple[str, str], gateway: Store, vandal: Vandal
) -> None:
    await submit(gateway, idempotency_key="k", owner="ann")
    await replace(vandal, f"{vandal.keys.namespace}:idem:ann:k", put)
    with pytest.raises(StoreCorrupt):
        await gateway.submit(submission(idempotency_key="k", owner="ann"))
    assert (await gateway.depth()).submitted == 1


# ---- in one record

NUMBERS = ["9" * 25, "1e300", "1e17", "inf", "nan", "-1", "0x10", "1.5", "", "q"]
ENTRIES = ["junk", "", "-", "+", "0-0", "9" * 25, "1-" + "9" * 25, "18446744073709551616-0", "1-1-1"]
TEXTS = ['"', "succeeded"]
FIELDS = {
    **dict.fromkeys(("created", "started", "deadline", "due"), NUMBERS),
    **dict.fromkeys(("lease", "epoch", "starts", "refunds"), NUMBERS),
    **dict.fromkeys(("state", "token", "worker", "owner", "ledger", "answer", "settled"), TEXTS),
    "entry": ENTRIES,
}


async def bring_to(phase: str, worker: Worker, count: int) -> list[Lease]:
    """Jobs that are queued, held by the worker, or wait for a retry."""
    leases = [] if phase == "queued" else await worker.take(count)
    if phase == "retrying":
        for lease in leases:
            await worker.fail(lease, retry_in=timedelta(milliseconds=100))
    return leases if phase == "running" else []


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("phase", ["queued", "running", "retrying"])
async def test_records_with_a_broken_field_hide_and_stop_no_other_job(
    phase: str, field: str, gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    """Whatever is in it: a time in no calendar, a number that is none, an entry that cannot be."""
    broken = [(await submit(gateway, expires_in_s=60, stream=True)).job_id for _ in FIELDS[field]]
    good = (await submit(gateway, expires_in_s=60, stream=True)).job_id
    leases = await bring_to(phase, worker, len(broken) + 1)
    for job_id, value in zip(broken, FIELDS[field], strict=True):
        await command(vandal.raw, "HSET", vandal.keys.record(job_id), field, value)
    assert good in [job.job_id for job in await gateway.list_jobs()]
    assert len(await worker.store.extend(leases)) == len(leases)
    while good not in [lease.job_id for lease in leases]:
        await gateway.tend()
        leases += (await worker.look(limit=1)).leases
    (lease,) = [lease for lease in leases if lease.job_id == good]
    assert await worker.finish(lease) is Settled.SUCCEEDED
    for job_id in broken:
        for call in (gateway.get, gateway.cancel, gateway.get):
            with suppress(StoreCorrupt, JobNotFound, JobEnded):
                await call(job_id)
    assert good in [job.job_id for job in await gateway.list_jobs()]
    await gateway.tend()


@pytest.mark.parametrize("settle", ["cancel", "finish"])
async def test_a_job_whose_record_names_no_entry_is_read_and_ends(
    settle: str, gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    job = await submit(gateway)
    lease = await worker.lease()
    await command(vandal.raw, "HSET", vandal.keys.record(job.job_id), "entry", "junk")
    assert (await gateway.get(job.job_id)).status is JobStatus.RUNNING
    if settle == "cancel":
        assert (await gateway.cancel(job.job_id)).status is JobStatus.CANCELLED
    else:
        assert await worker.finish(lease) is Settled.SUCCEEDED


async def test_a_retry_whose_due_time_somebody_broke_is_queued_again(
    gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    job = await submit(gateway)
    await worker.fail(await worker.lease(), retry_in=timedelta(hours=1))
    await command(vandal.raw, "HSET", vandal.keys.record(job.job_id), "due", "junk")
    await gateway.tend()
    await worker.run(job.job_id)
    assert (await gateway.depth()).unaccounted == 0


async def test_events_that_are_not_ours_are_left_out(gateway: Store, worker: Worker, vandal: Vandal) -> None:
    job = await submit(gateway, stream=True)
    await command(vandal.raw, "XADD", vandal.keys.tokens(job.job_id), "*", "foreign", "entry")
    await worker.run()
    events = [event async for event in gateway.events(job.job_id)]
    assert [event.status for event in events] == [JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.SUCCEEDED]
