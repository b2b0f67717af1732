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
LATENCY_MS = 500
#: Longer and shorter than the drain time of these labs.
LONG_MS, SHORT_MS = 1200, 300
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
    ids = await stage.submit_many(JOBS, latency_ms=LATENCY_MS)
    stage.tell(f"{JOBS} jobs of {LATENCY_MS} ms run, each worker holds some.")
    name, child, held = await stage.victim(await stage.running(ids))
    return Scene(ids, name, child, held)


async def _run_again(stage: Stage, scene: Scene, seen: str, *, by_itself: bool = False) -> Observation:
    """Whether the struck worker's jobs crashed and then succeeded: with others and not before their leases
    had run out, or `by_itself`."""
    jobs = await stage.ends(scene.ids)
    struck = [job for job in jobs if job.job_id in scene.held]
    again = {job.attempts[-1].worker for job in struck}
    waited = min([job.attempts[-1].started_at - stage.struck_at for job in struck], default=timedelta(0))
    settings = stage.system.settings
    leases = waited >= settings.claim_idle - settings.heartbeat
    where = again == {scene.name} if by_itself else leases and scene.name not in again
    crashed = all(outcomes(job) == [Outcome.CRASH, Outcome.SUCCEEDED] for job in struck)
    who = " and ".join(sorted(again)) or "nobody"
    return Observation(
        seen=seen.format(
            again=who, count=len(struck), name=scene.name, waited=f"{waited.total_seconds():.1f} s"
        ),
        right=where and crashed and len(jobs) == JOBS and all(job.succeeded for job in jobs),
        recovery=stage.recovery(struck),
        jobs=struck,
    )


async def _kill_worker(stage: Stage) -> Observation:
    scene = await _fleet_at_work(stage)
    stage.strike(scene.name, scene.child, signal.SIGKILL)
    return await _run_again(stage, scene, "{again} ran its {count} again", by_itself=True)


async def _kill_worker_for_good(stage: Stage) -> Observation:
    scene = await _fleet_at_work(stage)
    with scene.child.not_restarted():
        stage.strike(scene.name, scene.child, signal.SIGKILL)
        return await _run_again(stage, scene, "{again} ran its {count}, {waited} later")


async def _pause_worker(stage: Stage) -> Observation:
    scene = await _fleet_at_work(stage)

    async def taken_over() -> bool:
        return all([(await stage.api.job(job_id)).value.attempt > 1 for job_id in scene.held])

    async def refused() -> bool:
        return all(_refusals(scene.child, job_id) for job_id in scene.held)

    with stage.paused(scene.name, scene.child):
        await stage.until("another worker runs the jobs", taken_over)
        stage.tell("Its leases ran out, and another worker runs its jobs.")
    await stage.until(f"{scene.name} learns that its leases are gone", refused)
    stage.tell(f'{scene.name} logs: "{_refusals(scene.child, scene.held[0])[0]}".')
    return await _run_again(stage, scene, "{again} ran them, {name} was refused")


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
    long = await stage.submit_many(JOBS // 2, latency_ms=LONG_MS)
    short = await stage.submit_many(JOBS // 2, latency_ms=SHORT_MS)
    stage.tell(f"{len(long)} jobs of {LONG_MS} ms and {len(short)} of {SHORT_MS} ms run.")
    running = await stage.running([*long, *short])
    name, child, _ = await stage.victim([job for job in running if job.job_id in long])
    held = [job.job_id for job in running if job.worker == name]
    stage.strike(name, child, signal.SIGTERM)
    jobs = await stage.ends([*long, *short])
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
    promise="Its leases run out 2 s after their last renewal, and then any other worker takes its jobs over.",
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
