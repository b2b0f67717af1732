"""Faults of the gateway and the scaler, and what the scaler does to a fleet under load."""

from __future__ import annotations

import signal

from lab.faults.fault import Fault, Observation
from lab.faults.stage import Stage
from lab.faults.workers import outcomes

CLIENT_JOBS = 60
BEFORE_THE_FAULT = 15
BURST = 24
BURST_MS = 150


async def _kill_api(stage: Stage) -> Observation:
    child = await stage.child("api")
    async with stage.clients(CLIENT_JOBS, latency_ms=20) as clients:
        await clients.have(BEFORE_THE_FAULT)
        stage.tell(f"{BEFORE_THE_FAULT} of {CLIENT_JOBS} jobs are accepted, each under a key of its own.")
        stage.strike("api", child, signal.SIGKILL)
    failed = sum(clients.failures.values())
    stage.tell(
        f"{failed} calls failed. Their clients repeat them, with the same keys, until all are accepted."
    )
    jobs = await stage.ends(clients.accepted)
    again = clients.served_again_at or stage.struck_at
    return Observation(
        seen=f"{failed} calls repeated, {len(set(clients.accepted))} keys, {len(jobs)} jobs",
        right=failed > 0 and len(jobs) == CLIENT_JOBS and all(job.succeeded for job in jobs),
        recovery=max(stage.recovery(jobs), again - stage.struck_at),
        jobs=jobs[-1:],
    )


async def _kill_scaler(stage: Stage) -> Observation:
    child = await stage.child("scaler")
    before = await stage.submit_many(8, latency_ms=200)
    with child.not_restarted():
        stage.strike("scaler", child, signal.SIGKILL)
        after = await stage.submit_many(8, latency_ms=200)
        jobs = await stage.ends([*before, *after])
        stage.tell("All jobs have ended; there still is no scaler. Now it is restarted.")
        away = child.pid is None
    return Observation(
        seen=f"{sum(job.succeeded for job in jobs)} of {len(before) + len(after)} succeeded without it",
        right=away and len(jobs) == len(before) + len(after) and all(job.succeeded for job in jobs),
        recovery=stage.recovery(jobs),
        jobs=jobs[-1:],
    )


async def _scale(stage: Stage) -> Observation:
    async def desired(count: int) -> bool:
        return (await stage.api.scale()).value.desired == count

    await stage.until("the fleet is at rest", lambda: desired(1))
    workers = stage.system.settings.max_workers
    stage.now(f"{BURST} jobs of {BURST_MS} ms arrive at one active worker.")
    since = stage.struck_at
    ids = await stage.submit_many(BURST, latency_ms=BURST_MS)
    await stage.until("the fleet has grown", lambda: desired(workers))
    stage.tell(f"Desired is {workers}.")
    await stage.until("the fleet has shrunk", lambda: desired(1))
    stage.tell("Desired is 1 again, and the workers above it stopped reading.")
    back = stage.since()
    jobs = await stage.ends(ids)
    changes = [change.desired for change in (await stage.api.scale()).value.history if change.at > since]
    starts = sum(len(job.attempts) for job in jobs)
    once = all(outcomes(job) == ["succeeded"] for job in jobs)
    return Observation(
        seen=f"{' -> '.join(map(str, [1, *reversed(changes)]))}, {len(jobs)} jobs, {starts} starts",
        right=once and len(jobs) == BURST and max(changes, default=0) == workers and changes[0] == 1,
        recovery=back,
        jobs=jobs[-1:],
    )


KILL_API = Fault(
    name="kill-api",
    title="The gateway is killed while clients submit.",
    promise="The gateway holds nothing. A client that got no answer sends the same call again with the same "
    "key, and gets the same job.",
    expected="one job for each key",
    run=_kill_api,
)
KILL_SCALER = Fault(
    name="kill-scaler",
    title="The scaler is killed, and stays away while jobs run.",
    promise="The last count stands without it, and when that is too old all workers are active.",
    expected="workers go on without it",
    run=_kill_scaler,
)
SCALE = Fault(
    name="scale",
    title="A burst makes the fleet grow, and its end makes it shrink.",
    promise="Up at once, down after a quiet window. A worker above the count finishes what it holds.",
    expected="up, down, no start dropped",
    run=_scale,
    settings={"min_workers": "1"},
)
