"""The limit of unfinished jobs of one owner: exact, over all gateways and all ways a job can end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from common.errors import OwnerFull
from common.store import GatewayStore, Settled, Store
from tests.contract.test_owners import bury
from tests.processes import Processes
from tests.requests import submission, submit
from tests.vandal import Vandal
from tests.waiting import wait_until
from tests.workers import Worker


async def fits(store: GatewayStore, owner: str = "ann", max_open: int = 1) -> bool:
    """Whether there was room for one more."""
    try:
        await store.submit(submission(owner=owner), max_open=max_open)
    except OwnerFull:
        return False
    return True


async def test_racing_gateways_accept_exactly_as_many_as_the_limit(processes: Processes) -> None:
    gateways = [await processes.open() for _ in range(3)]
    tries = [fits(gateway, max_open=7) for gateway in gateways for _ in range(10)]
    assert sum(await asyncio.gather(*tries)) == 7
    assert await fits(gateways[0], "ben", max_open=7)
    assert (await gateways[0].depth()).submitted == 8


async def test_jobs_without_an_owner_have_no_limit_and_are_not_counted(
    gateway: Store, vandal: Vandal
) -> None:
    for _ in range(3):
        await gateway.submit(submission(), max_open=1)
    assert not await vandal.raw.exists(vandal.keys.owners)


async def test_a_limit_of_0_is_none(gateway: Store) -> None:
    for _ in range(3):
        assert await fits(gateway, max_open=0)


async def test_a_replay_needs_no_room(gateway: Store) -> None:
    first = await gateway.submit(submission(owner="ann", idempotency_key="k"), max_open=1)
    again = await gateway.submit(submission(owner="ann", idempotency_key="k"), max_open=1)
    assert (again.job.job_id, again.replayed) == (first.job.job_id, True)


# ---- endings


@dataclass(frozen=True)
class Scene:
    processes: Processes
    gateway: Store
    worker: Worker
    vandal: Vandal

    async def finish(self) -> None:
        await self.worker.run()

    async def fail(self) -> None:
        await self.worker.fail(await self.worker.lease(), retry_in=None)

    async def cancel(self) -> None:
        await self.gateway.cancel((await self.gateway.list_jobs())[0].job_id)

    async def expire(self) -> None:
        async def expired() -> bool:
            return (await self.gateway.tend()).expired > 0

        await wait_until(expired)

    async def crash(self) -> None:
        instance = self.worker.presence.instance
        store = await self.processes.open(instance=instance, max_attempts=1)
        await self.worker.lease()
        successor = await Worker.seated(store, self.worker.presence)
        assert (await successor.look()).crashed_out == 1

    async def lose(self) -> None:
        await self.vandal.delete_entry((await self.gateway.list_jobs())[0].job_id)
        await wait_until(self.lost)

    async def lost(self) -> bool:
        await self.gateway.tend()
        return (await self.gateway.depth()).failed == 1


Ending = Callable[[Scene], Awaitable[None]]
ENDINGS: dict[str, tuple[Ending, dict[str, Any]]] = {
    "finish": (Scene.finish, {}),
    "fail": (Scene.fail, {}),
    "cancel": (Scene.cancel, {}),
    "expire": (Scene.expire, {"expires_in_s": 0.2}),
    "crash": (Scene.crash, {}),
    "lose": (Scene.lose, {}),
}


@pytest.mark.parametrize(("end", "fields"), ENDINGS.values(), ids=ENDINGS.keys())
async def test_every_ending_makes_room_once(
    processes: Processes, gateway: Store, worker: Worker, vandal: Vandal, end: Ending, fields: dict[str, Any]
) -> None:
    await submit(gateway, owner="ann", **fields)
    assert not await fits(gateway)
    await end(Scene(processes, gateway, worker, vandal))
    assert await fits(gateway)
    assert not await fits(gateway)


@pytest.mark.sent_twice
async def test_an_ending_that_arrives_twice_makes_room_once(gateway: Store, worker: Worker) -> None:
    await submit(gateway, owner="ann")
    await submit(gateway, owner="ann")
    await worker.run()
    assert await fits(gateway, max_open=2)
    assert not await fits(gateway, max_open=2)


async def test_a_job_that_waits_for_another_try_keeps_its_room(gateway: Store, worker: Worker) -> None:
    await submit(gateway, owner="ann")
    assert await worker.fail(await worker.lease(), retry_in=timedelta(hours=1)) is Settled.RETRYING
    assert not await fits(gateway)


@pytest.mark.sent_twice
async def test_a_redrive_needs_room_and_takes_it(gateway: Store, worker: Worker) -> None:
    dead = [await bury(gateway, worker, "ann") for _ in range(3)]
    redriven = await gateway.redrive(owner="ann", max_open=2)
    assert [old for old, _ in redriven.jobs] == dead[:2]
    assert not await fits(gateway, max_open=2)
    with pytest.raises(OwnerFull):
        await gateway.redrive(owner="ann", max_open=2)
    assert [letter.job_id for letter in await gateway.list_dead()] == [dead[2]]


@pytest.mark.vandal
@pytest.mark.parametrize("value", ["-5", "many", "", "nan", None])
async def test_a_count_that_somebody_broke_hinders_no_job(
    gateway: Store, worker: Worker, vandal: Vandal, value: str | None
) -> None:
    """It is taken for none, and right again once the owner has no unfinished job."""
    await submit(gateway, owner="ann")
    if value is None:
        await vandal.raw.delete(vandal.keys.owners)
    else:
        await vandal.raw.hset(vandal.keys.owners, '"ann"', value)
    await worker.run()
    assert not await vandal.raw.exists(vandal.keys.owners)
    assert await fits(gateway)
    assert not await fits(gateway)
    assert (await gateway.depth()).unaccounted == 0


@pytest.mark.parametrize("owner", ['quoted "ann"', "späte ☃", "a:b", "{tag}"])
async def test_an_owner_of_any_name_is_counted(gateway: Store, worker: Worker, owner: str) -> None:
    assert await fits(gateway, owner)
    assert not await fits(gateway, owner)
    await worker.run()
    assert await fits(gateway, owner)
