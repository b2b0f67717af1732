"""The network delays, cuts, half-closes and falls silent, also in the middle of a reply: nothing is lost or
doubled, no answer is given to another's question, and nobody is left alive but deaf."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta

import pytest
from redis.asyncio import Redis

from common.errors import StoreUnavailable
from common.job import JobStatus, Outcome
from common.redis_store import waiters, wire
from common.redis_store.keys import GROUP, Keys
from common.store import Store
from tests.disasters.callers import Callers
from tests.keyspace import command
from tests.processes import Processes
from tests.relay import FAULTS, Fault, Kind, Relay, Storm, Way, relayed
from tests.requests import submission, submit
from tests.servers import Server, ServerProcess
from tests.waiting import wait_until
from tests.worker.backends import echoing
from tests.worker.running import Crew, ended
from tests.workers import Worker

#: Starts that the network costs must not end a job here.
SETTINGS = {"claim_idle_ms": 2000, "max_attempts": 100}

pytestmark = [pytest.mark.real_server, pytest.mark.settings(**SETTINGS)]

#: Longer than any read blocks.
PATIENCE_S = 1.5
#: What a busy machine may add.
SLACK_S = 2.0

BOTH_WAYS = pytest.mark.parametrize("way", Way)
#: Faults of which one of the two sides is told.
TOLD = pytest.mark.parametrize(
    "fault", [Fault(Kind.CUT), Fault(Kind.HALF_CLOSE)], ids=lambda fault: fault.kind
)
#: Nothing, for longer than anybody waits: for ever, or until the rest comes after all.
MUTE = pytest.mark.parametrize(
    "fault", [Fault(Kind.SILENCE), Fault(Kind.STALL, seconds=PATIENCE_S + 0.5)], ids=lambda fault: fault.kind
)


@pytest.fixture
async def relay(server: Server) -> AsyncIterator[Relay]:
    assert isinstance(server, ServerProcess)
    async with relayed(server.port) as relay:
        yield relay


@pytest.fixture
async def remote(relay: Relay, processes: Processes) -> AsyncIterator[Processes]:
    """Processes behind the relay. `processes`, which are not, check P1 and P7 after these have gone."""
    opened = Processes(relay, processes.namespace, SETTINGS)
    yield opened
    relay.heal()
    await opened.close()


@pytest.fixture
async def crew(remote: Processes) -> AsyncIterator[Crew]:
    started = Crew(remote)
    yield started
    await started.leave()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost reply is given up sooner."""
    monkeypatch.setattr(wire, "PATIENCE_S", PATIENCE_S)


async def assert_runs(gateway: Store, job_id: str, within: float) -> None:
    """Once, and from the first delivery that arrived: one that did not is no start."""
    done = await ended(gateway, job_id, timeout=within)
    assert [attempt.outcome for attempt in done.attempts] == [Outcome.SUCCEEDED]


# ---------------------------------------------------------------- one fault


@BOTH_WAYS
@TOLD
async def test_a_worker_whose_read_is_cut_goes_on_at_once(
    way: Way, fault: Fault, relay: Relay, crew: Crew, gateway: Store
) -> None:
    await read_breaks(way, fault, relay, crew, gateway, within=SLACK_S)


@BOTH_WAYS
@MUTE
@pytest.mark.usefixtures("impatient")
async def test_a_worker_whose_read_gets_no_answer_goes_on_when_its_patience_ends(
    way: Way, fault: Fault, relay: Relay, crew: Crew, gateway: Store
) -> None:
    await read_breaks(way, fault, relay, crew, gateway, within=PATIENCE_S + SLACK_S)


@BOTH_WAYS
@pytest.mark.parametrize("part", [0.0, 0.5], ids=["delayed", "in the middle"])
async def test_a_worker_whose_read_is_slow_waits_for_it(
    part: float, way: Way, relay: Relay, crew: Crew, gateway: Store
) -> None:
    await read_breaks(way, Fault(Kind.STALL, part, 0.5), relay, crew, gateway, within=0.5 + SLACK_S)


async def read_breaks(
    way: Way, fault: Fault, relay: Relay, crew: Crew, gateway: Store, within: float
) -> None:
    """In the middle of the request, or of the reply that brings a job; and the next job comes as well."""
    await crew.start(echoing())
    await assert_runs(gateway, (await submit(gateway)).job_id, SLACK_S)
    relay.strike(way, b"XREADGROUP" if way is Way.REQUEST else b"delivered", fault)
    if way is Way.REQUEST:
        await relay.struck.wait()
    job = await submit(gateway, "delivered")
    await assert_runs(gateway, job.job_id, within)
    assert relay.struck.is_set()
    await assert_runs(gateway, (await submit(gateway)).job_id, SLACK_S)


@BOTH_WAYS
@TOLD
async def test_a_call_that_is_cut_in_the_middle_is_sent_again(
    way: Way, fault: Fault, relay: Relay, remote: Processes, gateway: Store
) -> None:
    store = await remote.open()
    relay.strike(way, b"EVALSHA" if way is Way.REQUEST else b"accepted", fault)
    accepted = await store.submit(submission(idempotency_key="key"))
    assert relay.struck.is_set()
    assert not accepted.replayed
    assert (await gateway.depth()).submitted == 1


