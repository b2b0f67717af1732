"""Every error the project raises on purpose. The class docstring is the message a person reads."""

from __future__ import annotations


class LabError(Exception):
    """Something went wrong in the lab."""

    def __init__(self, detail: str | None = None) -> None:
        super().__init__(detail or (type(self).__doc__ or "").strip().splitlines()[0])


class SettingsError(LabError):
    """A setting has a value that cannot work."""


class StoreError(LabError):
    """The store could not do what was asked."""


class StoreUnavailable(StoreError):
    """The store is away, loading or read-only; try again."""


class StoreDenied(StoreUnavailable):
    """The store does not let us use a command that we need."""


class StoreFull(StoreUnavailable):
    """The store is out of memory and takes no new work; try again."""


class NotDurable(StoreUnavailable):
    """Perhaps queued, but no disk or replica has confirmed it: submit again with the same idempotency key."""


class StoreRefused(StoreError):
    """The store is set up in a way that would lose jobs."""


class StoreCorrupt(StoreError):
    """Somebody else wrote to the store's keys, and one of them has the wrong type or shape."""


class QueueFull(LabError):
    """The queue is full."""

    def __init__(self, depth: int, limit: int) -> None:
        super().__init__(f"The queue is full: {depth} unfinished jobs, limit {limit}.")
        self.depth = depth
        self.limit = limit


class OwnerFull(LabError):
    """The owner has too many unfinished jobs."""

    def __init__(self, open_jobs: int, limit: int) -> None:
        super().__init__(f"Too many unfinished jobs: {open_jobs}, limit {limit}.")
        self.open_jobs = open_jobs
        self.limit = limit


class IdempotencyConflict(LabError):
    """This idempotency key was used before with another body."""


class JobNotFound(LabError):
    """There is no such job."""


class JobExpired(LabError):
    """The job, if it ever existed, ended longer ago than results are kept."""


class JobEnded(LabError):
    """The job has already ended."""

    def __init__(self, status: str) -> None:
        super().__init__(f"The job has already ended: {status}.")
        self.status = status


class SlotTaken(LabError):
    """Another live worker holds this worker id."""


class SeatLost(LabError):
    """Another process has taken over this worker's slot, or its lease ran out; announce again."""


class TermOver(LabError):
    """Another scaler leads now."""
