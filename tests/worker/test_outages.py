"""A store that fails in the middle of things: nothing is lost, nothing is held back, nothing runs unowned."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from common.errors import StoreCorrupt, StoreUnavailable
from common.job import Cause, JobRequest, JobStatus, Outcome
from common.store import EventKind, Settlement, Store
from tests.requests import submit
from tests.waiting import wait_until
from tests.worker.backends import DONE, Gate, Pieces, Played, echoing
from tests.worker.flaky import Flaky
from tests.worker.running import Crew, Running, ended

pytestmark = pytest.mark.settings(retry_backoff_ms=0, retry_backoff_max_ms=0)

AWAY = StoreUnavailable()


def flaky(running: Running) -> Flaky:
    assert isinstance(running.store, Flaky)
    return running.store


async def test_an_outcome_is_stored_once_the_store_is_back(crew: Crew, gateway: Store) -> None:
    running = await crew.start(echoing(), wrap=Flaky, claim_idle_ms=1_000, heartbeat_ms=50)
    flaky(running).fail("settle", AWAY)
    job = await submit(gateway)
    # Longer than a lease lasts: it is renewed until the outcome is stored.
    await wait_until(lambda: flaky(running).count("extend") > 25)
    assert flaky(running).count("settle") > 2
    assert (await gateway.get(job.job_id)).status is JobStatus.RUNNING
    flaky(running).heal()
    done = await ended(gateway, job.job_id)
    assert [attempt.outcome for attempt in done.attempts] == [Outcome.SUCCEEDED]


async def test_nothing_is_claimed_while_outcomes_cannot_be_stored(crew: Crew, gateway: Store) -> None:
    running = await crew.start(echoing(), wrap=Flaky, worker_concurrency=1)
    flaky(running).fail("settle", AWAY)
    first = await submit(gateway, "first")
    await wait_until(lambda: flaky(running).count("settle") > 2)
    claims = flaky(running).count("claim")
    second = await submit(gateway, "second")
    await wait_until(lambda: flaky(running).count("settle") > 5)
    # The claim that was waiting when the store failed may still have brought one.
    assert flaky(running).count("claim") <= claims + 1
    flaky(running).heal()
    for job in (first, second):
        assert (await ended(gateway, job.job_id)).status is JobStatus.SUCCEEDED


async def test_uncommitted_outcomes_are_bounded(crew: Crew, gateway: Store) -> None:
    backend = echoing()
    stuck = asyncio.Event()
    running = await crew.start(backend, wrap=Flaky, worker_concurrency=2)
    flaky(running).faults["settle"] = lambda *_: stuck.wait()
    jobs = [await submit(gateway, f"job {n}") for n in range(9)]
    await wait_until(lambda: len(backend.calls) == 4)
    await asyncio.sleep(0.1)  # A fifth would come at once.
    assert len(backend.calls) == 4
    stuck.set()
    for job in jobs:
        assert (await ended(gateway, job.job_id)).status is JobStatus.SUCCEEDED


@pytest.mark.settings(claim_idle_ms=400)
async def test_a_damaged_outcome_does_not_hold_back_the_others(
    crew: Crew, gateway: Store, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    running = await crew.start(gate.backend, wrap=Flaky, worker_concurrency=3)
    jobs = [await submit(gateway, f"job {n}") for n in range(3)]
    await wait_until(lambda: gate.backend.open == 3)

    def refuse_the_first(settlements: list[Settlement]) -> None:
        if any(settlement.lease.job_id == jobs[0].job_id for settlement in settlements):
            raise StoreCorrupt

    flaky(running).faults["settle"] = refuse_the_first
    gate.opened.set()
    for job in jobs[1:]:
        assert (await ended(gateway, job.job_id)).status is JobStatus.SUCCEEDED
    await wait_until(lambda: "outcome given up" in caplog.text)
    flaky(running).heal()


@pytest.mark.parametrize("fault", [StoreCorrupt(), TypeError("cannot be encoded")], ids=["damage", "a bug"])
async def test_a_worker_that_gave_an_outcome_up_goes_on(
    crew: Crew, gateway: Store, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    """Also when the store was away just before, so that claiming had stopped."""
    running = await crew.start(echoing(), wrap=Flaky, worker_concurrency=1, claim_idle_ms=60_000)
    flaky(running).fail_with("settle", AWAY, fault)
    await submit(gateway, "given up")
    await wait_until(lambda: "outcome given up" in caplog.text)
    job = await ended(gateway, (await submit(gateway, "next")).job_id)
    assert job.status is JobStatus.SUCCEEDED
    assert running.count("iwl_worker_ready") == 1


@pytest.mark.settings(max_attempts=1)
async def test_a_fault_in_the_writer_of_chunks_fails_the_attempt_only(crew: Crew, gateway: Store) -> None:
    running = await crew.start(echoing(), wrap=Flaky, worker_concurrency=1, max_attempts=1)
    flaky(running).fail("append", TypeError("cannot be sent"), times=1)
    first, second = [await submit(gateway, "text", stream=True) for _ in range(2)]
    job = await ended(gateway, first.job_id)
    assert job.error
    assert (job.error.cause, job.error.message) == (Cause.ERROR, "TypeError: cannot be sent")
    assert (await ended(gateway, second.job_id)).status is JobStatus.SUCCEEDED


async def test_a_job_whose_outcome_was_given_up_is_not_renewed_any_more(
    crew: Crew, gateway: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Or nobody could ever take it over."""
    running = await crew.start(echoing(), wrap=Flaky, claim_idle_ms=60_000, heartbeat_ms=20)
    flaky(running).fail("settle", StoreCorrupt())
    job = await submit(gateway)
    await wait_until(lambda: "outcome given up" in caplog.text)
    # Nobody has taken the lease over, which an operator would be sent to look for.
    assert running.count("iwl_stale_writes_total") == 0
    renewed = flaky(running).count("extend")
    await asyncio.sleep(0.2)  # Nothing happens, which no condition shows.
    assert flaky(running).count("extend") <= renewed + 1
    assert (await gateway.get(job.job_id)).status is JobStatus.RUNNING


