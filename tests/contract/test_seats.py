"""Seats: each worker has one, under the lowest free name, and a later holder is told from an earlier one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from common.errors import LabError, SeatLost, SlotTaken, StoreUnavailable
from common.fleet import Decision, Presence, Reason
from common.redis_store.keys import GROUP
from common.redis_store.reader import Reader
from common.redis_store.scripts import Scripts
from common.store import Store
from tests.keyspace import command
from tests.processes import Processes
from tests.requests import submit
from tests.vandal import Vandal
from tests.waiting import wait_until
from tests.workers import NOW, Worker, outlive

#: Seats run out after three heartbeats.
SHORT_SEATS = pytest.mark.settings(heartbeat_ms=50)


def decision(desired: int) -> Decision:
    return Decision(
        desired=desired, reason=Reason.START, lag=0, pending=0, retrying=0, min=0, max=8, observed=True
    )


async def publish(store: Store, desired: int) -> None:
    term = await store.lead("scaler", timedelta(seconds=30))
    assert term is not None
    await store.publish_scale(decision(desired), term)


async def consumers(vandal: Vandal) -> list[str]:
    return [row["name"] for row in await vandal.raw.xinfo_consumers(vandal.keys.jobs, GROUP)]


async def test_workers_get_the_lowest_free_names(processes: Processes) -> None:
    workers = [await processes.hire() for _ in range(3)]
    assert [worker.name for worker in workers] == ["worker-1", "worker-2", "worker-3"]
    await workers[1].store.retire()
    assert (await processes.hire()).name == "worker-2"
    assert (await processes.hire()).name == "worker-4"


async def test_workers_that_come_together_get_different_names(processes: Processes) -> None:
    stores = [await processes.open() for _ in range(10)]
    seats = await asyncio.gather(
        *(store.announce(Presence(instance=f"pod-{n}")) for n, store in enumerate(stores))
    )
    assert sorted(seat.worker for seat in seats) == sorted(f"worker-{n}" for n in range(1, 11))


async def test_a_heartbeat_keeps_the_seat(worker: Worker) -> None:
    seat = worker.seat
    for _ in range(3):
        assert await worker.heartbeat() == seat


@SHORT_SEATS
async def test_a_silent_workers_seat_is_free_when_its_time_is_over(processes: Processes) -> None:
    first = await processes.hire()
    store = await processes.open()
    await outlive(first)
    seat = await store.announce(Presence(instance="pod-b"))
    assert seat.worker == first.name
    assert seat.epoch > first.seat.epoch


async def test_the_same_instance_takes_its_seat_back_at_once_under_a_higher_epoch(
    processes: Processes,
) -> None:
    await processes.hire("pod-a")
    before = await processes.hire("pod-b")
    after = await processes.hire("pod-b")
    assert (after.name, before.name) == ("worker-2", "worker-2")
    assert after.seat.epoch > before.seat.epoch


async def test_a_superseded_process_does_not_take_the_seat_back(processes: Processes, gateway: Store) -> None:
    """Two processes of one instance must not throw each other out in turn."""
    before = await processes.hire("pod-a")
    after = await processes.hire("pod-a")
    await submit(gateway)
    with pytest.raises(SeatLost):
        await before.store.claim(1, NOW)
    for _ in range(3):
        with suppress(LabError):
            await before.heartbeat()
    seat = after.seat
    assert await after.heartbeat() == seat
    await submit(gateway)
    await after.run()


async def test_a_superseded_process_that_has_not_noticed_does_not_take_the_seat_back(
    processes: Processes,
) -> None:
    before = await processes.hire("pod-a")
    after = await processes.hire("pod-a")
    with suppress(LabError):
        await before.heartbeat()
    seat = after.seat
    assert await after.heartbeat() == seat


@SHORT_SEATS
async def test_a_worker_that_lost_its_seat_may_announce_again(processes: Processes, gateway: Store) -> None:
    paused = await processes.hire()
    await outlive(paused)
    other = await processes.hire()
    assert other.name == paused.name
    await submit(gateway)
    with pytest.raises(SeatLost):
        await paused.store.claim(1, NOW)
    await other.heartbeat()
    await paused.heartbeat()
    assert paused.name != other.name
    await paused.run()


async def test_an_explicit_id_is_taken_as_given(processes: Processes) -> None:
    worker = await processes.hire(worker_id="gpu-a")
    assert worker.name == "gpu-a"
    assert (await processes.hire(worker_id="worker-7")).name == "worker-7"
    assert (await processes.hire()).name == "worker-1"


async def test_a_second_holder_of_an_explicit_id_is_refused(processes: Processes) -> None:
    await processes.hire("pod-a", worker_id="gpu-a")
    with pytest.raises(SlotTaken):
        await processes.hire("pod-b", worker_id="gpu-a")


async def test_an_explicit_id_is_free_after_its_holder_retired(processes: Processes) -> None:
    first = await processes.hire(worker_id="gpu-a")
    await first.store.retire()
    assert (await processes.hire(worker_id="gpu-a")).seat.epoch > first.seat.epoch


async def test_the_same_instance_takes_its_explicit_id_back_at_once(processes: Processes) -> None:
    before = await processes.hire("pod-a", worker_id="gpu-a")
    after = await processes.hire("pod-a", worker_id="gpu-a")
    assert after.name == "gpu-a"
    assert after.seat.epoch > before.seat.epoch


@SHORT_SEATS
async def test_an_explicit_id_is_free_when_its_holder_has_been_silent(processes: Processes) -> None:
    await processes.hire("pod-a", worker_id="gpu-a")
    store = await processes.open()

    async def seated() -> bool:
        try:
            return (await store.announce(Presence(instance="pod-b", worker_id="gpu-a"))).worker == "gpu-a"
        except SlotTaken:
            return False

    await wait_until(seated)


async def test_an_inactive_worker_moves_to_a_lower_free_seat(processes: Processes, gateway: Store) -> None:
    """So that the lowest N are always alive."""
    first, _, third = [await processes.hire() for _ in range(3)]
    await publish(gateway, 2)
    assert not (await third.heartbeat()).active
    await first.store.retire()
    before = third.seat
    after = await third.heartbeat()
    assert (after.worker, after.active) == ("worker-1", True)
    assert after.epoch > before.epoch
    assert (await processes.hire()).name == "worker-3"
    await submit(gateway)
    await third.run()


async def test_a_worker_that_moves_leaves_no_consumer_behind(
    processes: Processes, gateway: Store, vandal: Vandal
) -> None:
    first, second = [await processes.hire() for _ in range(2)]
    await second.look()
    await publish(gateway, 1)
    await second.heartbeat()
    await first.store.retire()
    await second.heartbeat()
    assert await consumers(vandal) == []


async def test_a_worker_that_moves_while_it_reads_leaves_no_consumer_behind(
    processes: Processes, gateway: Store, vandal: Vandal
) -> None:
    """A read that was under way makes its consumer anew, even with a job."""
    first, second = [await processes.hire() for _ in range(2)]
    reading = asyncio.create_task(second.store.claim(1, timedelta(seconds=5)))

    async def reads() -> bool:
        return "worker-2" in await consumers(vandal)

    await wait_until(reads)
    await publish(gateway, 1)
    await second.heartbeat()
    await first.store.retire()
    assert (await second.heartbeat()).worker == "worker-1"
    await submit(gateway)
    (lease,) = (await reading).leases
    assert "worker-2" in await consumers(vandal)
    await second.finish(lease)
    await second.look()
    assert await consumers(vandal) == ["worker-1"]


async def one_that_moved(processes: Processes, gateway: Store, vandal: Vandal) -> Worker:
    """From worker-2 to worker-1, while it read: that makes the former consumer anew."""
    first, second = [await processes.hire() for _ in range(2)]
    await publish(gateway, 1)
    await second.heartbeat()
    await first.store.retire()
    assert (await second.heartbeat()).worker == "worker-1"
    await command(vandal.raw, "XGROUP", "CREATECONSUMER", vandal.keys.jobs, GROUP, "worker-2")
    return second


async def test_a_worker_that_has_moved_and_retires_leaves_no_consumer_behind(
    processes: Processes, gateway: Store, vandal: Vandal
) -> None:
    second = await one_that_moved(processes, gateway, vandal)
    await second.store.retire()
    assert await consumers(vandal) == []


async def test_the_consumer_of_a_former_seat_goes_after_an_outage_too(
    processes: Processes, gateway: Store, vandal: Vandal, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = await one_that_moved(processes, gateway, vandal)

    async def away(*_: object, **__: object) -> int:
        raise StoreUnavailable

    with monkeypatch.context() as outage:
        outage.setattr(Scripts, "prune", away)
        with pytest.raises(StoreUnavailable):
            await second.look()
    await second.look()
    assert await consumers(vandal) == ["worker-1"]


async def test_a_seat_taken_while_the_former_is_read_is_read_from_its_start(
    processes: Processes, gateway: Store, vandal: Vandal, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = [await processes.hire() for _ in range(2)]
    await publish(gateway, 1)
    await second.heartbeat()
    jobs = {(await submit(gateway)).job_id for _ in range(2)}
    # The older one waits where the worker goes.
    await vandal.deliver("worker-1")
    await vandal.deliver("worker-2")
    read = Reader.read

    async def crossed(reader: Reader, *of: Any) -> list[Any]:
        monkeypatch.undo()
        entries = await read(reader, *of)
        await first.store.retire()
        assert (await second.heartbeat()).worker == "worker-1"
        return entries

    monkeypatch.setattr(Reader, "read", crossed)
    assert {lease.job_id for lease in await second.take(2)} == jobs


@pytest.mark.settings(heartbeat_ms=500)
async def test_a_seat_is_left_to_a_restart_of_its_instance_for_a_while(
    processes: Processes, gateway: Store
) -> None:
    """Taken by an idle worker, its jobs would have to wait for their leases to run out."""
    first = await processes.hire("pod-a")
    idle = await processes.hire("pod-b")
    await publish(gateway, 1)
    await outlive(first)
    assert (await idle.heartbeat()).worker == "worker-2"
    assert (await processes.hire("pod-a")).name == "worker-1"


@SHORT_SEATS
async def test_a_seat_that_nobody_comes_back_to_is_taken_by_an_idle_worker(
    processes: Processes, gateway: Store
) -> None:
    await processes.hire("pod-a")
    idle = await processes.hire("pod-b")
    await publish(gateway, 1)

    async def moved() -> bool:
        return (await idle.heartbeat()).worker == "worker-1"

    await wait_until(moved)


async def test_a_busy_worker_keeps_its_seat(processes: Processes, gateway: Store) -> None:
    first = await processes.hire()
    busy = await processes.hire()
    await submit(gateway)
    lease = await busy.lease()
    await publish(gateway, 1)
    await busy.heartbeat(busy=1)
    await first.store.retire()
    assert (await busy.heartbeat(busy=1)).worker == "worker-2"
    await busy.finish(lease)
    assert (await busy.heartbeat(busy=0)).worker == "worker-1"


async def test_a_worker_that_holds_a_lease_keeps_its_seat_whatever_it_says(
    processes: Processes, gateway: Store
) -> None:
    first = await processes.hire()
    busy = await processes.hire()
    await submit(gateway)
    lease = await busy.lease()
    await publish(gateway, 1)
    await busy.heartbeat(busy=0)
    await first.store.retire()
    assert (await busy.heartbeat(busy=0)).worker == "worker-2"
    await busy.finish(lease)


async def test_an_explicit_id_does_not_move(processes: Processes, gateway: Store) -> None:
    worker = await processes.hire(worker_id="worker-3")
    await publish(gateway, 1)
    assert not (await worker.heartbeat()).active
    assert (await worker.heartbeat()).worker == "worker-3"


async def test_the_instance_that_counts_is_the_one_announced(processes: Processes, gateway: Store) -> None:
    store = await processes.open(instance="what-the-settings-say")
    worker = await Worker.seated(store, Presence(instance="pod-a"))
    await submit(gateway)
    await worker.run()


async def test_without_a_decision_every_worker_is_active(processes: Processes) -> None:
    assert [(await processes.hire()).seat.active for _ in range(3)] == [True] * 3


async def test_workers_above_the_desired_count_are_inactive(processes: Processes, gateway: Store) -> None:
    workers = [await processes.hire() for _ in range(3)]
    named = await processes.hire(worker_id="gpu-a")
    for desired in (2, 0, 3):
        await publish(gateway, desired)
        assert [(await worker.heartbeat()).active for worker in workers] == [n < desired for n in range(3)]
        assert (await named.heartbeat()).active


async def test_a_worker_stands_in_for_a_lower_one_that_cannot_read(
    processes: Processes, gateway: Store
) -> None:
    workers = [await processes.hire() for _ in range(3)]
    named = await processes.hire(worker_id="gpu-a")
    await publish(gateway, 1)

    async def active(*ready: bool) -> list[bool]:
        for worker, able in zip(workers, ready, strict=True):
            await worker.heartbeat(ready=able)
        seats = [await worker.heartbeat() for worker in workers]
        assert (await named.heartbeat()).active
        assert (await gateway.scale()).active == 1 + sum(seat.active for seat in seats)
        return [seat.active for seat in seats]

    assert await active(True, True, True) == [True, False, False]
    assert await active(False, True, True) == [True, True, False]
    assert await active(False, False, True) == [True, True, True]
    assert await active(True, False, True) == [True, False, False]
    assert await active(True, True, True) == [True, False, False]


@pytest.mark.settings(max_attempts=2)
async def test_a_worker_with_a_suspect_is_stood_in_for(processes: Processes, gateway: Store) -> None:
    """It reads nothing else until the suspect has ended, which may take as long as a job may."""
    first, second = await processes.hire(), await processes.hire()
    await submit(gateway)
    await first.lease()
    await publish(gateway, 1)
    assert not (await second.heartbeat()).active
    restarted = await processes.hire(first.presence.instance)
    suspect = await restarted.lease()
    assert suspect.alone
    assert (await restarted.heartbeat()).active
    assert (await second.heartbeat()).active
    await restarted.finish(suspect)
    await restarted.heartbeat()
    assert not (await second.heartbeat()).active


@pytest.mark.settings(scale_stale_ms=200)
async def test_when_the_scaler_has_died_every_worker_is_active(processes: Processes, gateway: Store) -> None:
    worker = await processes.hire()
    await publish(gateway, 0)
    assert not (await worker.heartbeat()).active

    async def active() -> bool:
        return (await worker.heartbeat()).active

    await wait_until(active)


async def test_retiring_twice_or_without_a_seat_does_nothing(worker: Worker, gateway: Store) -> None:
    await worker.store.retire()
    await worker.store.retire()
    await gateway.retire()


async def test_a_retired_worker_claims_nothing(worker: Worker, gateway: Store) -> None:
    await submit(gateway)
    await worker.store.retire()
    with pytest.raises(SeatLost):
        await worker.store.claim(1, NOW)


async def test_retiring_does_not_take_the_seat_of_a_successor(processes: Processes) -> None:
    before = await processes.hire("pod-a")
    after = await processes.hire("pod-a")
    await before.store.retire()
    seat = after.seat
    assert await after.heartbeat() == seat


@pytest.mark.settings(claim_idle_ms=400)
async def test_what_a_retired_worker_still_held_is_taken_over(processes: Processes, gateway: Store) -> None:
    job = await submit(gateway)
    leaving = await processes.hire()
    await leaving.lease(job.job_id)
    await leaving.store.retire()
    other = await processes.hire()
    assert (await other.lease(job.job_id)).reclaimed
