"""Faults of jobs: one that kills its workers, one whose model hangs."""

from __future__ import annotations

from common.job import Cause, Outcome
from lab.faults.fault import Fault, Observation
from lab.faults.stage import Stage
from lab.faults.workers import outcomes

INNOCENTS = 10
LATENCY_MS = 200
TIMEOUT_S = 0.5


async def _poison(stage: Stage) -> Observation:
    innocents = await stage.submit_many(INNOCENTS // 2, latency_ms=LATENCY_MS)
    poison = await stage.submit(latency_ms=100, fail="exit")
    innocents += await stage.submit_many(INNOCENTS // 2, latency_ms=LATENCY_MS)
    stage.now(f"{INNOCENTS} jobs, and among them one that ends the process of whoever runs it.")
    (dead,) = await stage.ends([poison]) or [None]
    jobs = await stage.ends(innocents)
    succeeded = sum(job.succeeded for job in jobs)
    cause = dead.error.cause if dead and dead.error else None
    harmed = sum(job.reclaimed for job in jobs)
    stage.tell(f"{harmed} of the others were in the hands of a worker that it killed, and ran again.")
    return Observation(
        seen=f"{cause} after {len(dead.attempts) if dead else 0}, {succeeded} of {INNOCENTS} succeeded",
        right=cause is Cause.CRASH and succeeded == INNOCENTS,
        recovery=stage.recovery([*jobs, *([dead] if dead else [])]),
        jobs=[dead] if dead else [],
    )


async def _hang(stage: Stage) -> Observation:
    job_id = await stage.submit(latency_ms=1, timeout_s=TIMEOUT_S, fail="hang", fail_attempts=1)
    stage.now(f"A job may take {TIMEOUT_S:g} s, and the model never answers its first attempt.")
    jobs = await stage.ends([job_id])
    seen = [outcome or "running" for job in jobs for outcome in outcomes(job)]
    return Observation(
        seen=", then ".join(seen),
        right=seen == [Outcome.TIMEOUT, Outcome.SUCCEEDED],
        recovery=stage.recovery(jobs),
        jobs=jobs,
    )


POISON = Fault(
    name="poison",
    title="A job kills its worker each time, among jobs that do not.",
    promise="A start counts, whatever ends it, so a poison ends after three: failed, cause crash. On its "
    "last it runs alone, so that no other job goes with it.",
    expected="cause crash, others succeed",
    run=_poison,
)
HANG = Fault(
    name="hang",
    title="The model never answers the first attempt of a job.",
    promise="An attempt has a time limit; running out of it is an error that is tried again.",
    expected="timeout, then succeeded",
    run=_hang,
)