@TOLD
async def test_half_an_answer_is_not_the_beginning_of_the_next(
    fault: Fault, relay: Relay, remote: Processes
) -> None:
    store = await remote.open()
    one, other = await submit(store, metadata={"which": "one"}), await submit(store)
    relay.strike(Way.REPLY, b"which", fault)
    assert await asyncio.gather(store.get(one.job_id), store.get(other.job_id)) == [one, other]
    assert relay.struck.is_set()


@MUTE
@pytest.mark.usefixtures("impatient")
async def test_an_answer_that_comes_too_late_is_nobodys(
    fault: Fault, relay: Relay, remote: Processes
) -> None:
    store = await remote.open()
    one, other = await submit(store, metadata={"which": "one"}), await submit(store)
    relay.strike(Way.REPLY, b"which", fault)
    with pytest.raises(StoreUnavailable):
        await store.get(one.job_id)
    assert await asyncio.gather(store.get(other.job_id), store.get(one.job_id)) == [other, one]


@pytest.mark.usefixtures("impatient")
async def test_after_a_partition_all_go_on(
    relay: Relay, remote: Processes, crew: Crew, gateway: Store
) -> None:
    store = await remote.open()
    await crew.start(echoing())
    waiting = await submit(gateway)
    relay.part()
    missed = await submit(gateway)
    with pytest.raises(StoreUnavailable):
        await submit(store)
    relay.heal()
    sent = await submit(store)
    for job in (waiting, missed, sent):
        await ended(gateway, job.job_id, timeout=PATIENCE_S + SLACK_S)


@pytest.mark.parametrize(
    ("way", "having", "kind"),
    [
        (Way.REPLY, b"message", Kind.CUT),
        (Way.REPLY, b"message", Kind.HALF_CLOSE),
        (Way.REPLY, b"message", Kind.SILENCE),
        (Way.REQUEST, b"SUBSCRIBE", Kind.SILENCE),
    ],
)
async def test_a_broken_subscription_is_made_again(
    way: Way,
    having: bytes,
    kind: Kind,
    relay: Relay,
    remote: Processes,
    worker: Worker,
    raw: Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or every wait from then on would end with a recheck: one that is silent looks like one without news."""
    monkeypatch.setattr(waiters, "RECHECK_S", 1.0)
    monkeypatch.setattr(waiters, "PATIENCE_S", 1.0)
    store = await remote.open()

    async def seconds_to_hear() -> float:
        """From a job's end until who waits for it knows."""
        job = await submit(store)
        waiting = asyncio.create_task(store.wait(job.job_id, timedelta(seconds=20)))
        await wait_until(lambda: command(raw, "HEXISTS", f"{remote.namespace}:job:{job.job_id}", "watch"))
        await worker.run(job.job_id)
        began = time.monotonic()
        assert (await waiting).status is JobStatus.SUCCEEDED
        return time.monotonic() - began

    relay.strike(way, having, Fault(kind))
    assert await seconds_to_hear() < 1.0 + SLACK_S
    assert relay.struck.is_set()

    async def at_once() -> bool:
        return max([await seconds_to_hear() for _ in range(3)]) < 0.3

    await wait_until(at_once, timeout=10)


# ---------------------------------------------------------------- all of them

WORKERS = ("reader-1", "reader-2", "reader-3")


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.usefixtures("impatient")
async def test_through_a_storm_every_job_ends_once_with_its_own_result_and_every_worker_reads_on(
    seed: int, relay: Relay, remote: Processes, crew: Crew, gateway: Store, raw: Redis
) -> None:
    for name in WORKERS:
        await crew.start(echoing(), worker_id=name)
    callers = Callers([await remote.open() for _ in range(3)], seed)
    storm = Storm(seed, gap=120, longest_stall=PATIENCE_S + 0.5)
    async with callers.busy():
        relay.weather = storm
        await wait_until(lambda: all(storm.seen[fault] >= 3 for fault in FAULTS), timeout=30)
        relay.heal()
    told = f"seed {seed}, {len(callers.accepted)} jobs, {callers.away} calls unanswered, {storm.seen}"

    async def all_have_ended() -> bool:
        return (await gateway.depth()).unfinished == 0

    await wait_until(all_have_ended, timeout=10)
    for job_id in callers.accepted:
        job = await gateway.get(job_id)
        callers.check(job, job_id)
        successes = [attempt.outcome for attempt in job.attempts].count(Outcome.SUCCEEDED)
        if job_id in callers.cancelled:
            assert (job.status, successes) == (JobStatus.CANCELLED, 0), told
        else:
            assert (job.status, successes) == (JobStatus.SUCCEEDED, 1), told
    backlog = await gateway.depth()
    assert (backlog.submitted, backlog.unaccounted) == (len(callers.accepted), 0), told
    jobs = Keys(remote.namespace).jobs
    assert await command(raw, "XLEN", jobs) == 0, told
    assert (await command(raw, "XPENDING", jobs, GROUP))["pending"] == 0, told
    await all_read(gateway, WORKERS)


async def all_read(gateway: Store, workers: Iterable[str]) -> None:
    """Each of them takes a new job."""
    reading = set[str | None]()

    async def all_have_read() -> bool:
        jobs = [await submit(gateway) for _ in range(12)]
        reading.update([(await ended(gateway, job.job_id)).worker for job in jobs])
        return reading >= {*workers}

    await wait_until(all_have_read, timeout=10)
