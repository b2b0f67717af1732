"""The fleet's part of the port: who works, how much waits, how many workers there should be."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What a worker says of itself at every heartbeat."""

    #: Stable identity of the container or pod: a restart under the same one takes its slot back at once.
    instance: str
    #: Explicit worker id, or None for the lowest free `worker-N`.
    worker_id: str | None = None
    concurrency: int = 1
    busy: int = 0
    #: Whether it could take a new job if it were asked to: others stand in for a worker that cannot.
    ready: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    worker: str
    #: Rises with every change of holder; calls under an older one are refused.
    epoch: int
    #: False: enough workers below this one read, and it reads no new jobs.
    active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Counts read in one instant. `lag` and `pending` are None when the store cannot tell."""

    at: datetime
    submitted: int
    awaiting_upload: int
    queued: int
    running: int
    #: Waiting for a delayed retry.
    retrying: int
    succeeded: int
    failed: int
    cancelled: int
    expired: int
    dead_letters: int
    #: Queued and never delivered to a worker.
    lag: int | None
    #: Delivered and not yet settled.
    pending: int | None

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed + self.cancelled + self.expired

    @property
    def unfinished(self) -> int:
        return self.awaiting_upload + self.queued + self.running + self.retrying

    @property
    def unaccounted(self) -> int:
        """Promise P1: zero, or somebody else wrote to our keys."""
        return (self.submitted - self.unfinished - self.ended) or min(0, self.queued)


class Reason(StrEnum):
    """Why the scaler decided as it did."""

    #: The first decision of a fleet that had none.
    START = "start"
    BACKLOG_UP = "backlog_up"
    #: Work waits and nobody is there.
    WAKE = "wake"
    STEADY = "steady"
    #: Fewer would do, but work is in flight or lag is above the threshold.
    HOLD_BUSY = "hold_busy"
    #: Fewer would do; the window is not over.
    HOLD_WINDOW = "hold_window"
    SCALE_DOWN = "scale_down"
    #: The new limits asked for another count.
    CLAMPED = "clamped"
    #: The store answered, but does not know lag or pending; the last decision stands.
    UNKNOWN_INPUT = "unknown_input"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    desired: int
    reason: Reason
    lag: int | None
    pending: int | None
    retrying: int | None
    min: int
    max: int
    #: False: input was unknown; publishing it does not refresh the view's age.
    observed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleChange:
    at: datetime
    desired: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    worker: str
    instance: str
    concurrency: int
    busy: int
    ready: bool
    seen_at: datetime


def slot_number(worker: str) -> int | None:
    """N of `worker-N`."""
    number = re.fullmatch(r"worker-([0-9]+)", worker)
    return int(number[1]) if number else None


def reads(worker: str, desired: int, unable: int) -> bool:
    """Whether this worker takes new jobs: `worker-N` while N <= desired, any other name always.

    `unable` live workers with lower numbers cannot read: so many stand in for them."""
    number = slot_number(worker)
    return number is None or number - unable <= desired


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleView:
    """What `GET /v1/scale` shows. Before the first decision `decision` and `updated_at` are None."""

    decision: Decision | None
    updated_at: datetime | None
    age: timedelta | None
    stale: bool
    leader: str | None
    workers: tuple[WorkerView, ...]
    #: Newest first; only changes of the desired count.
    history: tuple[ScaleChange, ...]

    @property
    def live(self) -> int:
        return len(self.workers)

    @property
    def busy(self) -> int:
        return sum(1 for worker in self.workers if worker.busy)

    @property
    def active(self) -> int:
        """Workers that may read. A scale that nobody keeps up to date stops nobody."""
        if self.stale or self.decision is None:
            return self.live
        unable = [slot_number(each.worker) for each in self.workers if not each.ready]
        desired = self.decision.desired

        def below(worker: str) -> int:
            mine = slot_number(worker) or 0
            return sum(1 for number in unable if number is not None and number < mine)

        return sum(1 for each in self.workers if reads(each.worker, desired, below(each.worker)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tended:
    """What one round of time keeping did, in jobs."""

    #: Time until something is known to be due; None when nothing waits.
    next_in: timedelta | None
    #: Delayed retries queued again.
    promoted: int = 0
    #: Jobs that ended `expired`.
    expired: int = 0
    #: Jobs whose queue entry was gone and that were queued again.
    requeued: int = 0
    #: Jobs that ended `failed`, cause `lost`: entry and request were gone.
    lost: int = 0


class FleetStore(Protocol):
    async def announce(self, presence: Presence) -> Seat:
        """Take or keep this process's seat. Call at every heartbeat. Raises SlotTaken."""
        ...

    async def retire(self) -> None:
        """Give this process's seat back."""
        ...

    async def depth(self) -> Backlog: ...

    async def tend(self) -> Tended:
        """Do what is due by the clock: delayed retries, deadlines, entries that somebody else removed.

        Scaler and workers call it when `next_in` is over and at least every second."""
        ...

    async def lead(self, candidate: str, ttl: timedelta) -> int | None:
        """Become or stay the one leading scaler: the term's number, or None while another leads."""
        ...

    async def publish_scale(self, decision: Decision, term: int) -> None:
        """Raises TermOver when another scaler leads by now."""
        ...

    async def scale(self) -> ScaleView: ...
