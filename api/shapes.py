"""What the API answers, field for field. Durations are seconds, absent is null."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

from msgspec import UNSET
from pydantic import Field, WithJsonSchema

from common.job import Attempt, Cause, Job, JobError, JobRequest, JobStatus, JsonObject, Outcome, Result
from common.store import DeadLetter, Redriven, Submitted

JOBS = "/v1/jobs"

#: RFC 3339 in UTC, always with three digits of a second: such texts sort as their instants do.
Instant = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


@dataclass(frozen=True, slots=True, kw_only=True)
class Urls:
    self: str
    events: str
    cancel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePlace:
    #: Jobs queued ahead of this one; null on a replay.
    position: int | None
    #: Estimated seconds until the job has ended; null when nothing drains.
    eta_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    job_id: str
    status: JobStatus
    urls: Urls
    queue: QueuePlace


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLine:
    n: int
    worker: str
    started_at: Instant
    #: null while it runs.
    ended_at: Instant | None
    outcome: Outcome | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    job_id: str
    status: JobStatus
    attempt: int
    worker: str | None
    created_at: Instant
    started_at: Instant | None
    finished_at: Instant | None
    deadline_at: Instant | None
    model: str | None
    result: Result | None
    error: JobError | None
    attempts: list[AttemptLine]
    metadata: JsonObject
    urls: Urls
    #: The dead job that this one repeats; any other job has no such field.
    redrive_of: Annotated[object, WithJsonSchema({"type": "string"})] = field(default_factory=lambda: UNSET)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    jobs: list[JobView]
    #: Give it as `before` for the next page; null on the last.
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadJob:
    cursor: str
    job_id: str
    cause: Cause
    error: str
    attempts: int
    died_at: Instant
    #: null when the request is gone (cause `lost`); such a job cannot be redriven.
    request: JobRequest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadPage:
    jobs: list[DeadJob]
    #: Give it as `before` for the next page; null on the last.
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrivenJob:
    #: The dead job.
    job_id: str
    #: The job that repeats it; null with `dry_run`.
    new_job_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveReport:
    dry_run: bool
    jobs: list[RedrivenJob]
    #: Dead jobs that matched and have no request left to repeat.
    unusable: list[str]


def instant(moment: datetime) -> Instant:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def instant_or_null(moment: datetime | None) -> Instant | None:
    return None if moment is None else instant(moment)


def urls_of(job_id: str) -> Urls:
    path = f"{JOBS}/{job_id}"
    return Urls(self=path, events=f"{path}/events", cancel=path)


def accepted(submitted: Submitted, eta_s: float | None) -> Accepted:
    job = submitted.job
    place = QueuePlace(position=submitted.position, eta_s=eta_s)
    return Accepted(job_id=job.job_id, status=job.status, urls=urls_of(job.job_id), queue=place)


def attempt_line(attempt: Attempt) -> AttemptLine:
    return AttemptLine(
        n=attempt.n,
        worker=attempt.worker,
        started_at=instant(attempt.started_at),
        ended_at=instant_or_null(attempt.ended_at),
        outcome=attempt.outcome,
        error=attempt.error,
    )


def job_view(job: Job) -> JobView:
    return JobView(
        job_id=job.job_id,
        status=job.status,
        attempt=job.attempt,
        worker=job.worker,
        created_at=instant(job.created_at),
        started_at=instant_or_null(job.started_at),
        finished_at=instant_or_null(job.finished_at),
        deadline_at=instant_or_null(job.deadline_at),
        model=job.model,
        result=job.result,
        error=job.error,
        attempts=[attempt_line(each) for each in job.attempts],
        metadata=job.metadata,
        urls=urls_of(job.job_id),
        redrive_of=job.redrive_of or UNSET,
    )


def job_page(jobs: Sequence[Job], limit: int) -> JobPage:
    return JobPage(jobs=[job_view(job) for job in jobs], next=jobs[-1].job_id if len(jobs) >= limit else None)


def dead_job(letter: DeadLetter) -> DeadJob:
    return DeadJob(
        cursor=letter.cursor,
        job_id=letter.job_id,
        cause=letter.cause,
        error=letter.error,
        attempts=letter.attempts,
        died_at=instant(letter.died_at),
        request=letter.request,
    )


def dead_page(letters: Sequence[DeadLetter], following: str | None) -> DeadPage:
    return DeadPage(jobs=[dead_job(each) for each in letters], next=following)


def redrive_report(redriven: Redriven, dry_run: bool) -> RedriveReport:
    jobs = [RedrivenJob(job_id=old, new_job_id=new or None) for old, new in redriven.jobs]
    return RedriveReport(dry_run=dry_run, jobs=jobs, unusable=list(redriven.unusable))
