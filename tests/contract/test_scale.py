"""Scale: one scaler leads, its decision is seen by all, and its age is never hidden."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from common.errors import TermOver
from common.fleet import Decision, Presence, Reason
from common.store import Store
from tests.processes import Processes
from tests.waiting import wait_until

MINUTE = timedelta(minutes=1)


def decision(desired: int, reason: Reason = Reason.BACKLOG_UP, *, observed: bool = True) -> Decision:
    return Decision(
        desired=desired, reason=reason, lag=4, pending=2, retrying=1, min=0, max=8, observed=observed
    )


async def term_of(store: Store, candidate: str = "scaler-a", ttl: timedelta = MINUTE) -> int:
    term = await store.lead(candidate, ttl)
    assert term is not None
    return term


async def test_before_the_first_decision_there_is_none(gateway: Store) -> None:
    view = await gateway.scale()
    assert (view.decision, view.updated_at, view.age, view.leader) == (None, None, None, None)
    assert (view.workers, view.history, view.live, view.busy) == ((), (), 0, 0)


async def test_a_published_decision_is_seen_by_all(processes: Processes, gateway: Store) -> None:
    await gateway.publish_scale(decision(3), await term_of(gateway))
    view = await (await processes.open()).scale()
    assert view.decision == decision(3)
    assert (view.leader, view.stale) == ("scaler-a", False)
    assert view.updated_at
    assert view.age is not None
    assert abs(view.updated_at - datetime.now(UTC)) < timedelta(seconds=30)
    assert timedelta(0) <= view.age < timedelta(seconds=5)


async def test_what_is_unknown_stays_unknown(gateway: Store) -> None:
    unknown = Decision(
        desired=2,
        reason=Reason.UNKNOWN_INPUT,
        lag=None,
        pending=None,
        retrying=None,
        min=1,
        max=8,
        observed=False,
    )
    await gateway.publish_scale(unknown, await term_of(gateway))
    assert (await gateway.scale()).decision == unknown


async def test_one_scaler_leads_at_a_time(processes: Processes) -> None:
    a, b = await processes.open(), await processes.open()
    term = await term_of(a, "scaler-a")
    assert await b.lead("scaler-b", MINUTE) is None
    assert await term_of(a, "scaler-a") == term


async def test_another_leads_when_the_leader_has_been_silent(processes: Processes) -> None:
    a, b = await processes.open(), await processes.open()
    old = await term_of(a, "scaler-a", timedelta(milliseconds=100))
    await a.publish_scale(decision(1), old)

    async def b_leads() -> bool:
        return await b.lead("scaler-b", MINUTE) is not None

    await wait_until(b_leads)
    new = await term_of(b, "scaler-b")
    assert new > old
    with pytest.raises(TermOver):
        await a.publish_scale(decision(8), old)
    await b.publish_scale(decision(2), new)
    view = await b.scale()
    assert view.leader == "scaler-b"
    assert view.decision == decision(2)
    assert await a.lead("scaler-a", MINUTE) is None


async def test_nobody_publishes_without_a_term(gateway: Store) -> None:
    with pytest.raises(TermOver):
        await gateway.publish_scale(decision(1), 1)
    assert (await gateway.scale()).decision is None


async def test_a_leader_whose_time_is_over_is_not_shown(gateway: Store) -> None:
    await term_of(gateway, ttl=timedelta(milliseconds=50))

    async def nobody_leads() -> bool:
        return (await gateway.scale()).leader is None

    await wait_until(nobody_leads)


async def test_the_history_holds_changes_newest_first(gateway: Store) -> None:
    term = await term_of(gateway)
    for desired, reason in (
        (1, Reason.START),
        (1, Reason.STEADY),
        (4, Reason.BACKLOG_UP),
        (4, Reason.HOLD_BUSY),
        (1, Reason.SCALE_DOWN),
    ):
        await gateway.publish_scale(decision(desired, reason), term)
    history = (await gateway.scale()).history
    assert [(change.desired, change.reason) for change in history] == [
        (1, Reason.SCALE_DOWN),
        (4, Reason.BACKLOG_UP),
        (1, Reason.START),
    ]
    assert history[0].at >= history[-1].at


@pytest.mark.settings(scale_stale_ms=150)
async def test_a_decision_grows_stale(gateway: Store) -> None:
    await gateway.publish_scale(decision(1), await term_of(gateway))
    assert not (await gateway.scale()).stale

    async def stale() -> bool:
        return (await gateway.scale()).stale

    await wait_until(stale)
    age = (await gateway.scale()).age
    assert age is not None
    assert age >= timedelta(milliseconds=150)


async def test_a_held_decision_does_not_refresh_the_age(gateway: Store) -> None:
    term = await term_of(gateway)
    await gateway.publish_scale(decision(3), term)
    first = await gateway.scale()

    async def a_moment_later() -> bool:
        age = (await gateway.scale()).age
        return age is not None and age >= timedelta(milliseconds=20)

    await wait_until(a_moment_later)
    held = decision(3, Reason.UNKNOWN_INPUT, observed=False)
    await gateway.publish_scale(held, term)
    view = await gateway.scale()
    assert (view.decision, view.updated_at) == (held, first.updated_at)
    await gateway.publish_scale(decision(3), term)
    assert (await gateway.scale()).updated_at != first.updated_at


async def test_the_view_shows_the_live_workers(processes: Processes, gateway: Store) -> None:
    one = await processes.hire("pod-a")
    two = await processes.hire("pod-b")
    await one.heartbeat(concurrency=4, busy=0, ready=False)
    await two.heartbeat(concurrency=2, busy=2)
    view = await gateway.scale()
    assert [
        (worker.worker, worker.instance, worker.concurrency, worker.busy, worker.ready)
        for worker in view.workers
    ] == [("worker-1", "pod-a", 4, 0, False), ("worker-2", "pod-b", 2, 2, True)]
    assert (view.live, view.busy) == (2, 1)
    assert abs(view.workers[0].seen_at - datetime.now(UTC)) < timedelta(seconds=30)
    await one.store.retire()
    assert [worker.worker for worker in (await gateway.scale()).workers] == ["worker-2"]


@pytest.mark.settings(heartbeat_ms=50)
async def test_a_silent_worker_leaves_the_view(processes: Processes, gateway: Store) -> None:
    store = await processes.open()
    await store.announce(Presence(instance="pod-a"))

    async def gone() -> bool:
        return (await gateway.scale()).workers == ()

    await wait_until(gone)


async def test_workers_are_listed_by_number(processes: Processes, gateway: Store) -> None:
    for _ in range(11):
        await processes.hire()
    names = [worker.worker for worker in (await gateway.scale()).workers]
    assert names == [f"worker-{n}" for n in range(1, 12)]
