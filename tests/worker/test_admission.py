"""What a worker does not take: anything its backend could not answer, anything above the desired count."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from common.errors import SeatLost
from common.fleet import Decision, Reason
from common.job import JobStatus, Outcome
from common.store import Store
from tests.processes import Processes
from tests.requests import submit
from tests.waiting import wait_until
from tests.worker.backends import Gate, echoing, raising
from tests.worker.flaky import Flaky
from tests.worker.running import Crew, ended
from worker import readiness
from worker.backends.base import Refused, Unreachable

#: So that a change of the scale is noticed soon.
PROMPT: dict[str, Any] = {"claim_idle_ms": 2_000, "heartbeat_ms": 50}


@pytest.fixture(autouse=True)
def _probe_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "PROBE_PERIOD_S", 0.05)


async def scale_to(store: Store, desired: int) -> None:
    term = await store.lead("test", timedelta(seconds=30))
    assert term is not None
    decision = Decision(desired=desired, reason=Reason.STEADY, lag=0, pending=0, retrying=0, min=0, max=8)
    await store.publish_scale(decision, term)


async def seated(store: Store, workers: int) -> bool:
    return (await store.scale()).live == workers


async def test_nothing_is_read_before_the_backend_is_ready(crew: Crew, gateway: Store) -> None:
    backend = echoing()
    backend.is_ready = False
    running = await crew.start(backend, wrap=Flaky, **PROMPT)
    flaky = running.store
    assert isinstance(flaky, Flaky)
    job = await submit(gateway)
    await wait_until(lambda: flaky.count("tend") >= 2)
    assert flaky.count("claim") == 0
    assert running.count("iwl_worker_ready") == 0
    (view,) = (await gateway.scale()).workers
    assert not view.ready
    backend.is_ready = True
    assert (await ended(gateway, job.job_id)).status is JobStatus.SUCCEEDED


async def test_a_worker_whose_backend_is_down_does_not_fill_the_place_of_one_that_could_read(
    crew: Crew, gateway: Store
) -> None:
    broken = echoing()
    broken.is_ready = False
    await crew.start(broken, **PROMPT)
    await wait_until(lambda: seated(gateway, 1))
    await crew.start(echoing(), **PROMPT)
    await wait_until(lambda: seated(gateway, 2))
    await scale_to(gateway, 1)
    job = await ended(gateway, (await submit(gateway)).job_id)
    assert (job.status, job.worker) == (JobStatus.SUCCEEDED, "worker-2")


async def test_a_draining_worker_does_not_fill_the_place_of_one_that_could_read(
    crew: Crew, gateway: Store
) -> None:
    gate = Gate()
    leaving = await crew.start(gate.backend, drain_ms=20_000, **PROMPT)
    long = await submit(gateway, "long")
    await wait_until(lambda: gate.backend.open == 1)
    await crew.start(echoing(), **PROMPT)
    await wait_until(lambda: seated(gateway, 2))
    await scale_to(gateway, 1)
    leaving.worker.drain()
    job = await ended(gateway, (await submit(gateway, "short")).job_id)
    assert (job.status, job.worker) == (JobStatus.SUCCEEDED, "worker-2")
    gate.opened.set()
    assert (await ended(gateway, long.job_id)).worker == "worker-1"


async def test_a_backend_gone_quiet_ends_a_waiting_claim(crew: Crew, gateway: Store) -> None:
    backend = echoing()
    running = await crew.start(backend, **PROMPT)
    await ended(gateway, (await submit(gateway)).job_id)
    backend.is_ready = False
    await wait_until(lambda: running.count("iwl_worker_ready") == 0)
    await asyncio.sleep(0.2)  # The claim's end itself cannot be seen from here; it may wait a second.
    job = await submit(gateway, "later")
    assert (await gateway.get(job.job_id)).status is JobStatus.QUEUED
    backend.is_ready = True
    await ended(gateway, job.job_id)


@pytest.mark.parametrize("error", [Unreachable(), Refused(503, "loading")], ids=["refused", "503"])
async def test_a_job_nobody_was_asked_about_is_given_back(
    crew: Crew, gateway: Store, error: Exception
) -> None:
    backend = raising(error, error)
    running = await crew.start(backend, max_attempts=1, **PROMPT)
    job = await ended(gateway, (await submit(gateway)).job_id)
    assert job.status is JobStatus.SUCCEEDED
    outcomes = [attempt.outcome for attempt in job.attempts]
    assert outcomes == [Outcome.RELEASED, Outcome.RELEASED, Outcome.SUCCEEDED]
    assert running.count("iwl_attempts_total", outcome="released") == 2


async def test_a_refused_connection_stops_reading_until_the_next_probe(
    crew: Crew, gateway: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "PROBE_PERIOD_S", 60)
    backend = raising(Unreachable())
    running = await crew.start(backend, worker_concurrency=1, **PROMPT)
    job = await submit(gateway)
    await wait_until(lambda: running.count("iwl_attempts_total", outcome="released") == 1)
    assert running.count("iwl_worker_ready") == 0
    assert (await gateway.get(job.job_id)).status is JobStatus.QUEUED
    assert len(backend.calls) == 1


async def _hang() -> bool:
    await asyncio.Event().wait()
    return True


async def _cancel_itself() -> bool:
    raise asyncio.CancelledError


async def _break() -> bool:
    raise ZeroDivisionError


async def _say_nothing() -> Any:
    return None


@pytest.mark.settings(retry_backoff_ms=0)
@pytest.mark.parametrize("probe", [_hang, _cancel_itself, _break, _say_nothing])
async def test_no_way_to_answer_a_probe_ends_the_probing(
    crew: Crew, gateway: Store, monkeypatch: pytest.MonkeyPatch, probe: Callable[[], Awaitable[Any]]
) -> None:
    monkeypatch.setattr(readiness, "PROBE_LIMIT_S", 0.1)
    backend = raising(Refused(500, "no"))
    odd: list[None] = []

    async def ready() -> bool:
        if backend.calls and not odd:
            odd.append(None)
            return await probe()
        return True

    monkeypatch.setattr(backend, "ready", ready)
    await crew.start(backend, worker_concurrency=1, max_attempts=1, **PROMPT)
    failed = await ended(gateway, (await submit(gateway)).job_id)
    assert failed.status is JobStatus.FAILED
    assert (await ended(gateway, (await submit(gateway)).job_id)).status is JobStatus.SUCCEEDED
    assert odd


async def test_above_the_desired_count_nothing_new_is_read(crew: Crew, gateway: Store) -> None:
    await scale_to(gateway, 0)
    running = await crew.start(echoing(), **PROMPT)
    await wait_until(lambda: running.count("iwl_worker_ready") == 1)
    job = await submit(gateway)
    await asyncio.sleep(0.3)  # Nothing happens, which no condition shows.
    assert (await gateway.get(job.job_id)).status is JobStatus.QUEUED
    await scale_to(gateway, 1)
    assert (await ended(gateway, job.job_id)).status is JobStatus.SUCCEEDED


async def test_what_runs_is_finished_when_the_fleet_shrinks(crew: Crew, gateway: Store) -> None:
    gate = Gate()
    running = await crew.start(gate.backend, **PROMPT)
    job = await submit(gateway)
    await wait_until(lambda: gate.backend.open == 1)
    await scale_to(gateway, 0)
    await wait_until(lambda: running.count("iwl_worker_active") == 0)
    gate.opened.set()
    record = await ended(gateway, job.job_id)
    assert [attempt.outcome for attempt in record.attempts] == [Outcome.SUCCEEDED]


@pytest.mark.settings(claim_idle_ms=300)
async def test_above_the_desired_count_the_jobs_of_the_dead_are_taken_over(
    crew: Crew, gateway: Store, processes: Processes
) -> None:
    dead = await processes.hire("dead")
    job = await submit(gateway)
    await dead.lease(job.job_id)
    await scale_to(gateway, 0)
    running = await crew.start(echoing())
    assert (await ended(gateway, job.job_id)).status is JobStatus.SUCCEEDED
    assert running.count("iwl_reclaims_total") == 1


async def test_a_lost_seat_is_taken_again(crew: Crew, gateway: Store) -> None:
    gate = Gate()
    running = await crew.start(gate.backend, wrap=Flaky, claim_idle_ms=5_000, heartbeat_ms=1_000)
    flaky = running.store
    assert isinstance(flaky, Flaky)
    await wait_until(lambda: flaky.count("claim"))
    flaky.fail("claim", SeatLost(), times=1)
    gate.opened.set()
    job = await submit(gateway)
    assert (await ended(gateway, job.job_id)).status is JobStatus.SUCCEEDED
