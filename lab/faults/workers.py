"""Faults of workers: killed, killed for good, paused, told to leave."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from common.job import Outcome
from lab.faults.fault import Fault, Observation
from lab.faults.stage import Stage
from lab.folder import last_lines
from lab.records import JobRecord
from lab.supervisor import Child

#: One for each slot of the fleet, so that every worker holds some.
JOBS = 6
LATENCY_MS = 600
#: Longer and shorter than the drain time of these labs.
LONG_MS, SHORT_MS = 1200, 500
LOG_LINES = 20


def outcomes(job: JobRecord) -> list[Outcome | None]:
    return [attempt.outcome for attempt in job.attempts]


@dataclass(frozen=True, slots=True)
class Scene:
    """A fleet at work, and the worker that will be struck."""

    ids: list[str]
    name: str
    child: Child
    #: Jobs in its hands.
    held: list[str]


async def _fleet_at_work(stage: Stage) -> Scene:
    jobs = await stage.at_work(JOBS, latency_ms=LATENCY_MS)
    name, child = await stage.victim(jobs)
    held = [job.job_id for job in jobs if job.worker == name]
    return Scene([job.job_id for job in jobs], name, child, held)


@dataclass(frozen=True, slots=True)
class Rerun:
    """What became of the jobs that the struck worker was lost with."""

    jobs: list[JobRecord]
    #: Each of them crashed and then succeeded, and all other jobs succeeded at their first start.
    clean: bool
    #: Who ran them again.
    by: set[str]
    #: From the fault to the first start after it.
    waited: timedelta

    @property
    def who(self) -> str:
        return " and ".join(sorted(self.by)) or "nobody"


async def _rerun(stage: Stage, scene: Scene) -> Rerun:
    jobs = await stage.ends(scene.ids)
    # Not what the worker held when it was looked at: it may have finished a job just before it was struck.
    struck = [job for job in jobs if job.reclaimed]
    clean = len(jobs) == JOBS and all(
        outcomes(job) == ([Outcome.CRASH] if job.reclaimed else []) + [Outcome.SUCCEEDED] for job in jobs
    )
    waited = min([job.attempts[-1].started_at - stage.struck_at for job in struck], default=timedelta(0))
    return Rerun(struck, clean, {job.attempts[-1].worker for job in struck}, waited)


def _leases_ran_out(stage: Stage, rerun: Rerun) -> bool:
    settings = stage.system.settings
    return rerun.waited >= settings.claim_idle - settings.heartbeat


async def _kill_worker(stage: Stage) -> Observation:
    scene = await _fleet_at_work(stage)
    stage.strike(scene.name, scene.child, signal.SIGKILL)
    rerun = await _rerun(stage, scene)
    return Observation(
        seen=f"{rerun.who} ran its {len(rerun.jobs)} again",
        right=rerun.clean and rerun.by == {scene.name},
        recovery=stage.recovery(rerun.jobs),
        jobs=rerun.jobs,
    )


async def _kill_worker_for_good(stage: Stage) -> Observation:
    scene = await _fleet_at_work(stage)
    with scene.child.not_restarted():
        stage.strike(scene.name, scene.child, signal.SIGKILL)
        rerun = await _rerun(stage, scene)
    return Observation(
        seen=f"{rerun.who} ran its {len(rerun.jobs)}, {rerun.waited.total_seconds():.1f} s later",
        right=rerun.clean and scene.name not in rerun.by and _leases_ran_out(stage, rerun),
        recovery=stage.recovery(rerun.jobs),
        jobs=rerun.jobs,
    )


async def _pause_worker(stage: Stage) -> Observation:
    scene = await _fleet_at_work(stage)

    async def taken_over() -> bool:
        return all(job.ended or job.attempt > 1 for job in await stage.look(scene.held))

    async def refused() -> bool:
        held = await stage.look(scene.held)
        return all(_refusals(scene.child, job.job_id) for job in held if job.attempt > 1)

    with stage.paused(scene.name, scene.child):
        await stage.until("another worker runs the jobs", taken_over)
        stage.tell("Its leases ran out, and another worker runs its jobs.")
    await stage.until(f"{scene.name} learns that its leases are gone", refused)
    rerun = await _rerun(stage, scene)
    for line in dict.fromkeys(line for job in rerun.jobs for line in _refusals(scene.child, job.job_id)):
        stage.tell(f'{scene.name} logs: "{line}".')
    return Observation(
        seen=f"{rerun.who} ran them, {scene.name} was refused",
        right=rerun.clean and scene.name not in rerun.by and _leases_ran_out(stage, rerun),
        recovery=stage.recovery(rerun.jobs),
        jobs=rerun.jobs,
    )


class _Line(msgspec.Struct):
    """A line of a worker's log, as far as it is read here."""

    message: str
    job_id: str = ""


def _refusals(child: Child, job_id: str) -> list[str]:
    """What a worker that has done nothing else with this job says when it hears that its lease is gone."""
    lines: list[_Line] = []
    for text in last_lines(child.program.log, LOG_LINES):
        # Not every line is one of its own, and the last may be half written.
        with suppress(msgspec.DecodeError):
            lines.append(msgspec.json.decode(text, type=_Line))
    return [line.message for line in lines if line.job_id == job_id and "lost" in line.message]


async def _drain(stage: Stage) -> Observation:
    short = await stage.submit_many(JOBS // 2, latency_ms=SHORT_MS)
    long = [job.job_id for job in await stage.at_work(JOBS // 2, latency_ms=LONG_MS)]
    ids = [*short, *long]
    name, child = await stage.victim(await stage.look(long))
    held = [job.job_id for job in await stage.look(ids) if job.worker == name and not job.ended]
    stage.strike(name, child, signal.SIGTERM)
    jobs = await stage.ends(ids)
    asked = [job for job in jobs if job.job_id in held]
    finished = sum(outcomes(job) == [Outcome.SUCCEEDED] for job in asked)
    refunded = sum(outcomes(job) == [Outcome.RELEASED, Outcome.SUCCEEDED] for job in asked)
    return Observation(
        seen=f"{finished} finished, {refunded} refunded and rerun",
        right=all(job.succeeded for job in jobs) and refunded > 0 and finished + refunded == len(held),
        recovery=stage.recovery(asked),
        jobs=asked,
    )


KILL_WORKER = Fault(
    name="kill-worker",
    title="A worker is killed in the middle of its jobs, and restarted.",
    promise="A crash costs a start of the budget, not the job. The same slot, restarted, takes its jobs back "
    "at once; nobody waits for their leases, which last 30 s here.",
    expected="its restart runs them again",
    run=_kill_worker,
    settings={"claim_idle_ms": "30000"},
)
KILL_WORKER_FOR_GOOD = Fault(
    name="kill-worker-for-good",
    title="A worker is killed in the middle of its jobs, and does not come back.",
    promise="Its leases run out, 2 s after their last renewal unless --idle-ms says otherwise, and then any "
    "other worker takes its jobs over.",
    expected="another worker takes them over",
    run=_kill_worker_for_good,
)
PAUSE_WORKER = Fault(
    name="pause-worker",
    title="A worker stands still for longer than its leases last, and then goes on.",
    promise="Only the holder of the current token may write: a worker that comes back too late is told so, "
    "and overwrites nothing.",
    expected="late results are refused",
    run=_pause_worker,
)
DRAIN = Fault(
    name="drain",
    title="A worker is told to leave (SIGTERM) in the middle of its jobs.",
    promise="It finishes what it can within the drain time, 0.7 s here, and gives the rest back with the "
    "start refunded.",
    expected="each finished or refunded",
    run=_drain,
)
