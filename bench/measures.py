"""The four measurements of `make bench`. Each returns rows of (what, figure)."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from bench.stage import (
    Stage,
    opened,
    read_many,
    submission,
    submit_many,
    until_ended,
    worker_process,
)
from common.job import Job, JobStatus
from lab.figures import nearest_rank

Row = tuple[str, str]

NOOP = "bench.noop:Noop"
PUBLISHED_P95_MS = 214  # 80 jobs, concurrency 4, 5 ms, the published lab


async def submit(stage: Stage, jobs: int) -> list[Row]:
    """Through the port: one at a time, and 100 at a time."""
    async with opened(stage.settings()) as store:
        started = time.perf_counter()
        for _ in range(jobs // 4):
            await store.submit(submission())
        alone = jobs // 4 / (time.perf_counter() - started)
        started = time.perf_counter()
        await submit_many(store, jobs, batch=100)
        batched = jobs / (time.perf_counter() - started)
    return [
        ("submit, one at a time", f"{alone:,.0f} jobs/s"),
        ("submit, 100 at a time", f"{batched:,.0f} jobs/s"),
    ]


async def drain(stage: Stage, jobs: int, concurrency: int = 64) -> list[Row]:
    """No-op jobs waiting in the queue, one worker process: first start to last end, from the job records."""
    settings = stage.settings(backend=NOOP, worker_concurrency=concurrency)
    async with opened(settings) as store:
        job_ids = await submit_many(store, jobs)
        async with worker_process(settings):
            await until_ended(store, jobs)
        ended = await read_many(store, job_ids)
        backlog = await store.depth()
    seconds = max(_ended(job) for job in ended) - min(_started(job) for job in ended)
    assert backlog.unaccounted == 0
    return [(f"drain, one worker, concurrency {concurrency}", f"{jobs / seconds:,.0f} jobs/s")]


async def latency(stage: Stage, jobs: int) -> list[Row]:
    """One job in flight: submit to result in hand, through the port."""
    settings = stage.settings(backend=NOOP)
    async with opened(settings) as store, worker_process(settings):
        took: list[float] = []
        for number in range(jobs + 20):
            sent = submission()
            started = time.perf_counter()
            await store.submit(sent)
            job = await store.wait(sent.job_id, timedelta(seconds=10))
            if number >= 20:  # the first ones pay for connections
                took.append((time.perf_counter() - started) * 1000)
            assert job.status is JobStatus.SUCCEEDED
    return [(f"one in flight, p{n}", f"{nearest_rank(took, n):.2f} ms") for n in (50, 95, 99)]


async def burst(stage: Stage, rounds: int) -> list[Row]:
    """80 jobs at once, one worker, concurrency 4, 5 ms in the backend: queue to done, the published form."""
    settings = stage.settings(mock_latency_ms=5, worker_concurrency=4)
    by_round: dict[str, list[float]] = {"p50": [], "p95": []}
    async with opened(settings) as store, worker_process(settings):
        await store.wait((await store.submit(submission())).job.job_id, timedelta(seconds=10))
        for _ in range(rounds):
            sent = [submission() for _ in range(80)]
            await asyncio.gather(*(store.submit(one) for one in sent))
            jobs = await asyncio.gather(*(store.wait(one.job_id, timedelta(seconds=10)) for one in sent))
            took = [(_ended(job) - job.created_at.timestamp()) * 1000 for job in jobs]
            by_round["p50"].append(nearest_rank(took, 50))
            by_round["p95"].append(nearest_rank(took, 95))
    rows = [
        (f"burst of 80, queue to done, {name}", f"{nearest_rank(ms, 50):.0f} ms")
        for name, ms in by_round.items()
    ]
    ratio = nearest_rank(by_round["p95"], 50) / PUBLISHED_P95_MS
    return [*rows, ("burst p95 against the published 214 ms", f"{ratio:.2f} x")]


def _started(job: Job) -> float:
    assert job.started_at is not None
    return job.started_at.timestamp()


def _ended(job: Job) -> float:
    assert job.finished_at is not None
    return job.finished_at.timestamp()
