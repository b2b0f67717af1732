"""What one job is, in plain Python, and when something about it is due."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.job import Cause, Job, JobRequest, JobStatus, Outcome

#: Number, worker and outcome of a start.
Line = tuple[int, str, Outcome | None]
#: kind, attempt, and the status or the text.
LoggedEvent = tuple[str, int, str]


@dataclass(frozen=True)
class Instant:
    """When something happened, in Unix milliseconds: between two readings of one clock, often equal."""

    low: int
    high: int

    def after(self, ms: int) -> Instant:
        return Instant(self.low + ms, self.high + ms)

    def surely_by(self, now: Instant) -> bool:
        return self.high <= now.low

    def maybe_by(self, now: Instant) -> bool:
        return self.low <= now.high


#: What a reading of the clock leaves no doubt about.
YES, NO = frozenset({True}), frozenset({False})


def due(at: Instant | None, now: Instant) -> frozenset[bool]:
    """What a clock between the two readings may say to "is it time?"."""
    if at is None or not at.maybe_by(now):
        return NO
    return YES if at.surely_by(now) else YES | NO


def ran_out(start: Instant | None, ttl_ms: int, now: Instant) -> frozenset[bool]:
    """Whether a key with a TTL is gone. In its last millisecond a server may do as it likes."""
    if start is None:
        return NO
    return due(start.after(ttl_ms), now) | due(start.after(ttl_ms + 1), now)


@dataclass(frozen=True)
class Holder:
    """Who runs the job: a lease."""

    token: str
    worker: str
    instance: str
    epoch: int

    @property
    def seat(self) -> tuple[str, str]:
        """What a restarted process gets back."""
        return self.worker, self.instance


@dataclass
class ModelJob:
    job_id: str
    request: JobRequest
    key: str | None = None
    deadline: Instant | None = None
    origin: str | None = None
    status: JobStatus = JobStatus.QUEUED
    starts: int = 0
    refunds: int = 0
    closed: list[Line] = field(default_factory=list[Line])
    holder: Holder | None = None
    leased_at: Instant | None = None
    #: When a delayed retry goes back to the queue.
    retry_at: Instant | None = None
    #: The last round of time keeping may have found that retry due, or just not yet.
    maybe_promoted: bool = False
    #: The latest answer to a settlement, and whose: the same call again gets it again.
    settled: tuple[str, str] | None = None
    seq: int = 0
    cause: Cause | None = None
    text: str | None = None
    ended_at: Instant | None = None
    events: list[LoggedEvent] = field(default_factory=lambda: [("state", 0, "queued")])

    @property
    def live(self) -> bool:
        return not self.status.terminal

    @property
    def spent(self) -> int:
        return self.starts - self.refunds

    @property
    def crashed_before(self) -> bool:
        return any(outcome is Outcome.CRASH for _, _, outcome in self.closed)

    @property
    def attempts(self) -> list[Line]:
        if self.holder is None:
            return self.closed
        return [*self.closed, (self.starts, self.holder.worker, None)]

    @property
    def seen(self) -> Seen:
        lines = self.attempts
        return Seen(
            status=self.status,
            attempt=self.starts,
            worker=lines[-1][1] if lines else None,
            attempts=tuple(lines),
            cause=self.cause,
            text=self.text,
            redrive_of=self.origin,
        )


@dataclass(frozen=True)
class Seen:
    """A job as clients see it, without its times."""

    status: JobStatus
    attempt: int
    worker: str | None
    attempts: tuple[Line, ...]
    cause: Cause | None
    text: str | None
    redrive_of: str | None

    @classmethod
    def of(cls, job: Job) -> Seen:
        return cls(
            status=job.status,
            attempt=job.attempt,
            worker=job.worker,
            attempts=tuple((line.n, line.worker, line.outcome) for line in job.attempts),
            cause=job.error.cause if job.error else None,
            text=job.result.text if job.result else None,
            redrive_of=job.redrive_of,
        )
