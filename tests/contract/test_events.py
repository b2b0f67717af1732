"""Events: what happens to a job, in order, resumable, ending with its terminal state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from common.errors import JobExpired, JobNotFound
from common.job import JobStatus, new_job_id
from common.store import EventKind, JobEvent, Store
from tests.processes import Processes
from tests.requests import submit
from tests.waiting import wait_until
from tests.workers import Worker


async def all_events(store: Store, job_id: str, after: str | None = None) -> list[JobEvent]:
    async with asyncio.timeout(5):
        return [event async for event in store.events(job_id, after)]


def text_of(events: list[JobEvent], attempt: int = 1) -> str:
    return "".join(event.text or "" for event in events if event.attempt == attempt)


class Reader:
    """Reads a job's events while the test goes on."""

    def __init__(self, events: AsyncIterator[JobEvent]) -> None:
        self.seen: list[JobEvent] = []
        self.task = asyncio.create_task(self._read(events))

    async def _read(self, events: AsyncIterator[JobEvent]) -> None:
        async for event in events:
            self.seen.append(event)

    async def done(self) -> list[JobEvent]:
        async with asyncio.timeout(5):
            await self.task
        return self.seen


async def test_without_stream_there_is_the_current_state_and_then_the_end(
    gateway: Store, worker: Worker
) -> None:
    job = await submit(gateway)
    reader = Reader(gateway.events(job.job_id))
    await wait_until(lambda: reader.seen)
    await worker.run()
    events = await reader.done()
    assert events[0].status is JobStatus.QUEUED
    assert events[-1].status is JobStatus.SUCCEEDED
    assert {(event.kind, event.id) for event in events} == {(EventKind.STATE, "")}


async def test_a_streamed_job_tells_states_and_chunks_in_order(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, stream=True)
    lease = await worker.lease()
    for seq, text in enumerate(("Hel", "lo ☃", "\0\n"), start=1):
        assert await worker.store.append(lease, seq, text)
    await worker.finish(lease)
    events = await all_events(gateway, job.job_id)
    assert [(event.kind, event.attempt, event.status, event.text) for event in events] == [
        (EventKind.STATE, 0, JobStatus.QUEUED, None),
        (EventKind.STATE, 1, JobStatus.RUNNING, None),
        (EventKind.CHUNK, 1, None, "Hel"),
        (EventKind.CHUNK, 1, None, "lo ☃"),
        (EventKind.CHUNK, 1, None, "\0\n"),
        (EventKind.STATE, 1, JobStatus.SUCCEEDED, None),
    ]
    assert len({event.id for event in events}) == len(events)


async def test_events_resume_after_any_of_them(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, stream=True)
    lease = await worker.lease()
    for seq in (1, 2, 3):
        await worker.store.append(lease, seq, str(seq))
    await worker.finish(lease)
    events = await all_events(gateway, job.job_id)
    for position, event in enumerate(events[:-1]):
        assert await all_events(gateway, job.job_id, event.id) == events[position + 1 :]


@pytest.mark.parametrize("seen", ["9999999999999999999-0", "1-1"])
async def test_a_reader_that_saw_an_event_which_is_not_there_gets_all(
    seen: str, gateway: Store, worker: Worker
) -> None:
    """A server that lost its last second does not know it either."""
    job = await submit(gateway, stream=True)
    await worker.run()
    assert await all_events(gateway, job.job_id, seen) == await all_events(gateway, job.job_id)


async def test_a_reader_that_saw_the_end_is_not_kept_waiting(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, stream=True)
    await worker.run()
    last = (await all_events(gateway, job.job_id))[-1]
    rest = await all_events(gateway, job.job_id, last.id)
    assert [event for event in rest if event.status is not JobStatus.SUCCEEDED] == []


async def test_chunks_arrive_while_the_job_runs(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, stream=True)
    reader = Reader(gateway.events(job.job_id))
    lease = await worker.lease()
    for seq in (1, 2, 3):
        began = time.monotonic()
        await worker.store.append(lease, seq, f"chunk {seq}")
        await wait_until(lambda: reader.seen and reader.seen[-1].text == f"chunk {seq}")  # noqa: B023
        assert time.monotonic() - began < 1.0
    assert not reader.task.done()
    await worker.finish(lease)
    assert (await reader.done())[-1].status is JobStatus.SUCCEEDED


