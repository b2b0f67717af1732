"""Faults of the server: killed, paused, full."""

from __future__ import annotations

import signal
from http import HTTPStatus

from lab.exits import ApiRefused
from lab.faults.fault import Fault, Observation
from lab.faults.stage import Stage

CLIENT_JOBS = 60
BEFORE_THE_FAULT = 15
UNAVAILABLE = HTTPStatus.SERVICE_UNAVAILABLE


async def _kill_redis(stage: Stage) -> Observation:
    child = await stage.child("redis")
    async with stage.clients(CLIENT_JOBS, latency_ms=100) as clients:
        await clients.have(BEFORE_THE_FAULT)
        stage.tell(f"{BEFORE_THE_FAULT} of {CLIENT_JOBS} jobs are accepted, some run.")
        stage.strike("redis", child, signal.SIGKILL)
    failed = sum(clients.failures.values())
    stage.tell(f"{failed} submits failed and were repeated. The server read its log, and all went on.")
    jobs = await stage.ends(clients.accepted)
    succeeded = sum(job.succeeded for job in jobs)
    again = clients.served_again_at or stage.struck_at
    return Observation(
        seen=f"{failed} repeated, {succeeded} of {CLIENT_JOBS} succeeded",
        right=succeeded == CLIENT_JOBS,
        recovery=max(stage.recovery(jobs), again - stage.struck_at),
        jobs=[job for job in jobs if job.created_at <= stage.struck_at][-1:],
    )


async def _pause_redis(stage: Stage) -> Observation:
    child = await stage.child("redis")
    async with stage.clients(CLIENT_JOBS, latency_ms=100) as clients:
        await clients.have(BEFORE_THE_FAULT)
        stage.tell(f"{BEFORE_THE_FAULT} of {CLIENT_JOBS} jobs are accepted, some run.")
        with stage.paused("redis", child):
            await clients.failed_with(UNAVAILABLE)
            stage.tell("The gateway answers 503.")
        pause = stage.since()
    jobs = await stage.ends(clients.accepted)
    succeeded = sum(job.succeeded for job in jobs)
    again = clients.served_again_at or stage.struck_at
    return Observation(
        seen=f"503 after {pause.total_seconds():.1f} s, {succeeded} of {CLIENT_JOBS} succeeded",
        right=succeeded == CLIENT_JOBS,
        recovery=max(stage.recovery(jobs), again - stage.struck_at),
        jobs=[job for job in jobs if job.created_at <= stage.struck_at][-1:],
    )


async def _full_redis(stage: Stage) -> Observation:
    ids = await stage.submit_many(12, latency_ms=200)
    stage.now("CONFIG SET maxmemory 1: the server holds more than it may.")
    await stage.server("CONFIG", "SET", "maxmemory", "1")
    try:
        status = await _submit_refused(stage)
        stage.tell(f"A submit is answered with {status}.")
        jobs = await stage.ends(ids)
    finally:
        await stage.server("CONFIG", "SET", "maxmemory", "0")
    drained = sum(job.succeeded for job in jobs)
    stage.tell(f"{drained} accepted jobs ended meanwhile. The limit is lifted.")

    async def accepted() -> bool:
        return not await _submit_refused(stage)

    await stage.until("submits are accepted", accepted)
    return Observation(
        seen=f"{status}, {drained} of {len(ids)} drained, then 202",
        right=status == UNAVAILABLE and drained == len(ids),
        recovery=stage.since(),
        jobs=jobs[-1:],
    )


async def _submit_refused(stage: Stage) -> int:
    """The status with which a submit is refused; 0 when it is accepted."""
    try:
        await stage.submit(latency_ms=1)
    except ApiRefused as refusal:
        return refusal.status
    return 0


KILL_REDIS = Fault(
    name="kill-redis",
    title="The server is killed while clients submit and workers run.",
    promise="What it had written to its append-only file it has after the restart. Submits get 503 "
    "meanwhile.",
    expected="all succeed after its restart",
    run=_kill_redis,
)
PAUSE_REDIS = Fault(
    name="pause-redis",
    title="The server stands still until submits are refused, and then goes on.",
    promise="No answer in time is 503, never 500. A submit repeated with its key is one job.",
    expected="503, then all succeed",
    run=_pause_redis,
)
FULL_REDIS = Fault(
    name="full-redis",
    title="The server is out of memory, and then no more.",
    promise="A full store drains: new jobs get 503, those accepted still finish.",
    expected="503 for new, accepted drain",
    run=_full_redis,
)
