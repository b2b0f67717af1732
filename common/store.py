"""The port: what gateway, worker and fleet ask of a store. Adapters live beside it; `stores.py` picks one.

A store object is one process's view: it holds at most one worker seat, and `claim` hands out leases for
that seat. Every method may raise `StoreUnavailable`; every method may be called again after it did.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from common.fleet import FleetStore
from common.job import Cause, Job, JobError, JobRequest, JobStatus, Result, Submission

# ---------------------------------------------------------------- gateway


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    job: Job
    #: True when the idempotency key had been accepted before, or the job has ended; nothing new was queued.
    #: The same submission sent again while its job lives gets its first answer again (P4).
    replayed: bool
    #: Jobs queued ahead of this one, None on a replay.
    position: int | None = None


class EventKind(StrEnum):
    STATE = "state"
    ATTEMPT = "attempt"
    CHUNK = "chunk"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """One line of a job's event stream. `attempt` says that output starts again from nothing."""

    #: Resume point; "" when this job keeps no event log.
    id: str
    kind: EventKind
    attempt: int
    #: Set for STATE and ATTEMPT. A terminal status is the last event.
    status: JobStatus | None = None
    #: Set for CHUNK.
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    #: Page cursor: list_dead(before=cursor) goes on after this one.
    cursor: str
    job_id: str
    owner: str
    cause: Cause
    error: str
    attempts: int
    died_at: datetime
    #: None when the request went with the entry (cause `lost`); such a letter cannot be redriven.
    request: JobRequest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    #: (dead job id, new job id): those queued now, oldest first, then those queued before. With dry_run only
    #: what would be queued now, and the new id is "".
    jobs: tuple[tuple[str, str], ...]
    #: Dead jobs that matched and have no request left to repeat.
    unusable: tuple[str, ...]


class GatewayStore(Protocol):
    """`owner` None sees and may do everything. To an owner the jobs of others do not exist."""

    async def submit(self, submission: Submission, *, max_depth: int = 0, max_open: int = 0) -> Submitted:
        """Accept a job, durably as configured. `max_depth` limits the unfinished jobs of all, `max_open`
        those of this owner; 0 means no limit.

        Raises QueueFull, OwnerFull, IdempotencyConflict, StoreFull."""
        ...

    async def get(self, job_id: str, *, owner: str | None = None) -> Job:
        """Raises JobNotFound, JobExpired."""
        ...

    async def wait(self, job_id: str, timeout: timedelta, *, owner: str | None = None) -> Job:
        """The job once it has ended, or as it stands when the time is up. Raises as `get`."""
        ...

    async def cancel(self, job_id: str, *, owner: str | None = None) -> Job:
        """The cancelled job (also when it was cancelled before). Raises as `get`, and JobEnded."""
        ...

    def events(
        self, job_id: str, after: str | None = None, *, owner: str | None = None
    ) -> AsyncGenerator[JobEvent, None]:
        """Of a job submitted with `stream`: state changes and chunks. Of any other: the state now, and the
        end. The terminal state is the last event. Raises as `get`.

        Who leaves early closes it."""
        ...

    async def list_jobs(
        self,
        *,
        status: JobStatus | None = None,
        limit: int = 50,
        before: str | None = None,
        owner: str | None = None,
    ) -> list[Job]:
        """Recent jobs, newest first; `before` is a job id. Long results are left out: `get` has them."""
        ...

    async def list_dead(
        self, *, limit: int = 50, before: str | None = None, owner: str | None = None
    ) -> list[DeadLetter]:
        """Dead jobs, newest first; `before` is a cursor."""
        ...

    async def redrive(
        self,
        *,
        ids: Sequence[str] | None = None,
        cause: Cause | None = None,
        limit: int = 100,
        dry_run: bool = False,
        owner: str | None = None,
        max_open: int = 0,
    ) -> Redriven:
        """Queue dead jobs again as new jobs with a new budget, oldest first.

        `ids` are job ids, of which the first `limit` count; those that were queued again before are told
        once more, for as long as results are kept. Neither ids nor cause means all, up to limit. What would
        go beyond an owner's `max_open` stays where it is. Raises StoreFull, and OwnerFull when that is
        everything."""
        ...


# ---------------------------------------------------------------- worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to run one attempt of one job, until it is settled, lost or not extended in time."""

    job_id: str
    #: The fence: only its holder may extend, append or settle.
    token: str
    #: Number of this start.
    attempt: int
    request: JobRequest
    #: The adapter's handle of the delivery.
    receipt: str
    #: From acceptance to this start; set on the first start only.
    queued_for: timedelta | None = None
    #: True when another worker crashed or stalled with this job before.
    reclaimed: bool = False
    #: Last start after a crash: no other job may run on this worker meanwhile; `claim` sees to it.
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What one `claim` brought."""

    leases: tuple[Lease, ...] = ()
    #: Deliveries of jobs that had already ended: removed, not run.
    short_circuits: int = 0
    #: Deliveries with no job behind them (foreign, broken, superseded): removed.
    discarded: int = 0
    #: Jobs that ended `failed` here, their budget spent by crashes.
    crashed_out: int = 0
    #: Jobs that ended `expired` here.
    expired: int = 0


class LeaseState(StrEnum):
    HELD = "held"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    #: Another worker holds the job, or it has ended otherwise.
    TAKEN = "taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    lease: Lease
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    lease: Lease
    error: JobError
    #: When to try again; None is never. The store decides whether budget and deadline allow it.
    retry_in: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The model was not asked: back to the queue, the start refunded."""

    lease: Lease


Settlement = Finished | Failed | Released


class Settled(StrEnum):
    SUCCEEDED = "succeeded"
    RETRYING = "retrying"
    FAILED = "failed"
    #: The retry would have come after the job's deadline.
    EXPIRED = "expired"
    RELEASED = "released"
    #: The lease was no longer ours; nothing was written.
    LOST = "lost"


class WorkerStore(Protocol):
    async def claim(self, limit: int, wait: timedelta, *, fresh: bool = True) -> Claimed:
        """Begin up to `limit` jobs, waiting up to `wait` for the first one. Call from one task only.

        Covers new deliveries, this seat's own unfinished ones after a restart or reconnect, and jobs
        whose worker has been silent too long; `fresh=False` leaves new deliveries out. Raises SeatLost
        when this process has no seat (any more): announce again."""
        ...

    async def interrupt(self) -> None:
        """End a waiting `claim` at once."""
        ...

    async def extend(self, leases: Sequence[Lease]) -> list[LeaseState]:
        """Renew leases; one answer each, in order."""
        ...

    async def append(self, lease: Lease, seq: int, text: str) -> bool:
        """Add a chunk to the job's event log. `seq` counts 1, 2, ... per lease. False: lease lost."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """End attempts, all kinds mixed; one answer each, in order. Settling twice gives the same answer."""
        ...


class Store(GatewayStore, WorkerStore, FleetStore, Protocol):
    async def start(self) -> None:
        """Check that the store can keep its promises. Raises StoreRefused."""
        ...

    async def ping(self) -> None: ...

    async def aclose(self) -> None: ...
