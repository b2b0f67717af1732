"""What the API answers, as far as `iwl` reads it; other fields are left aside."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from common.fleet import Reason
from common.job import TERMINAL, Cause, JobError, JobStatus, Outcome, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    position: int | None = None
    eta_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    job_id: str
    status: JobStatus
    queue: Queue = Queue()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    n: int
    worker: str
    started_at: datetime
    ended_at: datetime | None = None
    outcome: Outcome | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    job_id: str
    status: JobStatus
    created_at: datetime
    attempt: int = 0
    worker: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    result: Result | None = None
    error: JobError | None = None
    attempts: tuple[AttemptRecord, ...] = ()

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL

    @property
    def succeeded(self) -> bool:
        return self.status is JobStatus.SUCCEEDED

    @property
    def reclaimed(self) -> bool:
        """Whether a worker was lost with this job."""
        return any(attempt.outcome is Outcome.CRASH for attempt in self.attempts)

    @property
    def queue_to_done_ms(self) -> float | None:
        """Acceptance to end; None while the job lives."""
        if self.finished_at is None:
            return None
        return (self.finished_at - self.created_at).total_seconds() * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    jobs: tuple[JobRecord, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    submitted: int
    awaiting_upload: int
    queued: int
    running: int
    retrying: int
    succeeded: int
    failed: int
    cancelled: int
    expired: int
    dead_letters: int
    unaccounted: int
    lag: int | None = None
    pending: int | None = None
    drain_rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleChange:
    at: datetime
    desired: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    live: int
    active: int
    busy: int
    stale: bool
    desired: int | None = None
    lag: int | None = None
    pending: int | None = None
    retrying: int | None = None
    min: int | None = None
    max: int | None = None
    reason: Reason | None = None
    age_s: float | None = None
    leader: str | None = None
    history: tuple[ScaleChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadJob:
    job_id: str
    cause: Cause
    error: str
    attempts: int
    died_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadPage:
    jobs: tuple[DeadJob, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrivenJob:
    job_id: str
    new_job_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveReport:
    dry_run: bool
    jobs: tuple[RedrivenJob, ...]
    unusable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventData:
    """Data of one server-sent event of a job."""

    attempt: int
    status: JobStatus | None = None
    text: str | None = None
    job: JobRecord | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    field: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`application/problem+json`."""

    title: str
    detail: str = ""
    errors: tuple[FieldError, ...] = ()

    @property
    def line(self) -> str:
        wrong = "; ".join(f"{each.field}: {each.message}" for each in self.errors)
        return " ".join((wrong or self.detail or self.title).split())
