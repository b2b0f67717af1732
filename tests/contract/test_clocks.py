"""Clocks: leases, deadlines and retries keep the server's time, whatever time a process takes it for (P8)."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from common.job import JobStatus
from common.store import Claimed, Settled, Store
from tests.processes import Processes
from tests.requests import submit
from tests.waiting import wait_until
from tests.workers import Worker

#: fakeredis has no clock of its own.
pytestmark = pytest.mark.real_server

DAY_S = 86_400.0
both_ways = pytest.mark.parametrize("wrong_by", [-DAY_S, DAY_S], ids=["behind", "ahead"])

SetClock = Callable[[float], None]


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Puts the clock of this process wrong by so many seconds; time that only passes is right."""
    right = time.time_ns

    def put(wrong_by: float) -> None:
        monkeypatch.setattr(time, "time", lambda: right() / 1e9 + wrong_by)
        monkeypatch.setattr(time, "time_ns", lambda: right() + int(wrong_by * 1e9))

    return put


@both_ways
async def test_a_wrong_clock_brings_nothing_on(
    wrong_by: float, set_clock: SetClock, processes: Processes, gateway: Store, worker: Worker
) -> None:
    set_clock(-wrong_by)
    expires = await submit(gateway, expires_in_s=60)
    await submit(gateway)
    held, failed = await worker.take(2)
    await worker.fail(failed, retry_in=timedelta(hours=1))
    waits = await submit(gateway, expires_in_s=60)
    set_clock(wrong_by)
    other = await processes.hire()
    assert [lease.job_id for lease in await other.take(1)] == [waits.job_id]
    assert await other.look() == Claimed()
    tended = await other.store.tend()
    assert (tended.expired, tended.promoted) == (0, 0)
    assert held.job_id == expires.job_id
    assert await worker.finish(held) is Settled.SUCCEEDED


@both_ways
@pytest.mark.settings(claim_idle_ms=400)
async def test_a_wrong_clock_puts_nothing_off(
    wrong_by: float, set_clock: SetClock, processes: Processes, gateway: Store, worker: Worker
) -> None:
    set_clock(wrong_by)
    expires = await submit(gateway, expires_in_s=0.3)
    crashed, retried = await submit(gateway), await submit(gateway)
    leases = {lease.job_id: lease for lease in await worker.take(3)}
    await worker.fail(leases[retried.job_id], retry_in=timedelta(milliseconds=50))
    set_clock(-wrong_by)
    other = await processes.hire()
    ended: set[str] = set()

    async def all_due() -> bool:
        await other.store.tend()
        for lease in (await other.look()).leases:
            await other.finish(lease)
            ended.add(lease.job_id)
        return len(ended) == 2 and (await gateway.get(expires.job_id)).status is JobStatus.EXPIRED

    await wait_until(all_due)
    assert ended == {crashed.job_id, retried.job_id}
    assert [line.n for line in (await gateway.get(crashed.job_id)).attempts] == [1, 2]