@pytest.mark.settings(claim_idle_ms=300)
async def test_a_call_whose_lease_cannot_be_renewed_is_closed(crew: Crew, gateway: Store) -> None:
    gate = Gate()
    running = await crew.start(gate.backend, wrap=Flaky, worker_concurrency=1)
    job = await submit(gateway)
    await wait_until(lambda: gate.backend.open == 1)
    for method in ("extend", "settle", "claim"):
        flaky(running).fail(method, AWAY)
    await wait_until(lambda: gate.backend.open == 0)
    gate.opened.set()
    flaky(running).heal()
    done = await ended(gateway, job.job_id)
    assert done.status is JobStatus.SUCCEEDED
    assert len(done.attempts) == 2


async def test_one_damaged_record_does_not_let_other_leases_run_out(crew: Crew, gateway: Store) -> None:
    gate = Gate()
    running = await crew.start(
        gate.backend, wrap=Flaky, worker_concurrency=2, claim_idle_ms=400, heartbeat_ms=50
    )
    jobs = [await submit(gateway, f"job {n}") for n in range(2)]
    await wait_until(lambda: gate.backend.open == 2)

    def refuse_batches(leases: list[Any]) -> None:
        if len(leases) > 1:
            raise StoreCorrupt

    flaky(running).faults["extend"] = refuse_batches
    extended = flaky(running).count("extend")
    await wait_until(lambda: flaky(running).count("extend") > extended + 40)
    gate.opened.set()
    for job in jobs:
        assert len((await ended(gateway, job.job_id)).attempts) == 1


async def test_a_chunk_is_sent_again_under_its_number(crew: Crew, gateway: Store) -> None:
    async def generate(request: JobRequest, attempt: int) -> Pieces:
        for word in ("one ", "two ", "three"):
            yield word
            await asyncio.sleep(0.01)
        yield DONE

    sent: list[tuple[int, str]] = []
    running = await crew.start(Played(generate), wrap=Flaky)

    def arrive_and_fail(lease: Any, seq: int, text: str) -> None:
        sent.append((seq, text))
        if len(sent) < 4:
            raise AWAY

    flaky(running).faults["append"] = arrive_and_fail
    job = await submit(gateway, stream=True)
    async with asyncio.timeout(10):
        events = [event async for event in gateway.events(job.job_id)]
    assert "".join(event.text or "" for event in events if event.kind is EventKind.CHUNK) == "one two three"
    # What came in meanwhile went out as one.
    assert sent == [(1, "one ")] * 4 + [(2, "two three")]


async def test_a_store_away_at_the_start_is_waited_for(crew: Crew, gateway: Store) -> None:
    def away(store: Store) -> Flaky:
        wrapped = Flaky(store)
        wrapped.fail("start", AWAY, times=3)
        wrapped.fail("announce", AWAY, times=3)
        wrapped.fail("tend", AWAY, times=3)
        return wrapped

    job = await submit(gateway)
    running = await crew.start(echoing(), wrap=away)
    assert (await ended(gateway, job.job_id)).status is JobStatus.SUCCEEDED
    assert flaky(running).count("start") == 4


@pytest.mark.parametrize("method", ["claim", "settle"])
async def test_a_worker_that_cannot_claim_does_not_say_that_it_is_ready(
    crew: Crew, gateway: Store, method: str
) -> None:
    async def says(ready: bool) -> bool:
        return [worker.ready for worker in (await gateway.scale()).workers] == [ready]

    running = await crew.start(echoing(), wrap=Flaky, heartbeat_ms=50)
    await wait_until(lambda: says(True))
    flaky(running).fail(method, AWAY)
    job = await submit(gateway)
    await wait_until(lambda: says(False))
    assert running.count("iwl_worker_ready") == 0
    flaky(running).heal()
    await ended(gateway, job.job_id)
    await wait_until(lambda: says(True))
    assert running.count("iwl_worker_ready") == 1
