"""Jobs on their way through a worker: results, failures, timeouts, cancellation."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any, cast

import pytest

from common.job import Cause, JobRequest, JobStatus, Outcome, Result, Usage
from common.store import EventKind, Settled, Store
from tests.processes import Processes
from tests.requests import submit
from tests.waiting import wait_until
from tests.worker.backends import DONE, Gate, Pieces, Played, echoing, raising
from tests.worker.running import Crew, ended
from worker import lease as worker_lease
from worker.backends.base import BrokenStream, Completion, Refused

pytestmark = pytest.mark.settings(retry_backoff_ms=0, retry_backoff_max_ms=0)

#: So that cancellations are noticed soon.
PROMPT: dict[str, Any] = {"claim_idle_ms": 2_000, "heartbeat_ms": 50}


async def test_every_job_ends_with_its_own_result(crew: Crew, gateway: Store) -> None:
    running = await crew.start(echoing(), worker_concurrency=3)
    jobs = [await submit(gateway, f"job {n}") for n in range(20)]
    texts = [(await ended(gateway, job.job_id)).result for job in jobs]
    assert [result.text for result in texts if result] == [f"job {n}" for n in range(20)]
    await wait_until(lambda: running.count("iwl_jobs_ended_total", status="succeeded") == 20)


async def test_the_result_is_what_the_backend_said(crew: Crew, gateway: Store) -> None:
    usage = Usage(prompt_tokens=3, completion_tokens=2)

    async def generate(request: JobRequest, attempt: int) -> Pieces:
        yield "two "
        yield "pieces"
        yield Completion(finish_reason="length", usage=usage)

    running = await crew.start(Played(generate))
    job = await ended(gateway, (await submit(gateway)).job_id)
    assert job.result
    assert (job.result.text, job.result.finish_reason, job.result.usage) == ("two pieces", "length", usage)
    await wait_until(lambda: running.count("iwl_tokens_total", direction="in") == 3)
    assert running.count("iwl_tokens_total", direction="out") == 2


async def test_no_more_jobs_run_than_there_are_slots(crew: Crew, gateway: Store) -> None:
    gate = Gate()
    jobs = [await submit(gateway, f"job {n}") for n in range(7)]
    await crew.start(gate.backend, worker_concurrency=3)
    await wait_until(lambda: gate.backend.open == 3)
    gate.opened.set()
    for job in jobs:
        await ended(gateway, job.job_id)
    assert gate.backend.most_open == 3


async def test_what_no_slot_is_free_for_stays_in_the_queue(crew: Crew, gateway: Store) -> None:
    """Where every worker can get at it, and no lease runs out while it waits."""
    gate = Gate()
    await crew.start(gate.backend, worker_concurrency=2)
    jobs = [await submit(gateway, f"job {n}") for n in range(5)]
    await wait_until(lambda: gate.backend.open == 2)
    await asyncio.sleep(0.1)  # A third would be read at once.
    backlog = await gateway.depth()
    assert (backlog.pending, backlog.lag) == (2, 3)
    gate.opened.set()
    for job in jobs:
        await ended(gateway, job.job_id)


async def test_a_job_that_runs_longer_than_a_lease_lasts_runs_once(crew: Crew, gateway: Store) -> None:
    gate = Gate()
    for _ in range(2):
        await crew.start(gate.backend, worker_concurrency=1, claim_idle_ms=600, heartbeat_ms=50)
    job = await submit(gateway)
    await wait_until(lambda: gate.backend.open == 1)
    await asyncio.sleep(1.5)  # Nothing happens, which no condition shows.
    gate.opened.set()
    record = await ended(gateway, job.job_id)
    assert [attempt.outcome for attempt in record.attempts] == [Outcome.SUCCEEDED]
    assert len(gate.backend.calls) == 1


async def test_a_streamed_job_shows_its_text_in_order(crew: Crew, gateway: Store) -> None:
    words = [f"{n} " for n in range(50)]

    async def generate(request: JobRequest, attempt: int) -> Pieces:
        for word in words:
            yield word
            await asyncio.sleep(0)
        yield DONE

    await crew.start(Played(generate))
    job = await submit(gateway, stream=True)
    async with asyncio.timeout(10):
        events = [event async for event in gateway.events(job.job_id)]
    assert "".join(event.text or "" for event in events if event.kind is EventKind.CHUNK) == "".join(words)
    assert events[-1].status is JobStatus.SUCCEEDED
    final = (await gateway.get(job.job_id)).result
    assert final
    assert final.text == "".join(words)


async def test_a_retryable_error_is_tried_again(crew: Crew, gateway: Store) -> None:
    running = await crew.start(raising(BrokenStream(), Refused(500, "no")), max_attempts=3)
    job = await ended(gateway, (await submit(gateway)).job_id)
    assert job.status is JobStatus.SUCCEEDED
    assert [attempt.outcome for attempt in job.attempts] == [Outcome.ERROR, Outcome.ERROR, Outcome.SUCCEEDED]
    await wait_until(lambda: running.count("iwl_attempts_total", outcome="succeeded") == 1)
    assert running.count("iwl_attempts_total", outcome="error") == 2
    assert running.count("iwl_model_calls_total") == 3


async def test_an_engine_that_asks_for_a_retry_in_the_past_gets_one(crew: Crew, gateway: Store) -> None:
    """A delay below nothing would tell the store that there is none."""
    await crew.start(raising(Refused(500, "no", retry_after=timedelta(seconds=-9))), max_attempts=2)
    job = await ended(gateway, (await submit(gateway)).job_id)
    assert [attempt.outcome for attempt in job.attempts] == [Outcome.ERROR, Outcome.SUCCEEDED]


async def test_a_spent_budget_ends_in_the_dead_letters(crew: Crew, gateway: Store) -> None:
    running = await crew.start(raising(*[Refused(500, f"no {n}") for n in (1, 2)]), max_attempts=2)
    job = await ended(gateway, (await submit(gateway)).job_id)
    assert job.status is JobStatus.FAILED
    assert job.error
    assert (job.error.cause, job.error.message) == (Cause.ERROR, "HTTP 500: no 2")
    assert [letter.job_id for letter in await gateway.list_dead()] == [job.job_id]
    await wait_until(lambda: running.count("iwl_job_failures_total", cause="error") == 1)


@pytest.mark.settings(max_attempts=1)
async def test_a_job_given_back_too_often_is_counted_as_the_failure_that_it_is(
    crew: Crew, gateway: Store, processes: Processes
) -> None:
    submitted = await submit(gateway)
    elsewhere = await processes.hire()
    for _ in range(10):
        assert await elsewhere.release(await elsewhere.lease()) is Settled.RELEASED
    running = await crew.start(raising(Refused(503, "busy")), max_attempts=1)
    job = await ended(gateway, submitted.job_id)
    assert (job.status, len(await gateway.list_dead())) == (JobStatus.FAILED, 1)
    assert job.attempts[-1].outcome is Outcome.ERROR
    await wait_until(lambda: running.count("iwl_jobs_ended_total", status="failed") == 1)
    assert running.count("iwl_job_failures_total", cause="error") == 1
    assert running.count("iwl_attempts_total", outcome="error") == 1
    assert running.count("iwl_attempts_total", outcome="released") == 0


async def test_a_permanent_error_is_not_tried_again(crew: Crew, gateway: Store) -> None:
    backend = raising(Refused(400, "context too long"))
    await crew.start(backend, max_attempts=3)
    job = await ended(gateway, (await submit(gateway)).job_id)
    assert job.error
    assert (job.error.cause, job.error.message) == (Cause.PERMANENT, "HTTP 400: context too long")
    assert len(backend.calls) == 1


@pytest.mark.settings(retry_backoff_ms=150, retry_backoff_max_ms=150)
async def test_a_delayed_retry_is_not_late(crew: Crew, gateway: Store) -> None:
    await crew.start(raising(Refused(500, "no", retry_after=timedelta(milliseconds=100))))
    job = await ended(gateway, (await submit(gateway)).job_id)
    first, second = job.attempts
    assert first.ended_at
    waited = second.started_at - first.ended_at
    # Nobody else keeps the time, and rounds without a poke are a second apart.
    assert timedelta(milliseconds=100) <= waited < timedelta(milliseconds=700)


@pytest.mark.parametrize(
    ("asked", "setting"),
    [(0.1, 60_000), (None, 100), (60, 100)],
    ids=["the request's", "the setting's", "the setting caps the request's"],
)
async def test_an_attempt_has_a_time_limit(
    crew: Crew, gateway: Store, asked: float | None, setting: int
) -> None:
    gate = Gate()
    await crew.start(gate.backend, max_attempts=1, job_timeout_ms=setting)
    job = await ended(gateway, (await submit(gateway, timeout_s=asked)).job_id)
    assert job.error
    assert (job.error.cause, job.error.message) == (Cause.TIMEOUT, "The attempt took longer than 0.1 s.")
    assert gate.backend.open == 0


async def test_a_result_too_large_fails_whole(crew: Crew, gateway: Store) -> None:
    async def generate(request: JobRequest, attempt: int) -> Pieces:
        yield "ä" * 8
        yield "ä" * int(request.prompt or 0)
        yield DONE

    backend = Played(generate)
    await crew.start(backend, max_result_bytes=20)
    fits, large = await submit(gateway, "2"), await submit(gateway, "3")
    assert (await ended(gateway, fits.job_id)).status is JobStatus.SUCCEEDED
    job = await ended(gateway, large.job_id)
    assert job.error
    assert job.error.cause is Cause.RESULT_TOO_LARGE
    assert job.result is None
    assert backend.open == 0


async def test_cancelling_closes_the_model_call(crew: Crew, gateway: Store) -> None:
    gate = Gate()
    running = await crew.start(gate.backend, worker_concurrency=1, **PROMPT)
    job = await submit(gateway, "cancelled")
    await wait_until(lambda: gate.backend.open == 1)
    await gateway.cancel(job.job_id)
    await wait_until(lambda: gate.backend.open == 0)
    gate.opened.set()
    after = await submit(gateway, "after")
    assert (await ended(gateway, after.job_id)).status is JobStatus.SUCCEEDED
    assert (await gateway.get(job.job_id)).status is JobStatus.CANCELLED
    assert running.count("iwl_attempts_total", outcome="cancelled") == 1
    assert running.count("iwl_stale_writes_total") == 0


async def test_the_deadline_closes_the_model_call(crew: Crew, gateway: Store) -> None:
    gate = Gate()
    running = await crew.start(gate.backend, **PROMPT)
    job = await submit(gateway, expires_in_s=0.3)
    assert (await ended(gateway, job.job_id)).status is JobStatus.EXPIRED
    await wait_until(lambda: gate.backend.open == 0)
    await wait_until(lambda: running.count("iwl_attempts_total", outcome="expired") == 1)


async def test_a_call_that_hangs_in_its_own_end_is_closed_again(
    crew: Crew, gateway: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_lease, "OVERDUE_S", 0.1)
    never = asyncio.Event()

    async def generate(request: JobRequest, attempt: int) -> Pieces:
        if request.prompt == "hang":
            try:
                await never.wait()
            finally:
                await never.wait()
        yield "done"
        yield DONE

    await crew.start(Played(generate), worker_concurrency=1, max_attempts=1, **PROMPT)
    hung = await submit(gateway, "hang", timeout_s=0.1)
    assert (await ended(gateway, hung.job_id)).attempts[-1].outcome is Outcome.TIMEOUT
    assert (await ended(gateway, (await submit(gateway)).job_id)).status is JobStatus.SUCCEEDED


async def test_a_call_that_cannot_be_ended_does_not_keep_its_job(
    crew: Crew, gateway: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_lease, "OVERDUE_S", 0.1)
    over = asyncio.Event()

    async def stubborn(request: JobRequest, attempt: int) -> Pieces:
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()
        yield "late"
        yield DONE

    running = await crew.start(Played(stubborn), worker_concurrency=1, **PROMPT)
    job = await submit(gateway, timeout_s=0.1)
    await wait_until(lambda: running.count("iwl_worker_busy") == 1)
    await crew.start(echoing(), **PROMPT)
    done = await ended(gateway, job.job_id)
    assert [attempt.outcome for attempt in done.attempts] == [Outcome.CRASH, Outcome.SUCCEEDED]
    over.set()
    await wait_until(lambda: running.count("iwl_worker_busy") == 0)
    assert await gateway.get(job.job_id) == done


class Mute(Exception):
    """Cannot even be printed."""

    def __str__(self) -> str:
        raise self


class Odd(str):
    """Text, though msgspec encodes no subclass of it."""


#: Each is raised by a backend of the user's own.
ODD_ERRORS: dict[str, BaseException] = {
    "a bug": ZeroDivisionError(),
    "its own cancellation": asyncio.CancelledError(),
    "a lone surrogate in an error": ValueError("caf\udce9"),
    "a lone surrogate in an answer": BrokenStream("caf\udce9"),
    "an error without a text": Mute(),
    "a status that is none": Refused(cast(Any, ["400"]), "no"),
}

#: Each is yielded by a backend of the user's own, where text or a completion belongs.
ODD_PIECES: dict[str, Any] = {
    "bytes": b"text",
    "nothing": None,
    "a number": 1,
    "half a character": "\ud83d",
    "a look-alike": {"finish_reason": "stop", "usage": {"prompt_tokens": 1, "completion_tokens": 1}},
    "no usage": Completion(usage=cast(Any, None)),
    "another usage": Completion(usage=cast(Any, {"prompt": 1})),
    **{
        f"{count!r} tokens": Completion(usage=Usage(prompt_tokens=cast(Any, count)))
        for count in (None, True, -1, 2.0, "3", Decimal(4), object, 2**53, 10**400)
    },
    **{
        f"the reason {reason!r}": Completion(finish_reason=cast(Any, reason))
        for reason in (1, b"stop", Decimal(1), object, ["stop"], "\ud83d")
    },
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_nothing_that_a_backend_does_costs_more_than_the_attempt(
    crew: Crew, gateway: Store, stream: bool
) -> None:
    """Its job can be read, and the worker runs the next one."""

    async def generate(request: JobRequest, attempt: int) -> Pieces:
        asked = request.prompt or ""
        if asked in ODD_ERRORS:
            raise ODD_ERRORS[asked]
        if asked in ODD_PIECES:
            yield ODD_PIECES[asked]
        yield asked
        yield DONE

    running = await crew.start(Played(generate), worker_concurrency=2, max_attempts=1, **PROMPT)
    bad = [await submit(gateway, how, stream=stream) for how in (*ODD_ERRORS, *ODD_PIECES)]
    for job in bad:
        error = (await ended(gateway, job.job_id)).error
        assert error
        assert (error.cause, bool(error.message)) == (Cause.ERROR, True)
    assert (await ended(gateway, (await submit(gateway, "good")).job_id)).status is JobStatus.SUCCEEDED
    assert running.count("iwl_attempts_total", outcome="error") == len(bad)


async def test_kinds_of_text_and_numbers_are_stored_as_plain_ones(crew: Crew, gateway: Store) -> None:
    class Reason(StrEnum):
        LENGTH = "length"

    class Tokens(IntEnum):
        THREE = 3

    async def generate(request: JobRequest, attempt: int) -> Pieces:
        yield Odd("text")
        reason = Odd("stop") if request.prompt == "odd" else Reason.LENGTH
        yield Completion(finish_reason=reason, usage=Usage(prompt_tokens=Tokens.THREE))

    await crew.start(Played(generate))
    for prompt, reason in (("odd", "stop"), ("enum", "length")):
        result = (await ended(gateway, (await submit(gateway, prompt, stream=True)).job_id)).result
        assert result == Result(text="text", finish_reason=reason, usage=Usage(prompt_tokens=3))


async def test_no_way_to_end_costs_a_slot(crew: Crew, gateway: Store) -> None:
    gate = Gate()

    async def generate(request: JobRequest, attempt: int) -> Pieces:
        match request.prompt:
            case "bug":
                raise ZeroDivisionError
            case "self-cancel":
                raise asyncio.CancelledError
            case "bytes":
                yield cast(Any, b"text")
            case "uncounted":
                yield Completion(usage=cast(Any, None))
            case "large":
                yield "x" * 1000
            case "silent":
                return
            case _:
                await gate.opened.wait()
        yield "done"
        yield DONE

    backend = Played(generate)
    await crew.start(backend, worker_concurrency=2, max_attempts=1, max_result_bytes=100, **PROMPT)
    ways = ("bug", "self-cancel", "bytes", "uncounted", "large", "silent", "hang")
    bad = [await submit(gateway, how, timeout_s=0.1) for how in ways]
    for job in bad:
        assert (await ended(gateway, job.job_id)).status is JobStatus.FAILED
    good = [await submit(gateway, f"good {n}") for n in range(2)]
    await wait_until(lambda: backend.open == 2)
    gate.opened.set()
    for job in good:
        assert (await ended(gateway, job.job_id)).status is JobStatus.SUCCEEDED


async def test_a_retry_gives_its_slot_back(crew: Crew, gateway: Store) -> None:
    await crew.start(raising(*[Refused(500, "no")] * 6), worker_concurrency=1, max_attempts=7)
    for job in [await submit(gateway, f"job {n}") for n in range(2)]:
        assert (await ended(gateway, job.job_id)).status is JobStatus.SUCCEEDED


async def test_times_are_measured(crew: Crew, gateway: Store) -> None:
    running = await crew.start(echoing())
    await ended(gateway, (await submit(gateway)).job_id)
    for name in ("queue", "run", "total"):
        await wait_until(lambda name=name: running.count(f"iwl_job_{name}_seconds_count") == 1)
