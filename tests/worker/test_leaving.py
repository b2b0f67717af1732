"""Drains: what runs is finished, what cannot be finished is given back, and it does not take for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from common.errors import StoreUnavailable
from common.job import JobStatus, Outcome
from common.store import Store
from tests.requests import submit
from tests.waiting import wait_until
from tests.worker.backends import Gate, echoing
from tests.worker.flaky import Flaky
from tests.worker.running import Crew, ended


async def test_what_runs_is_finished_and_nothing_new_is_taken(crew: Crew, gateway: Store) -> None:
    gate = Gate()
    running = await crew.start(gate.backend, worker_concurrency=1, drain_ms=10_000)
    first, second = await submit(gateway, "first"), await submit(gateway, "second")
    await wait_until(lambda: gate.backend.open == 1)
    running.worker.drain()
    gate.opened.set()
    await running.leave()
    assert (await gateway.get(first.job_id)).status is JobStatus.SUCCEEDED
    assert (await gateway.get(second.job_id)).status is JobStatus.QUEUED
    assert gate.backend.closed


async def test_an_idle_worker_leaves_at_once(crew: Crew, gateway: Store) -> None:
    running = await crew.start(echoing(), drain_ms=10_000)
    await ended(gateway, (await submit(gateway)).job_id)
    started = time.monotonic()
    await running.leave()
    # Its claim would have waited for a second.
    assert time.monotonic() - started < 0.7
    assert (await gateway.scale()).workers == ()


async def test_what_cannot_be_finished_is_given_back(crew: Crew, gateway: Store) -> None:
    gate = Gate()
    running = await crew.start(gate.backend, drain_ms=100, max_attempts=1)
    job = await submit(gateway)
    await wait_until(lambda: gate.backend.open == 1)
    await running.leave()
    given_back = await gateway.get(job.job_id)
    assert given_back.status is JobStatus.QUEUED
    assert [attempt.outcome for attempt in given_back.attempts] == [Outcome.RELEASED]
    await crew.start(echoing(), max_attempts=1)
    assert (await ended(gateway, job.job_id)).status is JobStatus.SUCCEEDED


async def test_asked_twice_it_waits_for_nothing(crew: Crew, gateway: Store) -> None:
    gate = Gate()
    running = await crew.start(gate.backend, drain_ms=60_000)
    job = await submit(gateway)
    await wait_until(lambda: gate.backend.open == 1)
    running.worker.drain()
    running.worker.drain()
    await running.leave(timeout=5)
    assert (await gateway.get(job.job_id)).status is JobStatus.QUEUED


async def test_an_outcome_is_stored_before_the_worker_leaves(crew: Crew, gateway: Store) -> None:
    stuck = asyncio.Event()
    running = await crew.start(echoing(), wrap=Flaky, drain_ms=0)
    store = running.store
    assert isinstance(store, Flaky)
    store.faults["settle"] = lambda *_: stuck.wait()
    job = await submit(gateway)
    await wait_until(lambda: store.count("settle") == 1)
    running.worker.drain()
    asyncio.get_running_loop().call_later(0.3, stuck.set)
    await running.leave()
    assert (await gateway.get(job.job_id)).status is JobStatus.SUCCEEDED


async def test_a_job_claimed_while_leaving_is_given_back(crew: Crew, gateway: Store) -> None:
    backend = echoing()
    running = await crew.start(backend, wrap=Flaky)
    store = running.store
    assert isinstance(store, Flaky)
    job = await submit(gateway, "crossing")

    async def drain_first(*_: Any, **__: Any) -> None:
        store.faults.clear()
        running.worker.drain()

    store.faults["claim"] = drain_first
    await running.leave()
    left = await gateway.get(job.job_id)
    assert left.status is JobStatus.QUEUED
    assert backend.calls == []


async def test_a_store_that_is_away_does_not_keep_it(crew: Crew, gateway: Store) -> None:
    gate = Gate()
    running = await crew.start(gate.backend, wrap=Flaky, drain_ms=100)
    store = running.store
    assert isinstance(store, Flaky)
    job = await submit(gateway)
    await wait_until(lambda: gate.backend.open == 1)
    for method in ("claim", "settle", "extend", "announce", "interrupt", "retire"):
        store.fail(method, StoreUnavailable())
    started = time.monotonic()
    await running.leave()
    assert time.monotonic() - started < 10
    # The lease runs out by itself.
    assert (await gateway.get(job.job_id)).status is JobStatus.RUNNING


async def hang() -> None:
    await asyncio.Event().wait()


async def break_down() -> None:
    raise KeyError("a pool")


@pytest.mark.parametrize("aclose", [hang, break_down])
async def test_a_backend_that_does_not_close_does_not_keep_it(
    crew: Crew, gateway: Store, monkeypatch: pytest.MonkeyPatch, aclose: Callable[[], Awaitable[None]]
) -> None:
    backend = echoing()
    running = await crew.start(backend)
    await ended(gateway, (await submit(gateway)).job_id)
    monkeypatch.setattr(backend, "aclose", aclose)
    await running.leave(timeout=5)
    assert (await gateway.scale()).workers == ()
