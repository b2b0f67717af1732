"""Damage to keys of the fleet, and to counts: what can be made anew is, and the rest shows."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest

from common.errors import StoreCorrupt
from common.redis_store.calls import Calls
from common.redis_store.scripts import Keep, Scripts
from common.redis_store.wire import Argument, Reply
from common.store import Settled, Store
from tests.contract.test_scale import decision
from tests.keyspace import command
from tests.processes import Processes
from tests.requests import submit
from tests.vandal import Vandal
from tests.waiting import wait_until
from tests.workers import Worker

pytestmark = pytest.mark.vandal

# ---- in keys that can be made anew

HELPERS = [
    "lock:sweep", "lock:idle sweep", "lock:reconcile", "worker:worker-1", "worker:worker-2", "workers",
    "scale", "scale:log", "recent", "owners", "retries", "deadlines",
]  # fmt: skip


@pytest.mark.parametrize("name", HELPERS)
async def test_a_key_that_can_be_made_anew_is(
    name: str, processes: Processes, gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    """The fleet goes on, its scaler too, and nothing waits for a person who deletes the key."""
    other = await processes.hire()
    key = f"{vandal.keys.namespace}:{name}"
    await submit(gateway, owner="ann", expires_in_s=60)
    await worker.fail(await worker.lease(), retry_in=timedelta(milliseconds=1))
    await vandal.make_wrong_type(key)

    async def accounted_for() -> bool:
        for each in (worker, other):
            for lease in (await each.look()).leases:
                await each.finish(lease)
            with suppress(StoreCorrupt):  # A round with a key that the round itself makes anew.
                await each.store.tend()
        with suppress(StoreCorrupt):
            return (await gateway.depth()).succeeded == 1
        return False

    await wait_until(accounted_for)
    await submit(gateway, owner="ann")
    for each in (worker, other):
        await each.heartbeat()
    term = await gateway.lead("scaler", timedelta(minutes=1))
    assert term is not None
    await gateway.publish_scale(decision(2), term)
    view = await gateway.scale()
    assert {each.worker for each in view.workers} == {"worker-1", "worker-2"}
    assert view.decision == decision(2)
    assert len(await gateway.list_jobs()) >= 1
    assert (await gateway.depth()).unaccounted == 0


async def test_a_lock_that_nobody_of_us_took_ends(gateway: Store, worker: Worker, vandal: Vandal) -> None:
    for name in ("sweep", "idle sweep"):
        await vandal.raw.set(f"{vandal.keys.namespace}:lock:{name}", "somebody")
    await worker.look()
    assert await vandal.raw.get(f"{vandal.keys.namespace}:lock:sweep") != "somebody"


async def test_a_seat_that_nobody_holds_takes_no_place(
    processes: Processes, gateway: Store, vandal: Vandal
) -> None:
    seconds, _ = await command(vandal.raw, "TIME")
    later = (int(seconds) + 3600) * 1000
    await command(
        vandal.raw, "ZADD", f"{vandal.keys.namespace}:workers", later, "worker-1", later, "worker-2"
    )
    term = await gateway.lead("scaler", timedelta(minutes=1))
    assert term is not None
    await gateway.publish_scale(decision(1), term)
    worker = await processes.hire()
    assert (worker.name, worker.seat.active) == ("worker-1", True)


@pytest.mark.parametrize("name", ["jobs", "dlq", "counts"])
async def test_a_key_that_nothing_can_make_anew_is_damage_that_shows(
    name: str, gateway: Store, vandal: Vandal
) -> None:
    key = f"{vandal.keys.namespace}:{name}"
    await vandal.make_wrong_type(key)
    for call in (gateway.ping, gateway.depth, lambda: submit(gateway)):
        with pytest.raises(StoreCorrupt):
            await call()
    assert await vandal.raw.type(key) == "list"


@pytest.mark.parametrize("value", ["q", "1.5", "1e3", "inf", "", "9" * 25])
async def test_a_count_that_cannot_be_counted_on_is_damage_before_any_write(
    value: str, gateway: Store, vandal: Vandal
) -> None:
    await submit(gateway)
    await command(vandal.raw, "HSET", f"{vandal.keys.namespace}:counts", "submitted", value)
    for call in (gateway.ping, gateway.depth, lambda: submit(gateway)):
        with pytest.raises(StoreCorrupt):
            await call()
    assert await vandal.raw.xlen(vandal.keys.jobs) == 1


# ---- numbers in them


@pytest.mark.parametrize("value", ["q", "", "1.5", "-1", "inf", "9" * 25])
async def test_an_epoch_that_somebody_broke_is_replaced_by_a_higher_one(
    value: str, gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    job = await submit(gateway)
    lease = await worker.lease(job.job_id)
    before = worker.seat
    await command(vandal.raw, "HSET", f"{vandal.keys.namespace}:worker:{worker.name}", "epoch", value)
    after = await worker.heartbeat()
    assert (after.worker, after.active) == (before.worker, before.active)
    assert after.epoch > before.epoch
    assert (await worker.look()).leases == ()
    assert await worker.finish(lease) is Settled.SUCCEEDED
    assert [each.n for each in (await gateway.get(job.job_id)).attempts] == [1]


@pytest.mark.parametrize("value", ["q", "", "-1", "9" * 25])
@pytest.mark.parametrize("field", ["desired", "updated", "term", "leads_until", "reason", "lag", "min"])
async def test_a_published_scale_that_somebody_broke_is_published_again(
    field: str, value: str, gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    first = await gateway.lead("scaler", timedelta(minutes=1))
    assert first is not None
    await gateway.publish_scale(decision(2), first)
    await command(vandal.raw, "HSET", f"{vandal.keys.namespace}:scale", field, value)
    await gateway.scale()
    assert (await worker.heartbeat()).active
    term = await gateway.lead("scaler", timedelta(minutes=1))
    assert term is not None
    assert term >= first
    await gateway.publish_scale(decision(1), term)
    assert (await gateway.scale()).decision == decision(1)


@pytest.mark.parametrize("field", ["concurrency", "busy", "seen"])
async def test_a_worker_whose_seat_somebody_broke_hides_no_other_and_shows_again(
    field: str, processes: Processes, gateway: Store, worker: Worker, vandal: Vandal
) -> None:
    async def shown() -> list[str]:
        return sorted(each.worker for each in (await gateway.scale()).workers)

    other = await processes.hire()
    seat = f"{vandal.keys.namespace}:worker:{worker.name}"
    await command(vandal.raw, "HSET", seat, field, "9" * 25 if field == "seen" else "q")
    assert await shown() == [other.name]
    await worker.heartbeat()
    assert await shown() == [worker.name, other.name]


@pytest.mark.parametrize("score", ["inf", "-inf", "1e300", "1e18"])
@pytest.mark.parametrize("name", ["retries", "deadlines"])
async def test_a_time_beyond_all_times_does_not_stop_the_clock(
    name: str, score: str, gateway: Store, vandal: Vandal
) -> None:
    await command(vandal.raw, "ZADD", f"{vandal.keys.namespace}:{name}", score, "somebody's")
    next_in = (await gateway.tend()).next_in
    assert next_in is None or timedelta(0) <= next_in <= timedelta(days=1)


# ---- in a script's reply


class Says(Calls):
    """Each script replies the same."""

    def __init__(self, reply: object) -> None:
        self._says = reply

    async def run(self, script: str, *arguments: Argument) -> Reply:
        return self._says

    def start_script(self, script: str, *arguments: Argument) -> asyncio.Future[Reply]:
        return asyncio.ensure_future(self.run(script))


REPLIES: list[object] = [None, 7, b"\xff", b"seat", [], [b"seat"], [None], [[b"run"]], [b"seat", 7, None]]


@pytest.mark.parametrize("reply", REPLIES, ids=repr)
async def test_a_reply_of_another_shape_is_damage_and_nothing_else(reply: object) -> None:
    says = Scripts(Says(reply), Keep(1, 1, 1))
    seat = {"instance": "i", "process": "p", "worker_id": "", "held": "", "lost": False, "movable": False}
    answers = await asyncio.gather(
        says.announce(**seat, ttl=1, keep=1, concurrency=1, busy=0, ready=True),  # pyright: ignore[reportArgumentType]
        says.promote(limit=1),
        says.expire(limit=1),
        says.cancel(job_id="j"),
        says.append(job_id="j", token="t", seq=1, text=""),
        says.lead(candidate="c", ttl=1),
        says.extend(worker="w", leases=[("j", "t")]),
        says.begin(
            idle=1, max_attempts=1, worker="w", instance="i", epoch=1, busy=0, deliveries=[("1-1", "j", "t")]
        ),
        return_exceptions=True,
    )
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    assert [error for error in errors if not isinstance(error, StoreCorrupt)] == []
    assert len(errors) >= 5
