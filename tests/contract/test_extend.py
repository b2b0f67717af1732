"""Extend: a renewed lease is never taken over, and its answer says what became of a lost one."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from common.store import LeaseState, Settled, Store
from tests.processes import Processes
from tests.requests import submit
from tests.waiting import wait_until
from tests.workers import Worker


async def test_a_held_lease_is_held(gateway: Store, worker: Worker) -> None:
    await submit(gateway)
    lease = await worker.lease()
    for _ in range(3):
        assert await worker.extend(lease) is LeaseState.HELD
    await worker.finish(lease)


async def test_answers_say_what_became_of_each_lease_in_order(gateway: Store, worker: Worker) -> None:
    jobs = [await submit(gateway, expires_in_s=0.4 if n == 2 else None) for n in range(5)]
    leases = await worker.take(5)
    await gateway.cancel(jobs[1].job_id)

    async def one_expired() -> bool:
        return bool((await gateway.tend()).expired)

    await wait_until(one_expired)
    await worker.finish(leases[3])
    forged = replace(leases[4], token="not-the-token")
    assert await worker.store.extend([*leases[:4], forged, leases[4]]) == [
        LeaseState.HELD,
        LeaseState.CANCELLED,
        LeaseState.EXPIRED,
        LeaseState.TAKEN,
        LeaseState.TAKEN,
        LeaseState.HELD,
    ]


async def test_extending_nothing_is_allowed(worker: Worker) -> None:
    assert await worker.store.extend([]) == []


async def test_hundreds_are_extended_in_one_call(gateway: Store, worker: Worker) -> None:
    await asyncio.gather(*(submit(gateway) for _ in range(300)))
    leases = await worker.take(300)
    assert await worker.store.extend(leases) == [LeaseState.HELD] * 300


@pytest.mark.settings(claim_idle_ms=400)
async def test_a_lease_extended_in_time_is_never_taken_over(
    processes: Processes, gateway: Store, worker: Worker
) -> None:
    await submit(gateway)
    lease = await worker.lease()
    other = await processes.hire()
    three_idle_times = time.monotonic() + 1.2
    while time.monotonic() < three_idle_times:
        assert await worker.extend(lease) is LeaseState.HELD
        assert (await other.look(wait=timedelta(milliseconds=20))).leases == ()
    assert await worker.finish(lease) is Settled.SUCCEEDED


@pytest.mark.settings(claim_idle_ms=400)
async def test_a_lease_not_extended_in_time_is_taken_over(
    processes: Processes, gateway: Store, worker: Worker
) -> None:
    await submit(gateway)
    lease = await worker.lease()
    other = await processes.hire()
    taken = await other.lease(lease.job_id)
    assert await worker.extend(lease) is LeaseState.TAKEN
    assert await other.extend(taken) is LeaseState.HELD
    await other.finish(taken)


@pytest.mark.settings(claim_idle_ms=400)
async def test_a_lease_that_ran_out_untaken_is_held_again_when_extended(
    processes: Processes, gateway: Store, worker: Worker
) -> None:
    await submit(gateway)
    lease = await worker.lease()
    ran_out = time.monotonic() + 0.5
    await wait_until(lambda: time.monotonic() > ran_out)
    assert await worker.extend(lease) is LeaseState.HELD
    other = await processes.hire()
    assert (await other.look()).leases == ()
    await worker.finish(lease)


async def test_extending_after_a_retry_was_settled_does_not_bring_the_lease_back(
    gateway: Store, worker: Worker
) -> None:
    await submit(gateway)
    lease = await worker.lease()
    await worker.fail(lease)
    assert await worker.extend(lease) is LeaseState.TAKEN
    second = await worker.lease()
    assert await worker.extend(lease) is LeaseState.TAKEN
    assert await worker.finish(second) is Settled.SUCCEEDED
