"""Faults by somebody else with access to the server: the group destroyed, the queue deleted."""

from __future__ import annotations

from common.job import Cause
from lab.faults.fault import Fault, Observation
from lab.faults.stage import Stage

#: Three times the slots of the fleet: some run, most wait.
JOBS = 18
LATENCY_MS = 300
GROUP = "workers"


def _queue(stage: Stage) -> str:
    return f"{stage.system.settings.namespace}:jobs"


async def _more_jobs_than_slots(stage: Stage) -> list[str]:
    ids = await stage.submit_many(JOBS, latency_ms=LATENCY_MS)

    async def some_run() -> bool:
        return (await stage.api.stats()).value.running > 0

    await stage.until("some run", some_run)
    return ids


async def _flush_group(stage: Stage) -> Observation:
    ids = await _more_jobs_than_slots(stage)
    stage.now(f"XGROUP DESTROY {_queue(stage)} {GROUP}: {JOBS} jobs run or wait.")
    await stage.server("XGROUP", "DESTROY", _queue(stage), GROUP)
    jobs = await stage.ends(ids)
    succeeded = sum(job.succeeded for job in jobs)
    starts = sum(len(job.attempts) for job in jobs)
    return Observation(
        seen=f"{succeeded} of {JOBS} succeeded, {starts} starts",
        right=succeeded == starts == JOBS,
        recovery=stage.recovery(jobs),
        jobs=jobs[-1:],
    )


async def _lost_entries(stage: Stage) -> Observation:
    ids = await _more_jobs_than_slots(stage)
    stage.now(f"DEL {_queue(stage)}: {JOBS} jobs run or wait, and the requests of those that wait are gone.")
    await stage.server("DEL", _queue(stage))
    jobs = await stage.ends(ids)
    succeeded = [job for job in jobs if job.succeeded]
    lost = [job for job in jobs if job.error and job.error.cause is Cause.LOST]
    dead = {letter.job_id for letter in (await stage.api.dead(100, None)).value.jobs}
    told = sum(job.job_id in dead for job in lost)
    stage.tell(f"Those that ran have a result. {told} are dead letters, cause lost: their clients know.")
    return Observation(
        seen=f"{len(succeeded)} succeeded, {told} dead, cause lost",
        right=len(succeeded) + told == JOBS and told == len(lost) > 0,
        recovery=stage.recovery(jobs),
        jobs=[*succeeded[-1:], *lost[-1:]],
    )


FLUSH_GROUP = Fault(
    name="flush-group",
    title="Somebody destroys the consumer group while jobs run and wait.",
    promise="The record decides, not the group: it is made again, and a live lease cannot be stolen by that.",
    expected="nothing lost, nothing stolen",
    run=_flush_group,
)
LOST_ENTRIES = Fault(
    name="lost-entries",
    title="Somebody deletes the queue while jobs run and wait.",
    promise="What runs ends as if nothing had happened. A job whose request is gone ends visibly: failed, "
    "cause lost, in the dead-letter queue.",
    expected="visible ends, cause lost",
    run=_lost_entries,
)
