"""Each bound of the long run can be broken, and what is not known breaks it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from common.redis_store.keys import GROUP, Keys
from common.store import Store
from tests.endurance.beside import beside
from tests.endurance.bounds import GROWTH, LOOP_LAG_S, PARTS, SERVER_SLACK, faults
from tests.endurance.run import Account, Plan, look_at_the_stream
from tests.endurance.samples import MIB, Held, Samples
from tests.requests import submit
from tests.workers import Worker

PLAN = Plan(jobs=100, kills=2, workers=4)


def sound() -> Account:
    samples = Samples(
        taken=2,
        unaccounted=[0, 0],
        rss=dict.fromkeys(PARTS, 51 * MIB),
        rss_at_first=dict.fromkeys(PARTS, 50 * MIB),
        server=[Held(2 * MIB, live=0, ended=0), Held(2 * MIB + 50_000, live=0, ended=100)],
        consumers=4,
        loop_lags={part: [0.0, 0.01] for part in PARTS},
    )
    ends = Counter({"succeeded": 100})
    return Account(accepted=100, seconds=1, kills=2, samples=samples, ends=ends, entries=0, pending=0)


def test_a_sound_run_breaks_no_bound() -> None:
    assert faults(PLAN, sound()) == []


BROKEN: list[tuple[Callable[[Account], object], str]] = [
    (lambda run: run.ends.update(succeeded=-1, failed=1), "did not succeed"),
    (lambda run: run.ends.update(succeeded=-1, unknown=1), "did not succeed"),
    (lambda run: run.samples.unaccounted.append(1), "unaccounted"),
    (lambda run: run.took_effect_twice.append("job"), "took effect twice"),
    (lambda run: run.leaked.append("key"), "keys of no job"),
    (lambda run: vars(run).update(entries=1), "entries of no job: 1"),
    (lambda run: vars(run).update(entries=None), "entries of no job: unknown"),
    (lambda run: vars(run).update(pending=1), "deliveries of no job: 1"),
    (lambda run: vars(run).update(pending=None), "deliveries of no job: unknown"),
    (lambda run: vars(run).update(kills=1), "workers killed: 1, planned 2"),
    (lambda run: vars(run.samples).update(consumers=5), "consumers of the group: 5"),
    (lambda run: vars(run.samples).update(consumers=0), "consumers of the group: 0"),
    (lambda run: run.samples.server.append(Held(3 * MIB + SERVER_SLACK, 0, 100)), "server's memory"),
    (lambda run: run.samples.server.insert(1, Held(9 * MIB, 50, 50)), "server's memory"),
    (lambda run: run.samples.server.clear(), "server's memory beyond its jobs: unknown"),
]

BROKEN_IN_A_PART: list[tuple[Callable[[Samples, str], object], str]] = [
    (lambda seen, part: seen.loop_lags[part].append(LOOP_LAG_S), "event loop's delay of {}: 1"),
    (lambda seen, part: seen.loop_lags.pop(part), "event loop's delay of {}: unknown"),
    (lambda seen, part: seen.resident(part, 51 * MIB + GROWTH), "growth of {}: 9"),
    (lambda seen, part: seen.rss.pop(part), "growth of {}: unknown"),
]


@pytest.mark.parametrize(("spoil", "told"), BROKEN)
def test_each_bound_can_be_broken(spoil: Callable[[Account], object], told: str) -> None:
    account = sound()
    spoil(account)
    (fault,) = faults(PLAN, account)
    assert told in fault


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("spoil", "told"), BROKEN_IN_A_PART)
def test_each_bound_can_be_broken_in_each_part(
    spoil: Callable[[Samples, str], object], told: str, part: str
) -> None:
    account = sound()
    spoil(account.samples, part)
    (fault,) = faults(PLAN, account)
    assert told.format(part) in fault


async def test_what_is_really_in_the_stream_is_left_over(
    gateway: Store, worker: Worker, raw: Redis, namespace: str
) -> None:
    account = sound()
    for _ in range(3):
        await submit(gateway)
    (lease,) = await worker.take(1)
    await look_at_the_stream(account, raw, Keys(namespace))
    assert (account.entries, account.pending) == (3, 1)
    await worker.finish(lease)
    await look_at_the_stream(account, raw, Keys(namespace))
    assert (account.entries, account.pending) == (2, 0)


@pytest.mark.vandal
async def test_without_its_group_nobody_knows_what_was_delivered(
    gateway: Store, raw: Redis, namespace: str
) -> None:
    account = sound()
    account.pending = None
    await submit(gateway)
    await raw.xgroup_destroy(Keys(namespace).jobs, GROUP)
    await look_at_the_stream(account, raw, Keys(namespace))
    assert (account.entries, account.pending) == (1, None)


async def test_a_killer_that_crashes_ends_the_run() -> None:
    async def crash() -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        async with beside(crash()):
            await asyncio.Event().wait()
    assert caught.group_contains(ZeroDivisionError)


async def test_a_killer_that_is_not_done_ends_with_the_work() -> None:
    ended = asyncio.Event()

    async def kill_on() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with beside(kill_on()):
        await asyncio.sleep(0)
    assert ended.is_set()
