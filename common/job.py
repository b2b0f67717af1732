"""The job: its states, the transitions between them, and the values that travel.

All values are frozen. Durations are `timedelta`, instants are aware UTC `datetime`, ids are UUIDv7 strings.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from uuid import UUID

import msgspec

#: A JSON object as it came in. Its values are passed on untouched.
JsonObject = Mapping[str, object]

#: How often a start may be given back before it counts after all.
MAX_REFUNDS = 10


class JobStatus(StrEnum):
    AWAITING_UPLOAD = "awaiting_upload"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


TERMINAL = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.EXPIRED})


class Event(StrEnum):
    """What moves a job from one state to another. The diagram in docs/lifecycle.md shows the same."""

    SUBMIT = "submit"
    BEGIN = "begin"
    FINISH = "finish"
    RETRY = "retry"
    FAIL = "fail"
    TAKEOVER = "takeover"
    CRASH_OUT = "crash out"
    RELEASE = "release"
    REQUEUE = "requeue"
    LOSE = "lose"
    CANCEL = "cancel"
    EXPIRE = "expire"


#: (from, event) -> to. None is "does not exist yet". Anything not listed cannot happen.
TRANSITIONS: Mapping[tuple[JobStatus | None, Event], JobStatus] = {
    (None, Event.SUBMIT): JobStatus.QUEUED,
    (JobStatus.QUEUED, Event.BEGIN): JobStatus.RUNNING,
    (JobStatus.RUNNING, Event.FINISH): JobStatus.SUCCEEDED,
    (JobStatus.RUNNING, Event.RETRY): JobStatus.QUEUED,
    (JobStatus.RUNNING, Event.FAIL): JobStatus.FAILED,
    (JobStatus.RUNNING, Event.TAKEOVER): JobStatus.RUNNING,
    (JobStatus.RUNNING, Event.CRASH_OUT): JobStatus.FAILED,
    (JobStatus.RUNNING, Event.RELEASE): JobStatus.QUEUED,
    (JobStatus.RUNNING, Event.REQUEUE): JobStatus.RUNNING,
    (JobStatus.QUEUED, Event.REQUEUE): JobStatus.QUEUED,
    (JobStatus.QUEUED, Event.LOSE): JobStatus.FAILED,
    (JobStatus.RUNNING, Event.LOSE): JobStatus.FAILED,
    (JobStatus.QUEUED, Event.CANCEL): JobStatus.CANCELLED,
    (JobStatus.RUNNING, Event.CANCEL): JobStatus.CANCELLED,
    (JobStatus.QUEUED, Event.EXPIRE): JobStatus.EXPIRED,
    (JobStatus.RUNNING, Event.EXPIRE): JobStatus.EXPIRED,
}


class Cause(StrEnum):
    """Why a job failed, as shown in its error and in the dead-letter queue."""

    ERROR = "error"
    PERMANENT = "permanent"
    TIMEOUT = "timeout"
    CRASH = "crash"
    RESULT_TOO_LARGE = "result_too_large"
    LOST = "lost"


class Outcome(StrEnum):
    """How one attempt ended, as shown in the attempt ledger."""

    SUCCEEDED = "succeeded"
    ERROR = "error"
    PERMANENT = "permanent"
    TIMEOUT = "timeout"
    CRASH = "crash"
    RELEASED = "released"
    LOST = "lost"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    RESULT_TOO_LARGE = "result_too_large"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What the model is asked. Exactly one of `prompt` and `messages` is set."""

    prompt: str | None = None
    messages: tuple[JsonObject, ...] | None = None
    model: str | None = None
    params: JsonObject = field(default_factory=dict[str, object])
    #: Seconds one attempt may take; running out of it is a retryable error.
    timeout_s: float | None = None
    #: Seconds the whole job may take from its acceptance; running out of it ends the job.
    expires_in_s: float | None = None
    #: Whether chunks are kept and shown as events while the job runs.
    stream: bool = False
    metadata: JsonObject = field(default_factory=dict[str, object])

    def fingerprint(self) -> str:
        """SHA-256 (hex) over the canonical body: what makes two requests the same one."""
        body = msgspec.json.encode(self, order="deterministic")
        return hashlib.sha256(body).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request on its way in. The id is the caller's, so that a repeated submit finds itself."""

    job_id: str
    request: JobRequest
    owner: str = ""
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    text: str
    finish_reason: str | None = None
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError:
    cause: Cause
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One line of the attempt ledger. `n` is never used twice for one job."""

    n: int
    worker: str
    started_at: datetime
    ended_at: datetime | None = None
    outcome: Outcome | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything a client may read about a job."""

    job_id: str
    status: JobStatus
    created_at: datetime
    #: Number of the latest start; 0 before the first.
    attempt: int = 0
    #: Name of the worker that made the latest start.
    worker: str | None = None
    #: When the first attempt started.
    started_at: datetime | None = None
    finished_at: datetime | None = None
    deadline_at: datetime | None = None
    model: str | None = None
    result: Result | None = None
    error: JobError | None = None
    attempts: tuple[Attempt, ...] = ()
    metadata: JsonObject = field(default_factory=dict[str, object])
    owner: str = ""
    #: The dead job that this one repeats.
    redrive_of: str | None = None


def new_job_id(now_ms: int | None = None) -> str:
    """A UUIDv7 (RFC 9562, section 5.7): 48 bits of Unix milliseconds, then random bits."""
    ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    rand = int.from_bytes(os.urandom(10), "big")
    value = (ms & (1 << 48) - 1) << 80 | 0x7 << 76 | (rand >> 68) << 64 | 0b10 << 62 | rand & (1 << 62) - 1
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def job_id_time(job_id: str) -> datetime | None:
    """When this id was made, or None when it is not a UUIDv7 that anybody can have made yet."""
    # A ValueError is no UUID, or one of a time after the last datetime there is.
    with suppress(ValueError):
        parsed = UUID(job_id)
        if parsed.version == 7 and str(parsed) == job_id:
            return datetime.fromtimestamp((parsed.int >> 80) / 1000, UTC)
    return None


def long_gone(job_id: str, result_ttl: timedelta, now: datetime) -> bool:
    """Whether a job that cannot be found may once have existed: its id is older than any kept result."""
    born = job_id_time(job_id)
    return born is not None and born < now - result_ttl