async def test_another_attempt_says_that_output_starts_again(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, stream=True)
    reader = Reader(gateway.events(job.job_id))
    first = await worker.lease()
    await worker.store.append(first, 1, "half an ans")
    await worker.fail(first)
    second = await worker.lease()
    await worker.store.append(second, 1, "answer")
    await worker.finish(second)
    events = await reader.done()
    again = next(i for i, event in enumerate(events) if event.kind is EventKind.ATTEMPT)
    assert events[again].attempt == 2
    assert events[again].status is JobStatus.RUNNING
    assert text_of(events[:again]) == "half an ans"
    assert text_of(events[again:], attempt=2) == "answer"
    assert events == await all_events(gateway, job.job_id)


@pytest.mark.settings(claim_idle_ms=400)
async def test_a_takeover_starts_the_output_again_and_the_old_worker_cannot_add_to_it(
    processes: Processes, gateway: Store, worker: Worker
) -> None:
    job = await submit(gateway, stream=True)
    old = await worker.lease()
    await worker.store.append(old, 1, "old")
    other = await processes.hire()
    new = await other.lease()
    assert await worker.store.append(old, 2, "late") is False
    assert await other.store.append(new, 1, "new")
    await other.finish(new)
    events = await all_events(gateway, job.job_id)
    assert (text_of(events, 1), text_of(events, 2)) == ("old", "new")


async def test_a_chunk_sent_twice_is_shown_once(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, stream=True)
    lease = await worker.lease()
    for seq, text in ((1, "a"), (1, "a"), (2, "b"), (1, "a"), (2, "b")):
        assert await worker.store.append(lease, seq, text)
    await worker.finish(lease)
    assert text_of(await all_events(gateway, job.job_id)) == "ab"


async def test_nothing_is_added_after_the_end(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, stream=True)
    lease = await worker.run()
    events = await all_events(gateway, job.job_id)
    assert await worker.store.append(lease, 1, "late") is False
    assert await all_events(gateway, job.job_id) == events


async def test_a_job_without_stream_keeps_no_chunks(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway)
    lease = await worker.lease()
    assert await worker.store.append(lease, 1, "unheard")
    await worker.finish(lease)
    assert [event.kind for event in await all_events(gateway, job.job_id)] == [EventKind.STATE]


async def test_many_readers_see_the_same(processes: Processes, gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, stream=True)
    other = await processes.open()
    readers = [Reader(store.events(job.job_id)) for store in (gateway, gateway, other)]
    lease = await worker.lease()
    for seq in range(1, 6):
        await worker.store.append(lease, seq, str(seq))
    await worker.finish(lease)
    one, two, three = [await reader.done() for reader in readers]
    assert one == two == three


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ending", [JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.EXPIRED])
async def test_every_ending_is_the_last_event(
    ending: JobStatus, stream: bool, gateway: Store, worker: Worker
) -> None:
    job = await submit(gateway, stream=stream, expires_in_s=3600)
    reader = Reader(gateway.events(job.job_id))
    lease = await worker.lease()
    match ending:
        case JobStatus.FAILED:
            await worker.fail(lease, retry_in=None)
        case JobStatus.CANCELLED:
            await gateway.cancel(job.job_id)
        case _:
            await worker.fail(lease, retry_in=timedelta(hours=2))
    events = await reader.done()
    assert events[-1].status is ending
    assert [event.status for event in events if event.status and event.status.terminal] == [ending]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reader_that_comes_after_the_end_gets_the_end(
    stream: bool, gateway: Store, worker: Worker
) -> None:
    job = await submit(gateway, stream=stream)
    await worker.run()
    assert (await all_events(gateway, job.job_id))[-1].status is JobStatus.SUCCEEDED


async def test_a_reader_that_leaves_does_not_disturb_the_others(gateway: Store, worker: Worker) -> None:
    job = await submit(gateway, stream=True)
    stays, leaves = Reader(gateway.events(job.job_id)), Reader(gateway.events(job.job_id))
    await wait_until(lambda: stays.seen and leaves.seen)
    leaves.task.cancel()
    await worker.run()
    assert (await stays.done())[-1].status is JobStatus.SUCCEEDED


async def test_an_unknown_job_has_no_events(gateway: Store) -> None:
    with pytest.raises(JobNotFound):
        await all_events(gateway, new_job_id())
    with pytest.raises(JobExpired):
        await all_events(gateway, new_job_id(now_ms=1_000_000_000_000))
